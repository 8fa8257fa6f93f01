"""`check_door`: the laws of training, each a check that the ranks of any door go through together.

    for name, law in checks("optimizer").items():
        world.run(lambda comm: law(Ground("optimizer", comm, folder)))

All ranks see the same where something is asserted, so that a check fails on all of them, and the next one can begin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle, permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy

from sparse_mpi import ALGORITHMS
from sparse_mpi.comm import as_comm

from .calls import MAKE, SMALL, WHOLE, Call, Program
from .doors import DOORS, Trainee

ALL, HOOKS = tuple(DOORS), ("ddp", "fsdp")
CHECKS: dict[str, tuple[tuple[str, ...], Callable]] = {}
# Of a door, what is done by a rank, and a pattern of what the error says, by mistake
MISTAKES: dict[str, Callable[[Ground], dict[str, tuple[Callable[[], object], str]]]] = {}


class Ground:
    """Where a door is checked: its ranks, and a folder that they share."""

    def __init__(self, door: str, given: Any, folder: Path) -> None:
        self.door, self.given, self.folder, self.comm = door, given, folder, as_comm(given)

    def __call__(self, given: Any = None, door: str | None = None, **program: Any) -> Trainee:
        """Make what a rank trains with, at a density of 10 % unless ``program`` says another."""
        given = given or self.given
        usual = {"door": self.door, "ranks": as_comm(given).size, "density": 0.1} | program
        if self.door == "fsdp":
            usual = {"shards": 2} | usual
        return DOORS[door or self.door](Program(**usual), given)

    def elsewhere(self, shards: int, **program: Any) -> Trainee | None:
        """Make the same on other ranks: one less, of which this one is None if it is the last; or other shards."""
        if self.door == "fsdp":
            return self(shards=shards, **program)
        fewer = max(1, self.comm.size - 1)
        if isinstance(self.given, dist.ProcessGroup):
            given = dist.new_group(range(fewer))
        else:
            given = self.comm.split(int(self.comm.rank >= fewer))
        return self(given, **program) if self.comm.rank < fewer else None

    @property
    def one_bucket(self) -> dict[str, Any]:
        return {"bucket_cap_mb": None} if self.door == "optimizer" else {}

    @property
    def replicas(self) -> int:
        return self.comm.size // (2 if self.door == "fsdp" else 1)

    def rows(self, mine: np.ndarray) -> np.ndarray:
        """Return what all ranks have."""
        return self.comm.allgather(np.ascontiguousarray(mine))

    def mean(self, mine: np.ndarray) -> np.ndarray:
        return self.rows(mine.astype(np.float64)).mean(0)

    def alike(self, *all_mine: np.ndarray) -> None:
        for mine in all_mine:
            rows = self.rows(mine)
            assert np.isfinite(rows).all() and all(row.tobytes() == rows[0].tobytes() for row in rows)

    def refused(self, call: Callable[[], object], kind: type[Exception] = Exception) -> str:
        """Return what the error says that ``call`` raises; it must raise one on every rank."""
        try:
            call()
            said = ""
        except kind as error:
            said = f"{type(error).__name__}: {error}"
        assert self.rows(np.array([bool(said)])).all(), f"raised on some ranks alone: {said!r}"
        return said


def check(doors: tuple[str, ...] = ALL, variants: Mapping[str, dict[str, Any]] | None = None) -> Callable:
    """Have a function be a check of these doors, once for each of the variants: ``only`` these doors, and a program."""

    def added(law: Callable[..., None]) -> Callable:
        for variant, program in (variants or {"": {}}).items():
            only = program.get("only", doors)
            more = {name: value for name, value in program.items() if name != "only"}
            name = law.__name__.replace("_", " ") + (variant and f": {variant}")
            assert name not in CHECKS, name
            CHECKS[name] = tuple(door for door in doors if door in only), partial(law, **more)
        return law

    return added


def checks(door: str) -> dict[str, Callable[[Ground], None]]:
    """Return the checks of a door, by name."""
    return {name: law for name, (doors, law) in CHECKS.items() if door in doors}


def some(*doors: str, **program: Any) -> dict[str, Any]:
    """Return a variant, of these doors alone."""
    return {"only": doors or ALL, **program}


FIRST, SOME = Call("backward", 1), Call("some")
HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
LAWS = {
    "topka": some(),
    "elect": some("optimizer", "ddp", "local", algorithm="elect"),
    "oktopk": some("optimizer", "fsdp", "local", algorithm="oktopk"),
    "bfloat16": some("optimizer", "ddp", "local", dtype="bfloat16"),
    "in the step": some("optimizer", overlap=False),
    "one bucket": some("optimizer", options={"bucket_cap_mb": None}),
    "several buckets": some("ddp", wrap={"bucket_cap_mb": SMALL}),
    "dense at first": some(*HOOKS, options={"dense_steps": 2}),
    "a layer that some leave out, or all": some("optimizer", "ddp", rounds=((WHOLE,), (SOME,), (FIRST,))),
    "views of buckets": some("ddp", rounds=((WHOLE,), (SOME,), (FIRST,)), wrap={"gradient_as_bucket_view": True}),
    "a layer that a replica leaves out": some("fsdp", rounds=((WHOLE,), (SOME,)), wrap={"joined": 1e3}),
    "reduced in half precision": some("fsdp", wrap={"mp_policy": HALF, "reshard_after_forward": False}),
    "gradients that wait": some(*HOOKS, rounds=((Call("unreduced", 1), WHOLE),)),
    "several passes": some("optimizer", rounds=((WHOLE, FIRST), (WHOLE,))),
    "every second step": some("local", every=2),
    "fragments": some("local", every=4, options={"fragments": 2}),
    "sums": some("optimizer", "fsdp", options={"op": "sum"}),
}


@check(variants=LAWS)
def nothing_is_lost_and_a_flush_applies_all(ground: Ground, rounds: Any = ((WHOLE,),), **how: Any) -> None:
    """What came is applied or owed, on ranks that are alike; behind a flush weights have gone along all that came."""
    trainee = ground(**how)
    trainee.assert_laws()
    start, given, half = trainee.weights(), 0, "bfloat16" in f"{how}"
    times = ground.replicas if "sum" in f"{how}" else 1
    for number in range(9):
        passes = rounds[number % len(rounds)]
        given = given + sum(trainee.gradient(number, call) for call in passes)
        ground.alike(trainee.steps([number], *passes).weights())
    assert all(p.grad is None or p.grad.dtype == p.dtype for p in trainee.parameters)
    trainee.finish()
    ground.alike(trainee.weights())
    owed = ground.mean(trainee.owed())
    assert trainee.owed().dtype == np.float32 and np.count_nonzero(owed) > owed.size / 4
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=5e-2 if half else 1e-5)
    close((start - trainee.weights()) / trainee.lr + times * owed, times * ground.mean(given))
    trainee.zero_grad(True)
    trainee.flush()
    assert not ground.mean(np.abs(trainee.owed())).any()
    close((start - trainee.weights()) / trainee.lr, times * ground.mean(given))
    ground.alike(trainee.steps([9]).weights())


@check()
def what_is_sparse_sends_less(ground: Ground) -> None:
    sent = []
    for density, algorithm in ((0.05, "oktopk"), (1.0, "dense")):
        trainee = ground(density=density, algorithm=algorithm, options=ground.one_bucket).steps([0])
        before = trainee.verbs.comm.traffic.sent
        sent.append(trainee.steps(range(1, 5)).verbs.comm.traffic.sent - before)
    assert ground.replicas == 1 or 0 < sent[0] < 0.6 * sent[1], sent


@check(
    variants={
        **{name: some("optimizer", *HOOKS, optimizer=name) for name in ("momentum", "nesterov")},
        "momentum of torch": some(optimizer="nesterov", momentum="local", only=("optimizer", *HOOKS)),
        **{mode: some("optimizer", optimizer="momentum", momentum=mode) for mode in ("corrected", "global")},
        "outer": some("local", outer="outer"),
    }
)
def a_flush_is_without_momentum_and_decay(ground: Ground, **how: Any) -> None:
    trainee = ground(**how).steps(range(4))
    trainee.finish()
    owed, before = ground.mean(trainee.owed()), trainee.weights()
    kept = [(part, part.clone()) for state in trainee.optimizer.state.values() for part in state.values()]
    (plain,) = MAKE[trainee.program.optimizer]([torch.nn.Parameter(torch.zeros(1))]).param_groups
    trainee.zero_grad(True)
    trainee.flush()
    np.testing.assert_allclose(trainee.weights(), before - trainee.lr * owed, rtol=1e-5, atol=1e-6)
    (group,) = trainee.optimizer.param_groups
    assert all(torch.equal(part, before) for part, before in kept)
    assert owed.any() and {**group, "params": plain["params"]}.items() >= plain.items()


SCHEDULE = ("fragments", "fragment_sync_delay", "fragment_update_alpha")
RESUMED = {
    "sgd": some("optimizer", "local"),
    "momentum": some(optimizer="momentum"),
    "by arrival": some(optimizer="adamw"),
    "second moments": some("optimizer", *HOOKS, optimizer="adamw", algorithm="elect"),
    "dgc": some("optimizer", "ddp", options={"feedback": "dgc"}),
    "leaky": some("optimizer", "fsdp", "local", options={"feedback": "leaky"}, algorithm="oktopk"),
    "in other buckets at first": some("ddp", wrap={"bucket_cap_mb": SMALL, "find_unused_parameters": False}),
    **{
        f"{name} in the background": some(
            "local", algorithm=name, every=every, options=dict(zip(SCHEDULE, how, strict=True))
        )
        for name, (every, *how) in zip(ALGORITHMS, cycle([(4, 1, 0, 0.0), (4, 2, 1, 0.5), (6, 1, 4, None)]))
    },
    "within a round": some("local", every=6, optimizer="adam", outer="outer", options={"fragments": 2}),
}


@check(variants=RESUMED)
def a_resumed_run_goes_on_to_the_same_bits(ground: Ground, **how: Any) -> None:
    """In a model of other weights; that it is saved changes nothing."""
    (folder := ground.folder / f"{how}").mkdir(exist_ok=True)
    straight, saved = (ground(**how) for _ in range(2))
    if ALGORITHMS[straight.program.algorithm]().traits.conserves:
        straight.assert_laws()
    straight.steps(range(5))
    saved.steps(range(5)).zero_grad(True)
    saved.save(folder)
    resumed = ground(**how)
    with torch.no_grad():
        for parameter in resumed.parameters:
            parameter.add_(1.0)
    resumed.load(folder, ground.comm.size)
    ends = [(trainee.steps(range(5, 12)).weights(), trainee.owed()) for trainee in (straight, saved, resumed)]
    for weights, owed in ends:
        assert ground.rows(weights).tobytes() == ground.rows(ends[0][0]).tobytes()
        assert ground.rows(owed).tobytes() == ground.rows(ends[0][1]).tobytes()


ELSEWHERE = {"sgd": some(), "by arrival": some("optimizer", "fsdp", optimizer="adamw"), "shards": some("fsdp", to=4)}


@check(variants=ELSEWHERE)
def other_ranks_owe_together_what_the_old_ones_did(ground: Ground, to: int = 1, **how: Any) -> None:
    """The mean is what it was, and training goes on."""
    (folder := ground.folder / f"elsewhere {to} {how}").mkdir(exist_ok=True)
    old = ground(**how).steps(range(4))
    old.zero_grad(True)
    old.finish()
    owed, weights = ground.mean(old.owed()), old.weights()
    old.save(folder)
    new = ground.elsewhere(to, **how)
    if new is None:
        return
    new.load(folder, ground.comm.size)
    begun = new.comm.allgather(np.ascontiguousarray(new.owed(), np.float64)).mean(0)
    np.testing.assert_allclose(begun, owed, rtol=1e-4, atol=1e-6)
    assert np.array_equal(new.weights(), weights) and owed.any()
    rows = new.comm.allgather(new.steps(range(4, 7)).weights())
    assert all(row.tobytes() == rows[0].tobytes() for row in rows)


@check(
    ("optimizer", *HOOKS),
    {
        "elect": some(algorithm="elect"),
        **{name: some("optimizer", algorithm=name) for name in ("topka", "oktopk", "gtopk")},
        **{rule: some("optimizer", options={"feedback": rule}) for rule in ("gmc", "dgc", "leaky")},
    },
)
def a_frozen_layer_keeps_what_it_owes(ground: Ground, **how: Any) -> None:
    """While the others train, and in a flush; then it trains again."""
    trainee, layer = ground(**how).steps(range(4)), slice(30, 65)
    kept, weights = trainee.owed()[layer], trainee.weights()[layer]
    trainee.freeze(1)
    for step in (4, 5, 6, None):
        if step is None:
            trainee.zero_grad(True)
            if how.get("options") != {"feedback": "leaky"}:
                trainee.flush()
        else:
            trainee.steps([step])
        np.testing.assert_allclose(trainee.owed()[layer], kept, rtol=1e-6)
        assert np.array_equal(trainee.weights()[layer], weights)
    assert ground.mean(np.abs(kept)).any()
    trainee.unfreeze(1)
    trainee.steps(range(7, 10))
    assert not np.allclose(ground.rows(trainee.owed()[layer]), ground.rows(kept))
    assert not np.array_equal(trainee.weights()[layer], weights)
    ground.alike(trainee.weights())


@check(
    ("optimizer", "ddp"),
    {
        name: some(optimizer=name, algorithm=algorithm)
        for name, algorithm in (("sgd", "oktopk"), ("nesterov", "topka"), ("adamw", "elect"))
    },
)
def a_loss_scale_is_in_no_result(ground: Ground, **how: Any) -> None:
    """Powers of two, which grow; the gradient of one rank overflows once, and that step leaves no trace on any."""
    scaled, without = ground(scaled=True, **how), ground(**how)
    for number in range(6):
        passes = () if number != 3 else (Call("overflow", ground.comm.size - 1), Call("unscale"))
        scaled.steps([number], *passes)
        if number != 3:
            without.steps([number])
    assert scaled.scaler.get_scale() == 32.0  # doubled twice, halved once, doubled once
    np.testing.assert_allclose(scaled.weights(), without.weights(), rtol=1e-6)
    np.testing.assert_allclose(scaled.owed(), without.owed(), rtol=1e-5, atol=1e-7)
    ground.alike(scaled.weights())


@check(("optimizer", "ddp"))
def tables_stay_sparse_and_owe_nothing(ground: Ground) -> None:
    trainee = ground(net="tables", optimizer="adagrad", algorithm="topka")
    for number in range(4):
        ground.alike(trainee.steps([number]).weights())
        assert [p.grad.is_sparse for p in trainee.parameters] == [True] * 3 + [False] * 2
    assert sorted(trainee.residuals()) == ["head.bias", "head.weight"]
    # Keys and rows of all lookups, and the layer; a table alone has 640 bytes
    assert (
        (ground.comm.size > 1)
        <= trainee.verbs.comm.traffic.sent
        < 4 * 2 * (2 * 20 * (4 + 1) + 20 * (3 + 1) + 16 + 40) * 4
    )
    trainee.reload(None)
    trainee.zero_grad(True)
    trainee.verbs.flush(step=False)
    assert not any(left.any() for left in trainee.residuals().values())
    assert [p.grad is None for p in trainee.parameters] == [True] * 3 + [False] * 2


@check(variants={name: some(optimizer=name) for name in ("sgd", "nesterov", "adamw")})
def what_is_not_finite_on_one_rank_is_raised_on_all_before_weights_move(ground: Ground, **how: Any) -> None:
    trainee = ground(options={"nonfinite": "raise"}, **how).steps(range(3))
    before, bad = trainee.weights(), torch.nan if how["optimizer"] == "sgd" else torch.inf
    if ground.comm.rank == ground.comm.size - 1:
        trainee.net.layers[2].register_forward_hook(lambda module, x, out: out * bad)
    said = ground.refused(lambda: trainee.steps([3]), FloatingPointError)
    assert re.search("total has .* NaN or Inf", said) and np.array_equal(trainee.weights(), before)


DIFFERING = {
    "density": some(there={"density": 0.2}, says="(k=15|density=0.2)"),
    "algorithm": some(there={"algorithm": "oktopk"}, says="OkTopk"),
    "an argument that one rank has wrong": some(there={"density": 1.5}, says=r"density must be in \(0, 1\], got 1.5"),
    "every": some("local", there={"every": 4}, says="sync_every=4"),
    "outer optimizer": some("local", there={"outer": "outer"}, says="lr: 0.7"),
}


@check(variants=DIFFERING)
def a_mistake_of_one_rank_is_raised_on_all(ground: Ground, there: dict[str, Any], says: str) -> None:
    if ground.comm.size == 1:
        return
    last = ground.comm.rank // 2 * 2 + 1 >= ground.comm.size - 1 if ground.door == "fsdp" else None
    wrong = last if last is not None else ground.comm.rank == ground.comm.size - 1
    said = ground.refused(lambda: ground(**there if wrong else {}))
    assert re.search(f"(?s)all ranks must call with the same arguments.*{says}|ValueError: {says}", said), said


UNLIKE: dict[str, Callable[[Trainee, dict[str, Any]], Any]] = {
    "step": lambda one, state: one.steps([7]),
    "flush": lambda one, state: one.verbs.flush(),
    "load_state_dict": lambda one, state: one.verbs.load_state_dict(state),
    "detach": lambda one, state: (one.verbs.detach(), one.steps([7])),
    "watch": lambda one, state: (one.verbs.watch(1), one.steps([7])),
}


@check(HOOKS, {"plain": some(algorithm="topka"), "second moments": some("ddp", optimizer="adamw", algorithm="elect")})
def a_call_of_some_ranks_is_refused_on_all(ground: Ground, **how: Any) -> None:
    """`test_unlike_calls` has more of them, for the doors that need no process groups."""
    pairs = [pair for pair in permutations(UNLIKE, 2) if "step" in pair]
    for theirs, ours in pairs if ground.replicas > 1 else ():
        trainee = ground(**how).steps(range(2))
        trainee.zero_grad(True)
        state = trainee.verbs.state_dict()
        call = partial(UNLIKE[ours if trainee.least else theirs], trainee, state)
        assert "all ranks must call" in ground.refused(call), (theirs, ours)


@check()
def the_mean_is_clipped(ground: Ground) -> None:
    """To about the norm that is asked for, which a sketch tells."""
    norms = []
    for most in (None, 100.0, 0.05):
        trainee = ground(options={"clip_norm": most} | ground.one_bucket, density=1.0, algorithm="dense")
        start = trainee.weights()
        norms.append(np.linalg.norm(start - trainee.steps([0]).weights()))
        norms[-1] /= 1.0 if ground.door == "local" else trainee.lr  # where moves are clipped
    assert norms[0] > 0.1 and norms[1] == norms[0] and 0.03 < norms[2] < 0.07, norms


@check(
    ("optimizer", "ddp"),
    {
        f"{name} {algorithm}": some(optimizer=name, algorithm=algorithm)
        for name, algorithm in (("momentum", "topka"), ("adamw", "elect"), ("adamw", "topka"))
    },
)
def the_order_of_a_weight_in_memory_and_views_of_buckets_change_nothing(ground: Ground, **how: Any) -> None:
    plain, turned = ground(net="images", **how), ground(net="turned", wrap={"gradient_as_bucket_view": True}, **how)
    for trainee in (plain, turned):
        trainee.steps(range(5)).zero_grad(True)
        trainee.flush()
    ground.alike(plain.weights())
    assert np.array_equal(plain.weights(), turned.weights())


@check(
    ("optimizer", *HOOKS),
    {
        **{name: some(optimizer=name) for name in ("momentum", "adamw")},
        **{name: some("optimizer", "ddp", optimizer=name) for name in ("fused", "adagrad")},
    },
)
def a_scaler_that_is_not_known_is_refused(ground: Ground, **how: Any) -> None:
    trainee, scaler = ground(**how), torch.amp.GradScaler("cpu")
    scaler.scale(trainee.loss(0)).backward()
    said = ground.refused(lambda: scaler.step(trainee.optimizer), TypeError)
    assert re.search("GradScaler that .* does not know.*(scaler=|bfloat16)", said), said


@check(HOOKS)
def mistakes_are_named_on_every_rank(ground: Ground) -> None:
    for name, (call, words) in MISTAKES[ground.door](ground).items():
        said = ground.refused(call)
        assert re.match(words, said), f"{name}: {said}"
