"""What DDP's hook alone is to do, beside the checks of all doors: buckets, uneven inputs, graphs, late groups."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.integrations.torch_checkpoint import TrainingState

from .calls import SGD, SMALL, WHOLE, AdamW, Call
from .check_door import HOOKS, MISTAKES, Ground, check, some
from .doors import Hooked, Local, Trainee
from .nets import Net

DDP = ("ddp",)
EXACT = {"selector": "exact"}  # the same entries in whatever order parameters stand
STEPS = range(6)
CLOSURES = [Call("closure", 0)] * len(STEPS)


class Plain(Hooked):
    """DDP without a hook."""

    def distribute(self) -> None:
        self.wrap()

    def wrap(self) -> None:
        self.model = DistributedDataParallel(self.net, **{"find_unused_parameters": True} | self.program.wrap)


def plain(ground: Ground, **program: Any) -> Trainee:
    return Plain(ground(**program).program, ground.given)


TAKEN = {"momentum": some(optimizer="momentum"), "nesterov": some(optimizer="fused"), "adamw": some(optimizer="adamw")}


@check(DDP, TAKEN | {"local": some(optimizer="momentum", momentum="local")})
def it_trains_to_the_bits_of_an_optimizer(ground: Ground, **how: Any) -> None:
    how |= {"density": 8 / 77}  # whole entries
    hook = ground(options=EXACT, **how).steps(STEPS)
    other = ground(door="optimizer", options=EXACT | {"bucket_cap_mb": None}, **how).steps(STEPS)
    ground.alike(hook.weights())
    assert np.array_equal(hook.weights(), other.weights())


@check(DDP, {name: some(name=name) for name in ("momentum", "adam")})
def a_sharded_optimizer_changes_no_bit(ground: Ground, name: str) -> None:
    straight, zero = ground(optimizer=name).steps(STEPS), ground(optimizer=f"zero {name}").steps(STEPS)
    assert np.array_equal(straight.weights(), zero.weights())


@check(HOOKS)
def two_optimizers_of_one_model_take_turns(ground: Ground) -> None:
    """Each steps along half of the parameters, where the door knows neither."""
    trainee, twin = ground(options={"optimizer": None}, density=1.0), ground(density=1.0)
    parts = trainee.parameters[:2], trainee.parameters[2:]
    optimizers = [torch.optim.SGD(some, lr=twin.lr) for some in parts]
    for number in range(4):
        trainee.zero_grad(True)
        trainee.do(number, WHOLE)
        for optimizer in optimizers:
            optimizer.step()
        assert np.array_equal(trainee.weights(), twin.steps([number]).weights())


@check(DDP)
def residuals_move_into_other_buckets(ground: Ground) -> None:
    """DDP has one bucket in its first step, and others later; a bucket that recurs has a residual of its own."""
    small = {"wrap": {"bucket_cap_mb": SMALL, "find_unused_parameters": False}}
    (folder := ground.folder / "buckets").mkdir(exist_ok=True)

    def buckets(trainee: Trainee) -> list[int]:
        return sorted(len(vector.names) for vector in trainee.verbs.gradients)

    run = ground(options={"dense_steps": 0}, **small)
    start, given = run.weights(), 0
    for number, found in enumerate(([6], [6], [2, 4])):
        given = given + run.gradient(number, WHOLE)
        assert buckets(run.steps([number])) == found, buckets(run)
    run.zero_grad(True)
    run.save(folder)
    for how, found in ((small, ([2, 4], [2, 4])), ({}, ([2, 4], [6]))):
        again, gave = ground(**how), given
        again.load(folder, ground.comm.size)
        for number, expected in enumerate(found, 3):
            gave = gave + again.gradient(number, WHOLE)
            assert buckets(again.steps([number])) == expected, buckets(again)
        moved = (start - again.weights()) / again.lr
        np.testing.assert_allclose(moved + ground.mean(again.owed()), ground.mean(gave), rtol=1e-4, atol=1e-5)
        ground.alike(again.weights())


@check(DDP)
def a_backward_pass_that_fails_leaves_nothing_to_the_next_one(ground: Ground) -> None:
    """Once the first bucket is on its way; DDP is made anew then."""
    trainee = ground(wrap={"bucket_cap_mb": SMALL}).steps(range(3))
    trainee.assert_laws()

    def fail(gradient: torch.Tensor) -> None:
        raise ArithmeticError("the gradient")

    handle = trainee.net.layers[0].weight.register_hook(fail)
    assert ground.refused(lambda: trainee.steps([3])) == "ArithmeticError: the gradient"
    handle.remove()
    trainee.wrap()
    ground.alike(trainee.steps(range(4, 7)).weights())


@check(DDP)
def a_copied_model_goes_on_with_what_was_owed(ground: Ground) -> None:
    straight, copied = ground().steps(range(3)), ground().steps(range(3))
    owed = copied.owed()
    copied.model = copy.deepcopy(copied.model)
    copied.net, ((_, copied.verbs),) = copied.model.module, copied.model._comm_hooks
    copied.optimizer = SGD(copied.net.parameters(), lr=0.2)
    copied.model.register_comm_hook(copied.verbs, sparse_hook)
    assert owed.any() and np.array_equal(copied.owed(), owed)
    assert np.array_equal(copied.steps(range(3, 6)).weights(), straight.steps(range(3, 6)).weights())


def uneven(trainee: Trainee, **how: bool) -> np.ndarray:
    """Take 4, 5 and 6 steps, and one more together; return the weights behind the join and behind that."""
    with trainee.model.join(**how):
        trainee.steps(range(4 + trainee.rank))
    joined = trainee.weights()
    return np.concatenate([joined, trainee.steps([10]).weights()])


@check(DDP)
def uneven_inputs_train_as_with_ddp(ground: Ground) -> None:
    """DDP leaves the division to its hook, whatever ``divide_by_initial_world_size`` is."""
    how = {"optimizer": "momentum", "momentum": "local", "wrap": {"find_unused_parameters": False}}
    ours = uneven(ground(density=1.0, **how), divide_by_initial_world_size=False)
    np.testing.assert_allclose(ours, uneven(plain(ground, **how)), rtol=1e-5, atol=1e-6)


@check(DDP, {"sgd": some(), "momentum": some(optimizer="momentum")})
def ranks_that_have_run_out_of_inputs_follow_the_others(ground: Ground, **how: Any) -> None:
    trainee = ground(wrap={"find_unused_parameters": False}, **how)
    trainee.assert_laws()
    ground.alike(uneven(trainee))


STATIC = {"find_unused_parameters": False, "static_graph": True}
GRAPHS = {
    "static": some(net="static", wrap=STATIC | {"gradient_as_bucket_view": True}),
    "static reentrant": some(net="reentrant", wrap=STATIC),
    "anew": some(net="anew", wrap={"find_unused_parameters": False}),
    "a bucket a parameter": some(net="anew", wrap={"find_unused_parameters": False, "bucket_cap_mb": 1e-5}),
    "autocast": some(net="anew", wrap={"find_unused_parameters": False}, cast=True),
    "compiled": some(net="anew", wrap={"find_unused_parameters": False}, compiled=True),
}


@check(DDP, GRAPHS)
def a_graph_trains_as_with_ddp(ground: Ground, cast: bool = False, compiled: bool = False, **how: Any) -> None:
    """DDP waits for the first step of a static graph within a callback: what completes it must not be a later one."""
    ends = []
    for trainee in (ground(density=1.0, **how), plain(ground, **how)):
        if compiled:
            trainee.model = torch.compile(trainee.model, backend="aot_eager")
        for number in STEPS:
            trainee.optimizer.zero_grad()
            trainee.number = number
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                loss = trainee.loss(0)
            loss.backward()
            trainee.step()
        ends.append(trainee.weights())
    np.testing.assert_allclose(*ends, rtol=1e-5, atol=1e-6)


@check(DDP, {name: some(optimizer=name) for name in ("momentum", "adamw")})
def a_step_that_is_not_finite_leaves_no_trace(ground: Ground, **how: Any) -> None:
    """One gradient of one rank; momentum and moments too stay as they were."""
    trainee = ground(density=0.3, **how).steps(range(4))
    owed, before = trainee.owed(), trainee.weights()
    trainee.optimizer.zero_grad()
    parameter = next(trainee.net.parameters())
    handle = parameter.register_hook(lambda g: g * float("nan") if ground.comm.rank == 1 else g)
    trainee.loss(0).backward()
    handle.remove()
    assert parameter.grad.isnan().all()
    trainee.optimizer.step()
    assert np.array_equal(trainee.weights(), before)
    np.testing.assert_allclose(trainee.owed(), owed, rtol=1e-4, atol=1e-7)
    assert trainee.verbs.skipped == trainee.verbs.report.skipped == 1
    ground.alike(trainee.steps(range(5, 8)).weights())


BEFORE: dict[str, Any] = {}
LATE = {"momentum": partial(SGD, lr=0.1, momentum=0.8), "adamw": partial(AdamW, lr=0.02, weight_decay=0.1)}


def said_by(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def before_the_group() -> None:
    """Make states, and find the mistake of one rank, while there is no process group."""
    rank, net = int(os.environ["RANK"]), torch.nn.Linear(3, 2)
    differing = SparseState(net.named_parameters(), density=0.1 + 0.01 * rank)
    BEFORE["late"] = {}
    for name, make in LATE.items():
        model = Net()
        optimizer = make(model.parameters())
        options = {"density": 0.1, "algorithm": "topka", "dense_steps": 0, "optimizer": optimizer}
        BEFORE["late"][name] = model, optimizer, SparseState(model.named_parameters(), **options)
    BEFORE["differing"] = net, differing
    BEFORE["said"] = {
        "comm": said_by(lambda: differing.comm),
        "step": said_by(lambda: sparse_hook(differing, None)),
        "load": said_by(lambda: differing.load_state_dict(differing.state_dict())),
        "mistake": said_by(lambda: SparseState(net.named_parameters(), density=1.5)) if rank == 1 else "",
    }
    assert differing.residuals() == {}


@check(DDP, {name: some(name=name) for name in LATE})
def a_state_older_than_the_process_group_changes_no_bit(ground: Ground, name: str) -> None:
    """The ranks meet in the first pass, in a closure."""
    straight, late = ground(optimizer=name).steps(STEPS), ground(optimizer=name)
    late.net, late.optimizer, late.verbs = BEFORE["late"][name]
    late.wrap()
    for number, call in enumerate(CLOSURES):
        late.do(number, call)
    assert np.array_equal(straight.weights(), late.weights())


@check(DDP)
def a_state_older_than_the_process_group_says_what_it_lacks(ground: Ground) -> None:
    said, (net, differing) = BEFORE["said"], BEFORE["differing"]
    assert said["comm"].startswith("RuntimeError: comm must be known, but the state was made before the process")
    for call in ("step", "load"):
        assert said[call].startswith("RuntimeError: torch.distributed must be initialised first"), said[call]
    assert said["mistake"].startswith("ValueError: density must be in (0, 1], got 1.5" if ground.comm.rank == 1 else "")
    model = DistributedDataParallel(net)
    model.register_comm_hook(differing, sparse_hook)
    words = ground.refused(lambda: model(torch.ones(5, 3)).sum().backward())
    assert re.match("(?s)ValueError: all ranks must call with the same arguments, but.*density=0.12", words)


def mistakes(ground: Ground) -> dict[str, tuple[Callable[[], object], str]]:
    """What is done, and what the error says, by mistake."""
    pairs, there = list(Net().named_parameters()), ground.comm.rank == 1
    parameters, saved = [p for _, p in pairs], ground().verbs.state_dict()
    adamw, sgd = AdamW(parameters), SGD(parameters, lr=0.1, momentum=0.9)
    zero = ZeroRedundancyOptimizer(parameters, optimizer_class=SGD, lr=0.1)

    def of_another_model() -> None:
        trainee = ground()
        trainee.verbs._names.popitem()
        trainee.steps([0])

    def skips_a_step() -> None:
        """The last rank alone leaves out a step."""
        trainee = ground(optimizer="momentum").steps([0])
        for number in (1, 2):
            for call in (Call("zero_grad", True), WHOLE):
                trainee.do(number, call)
            if number == 2 or ground.comm.rank < ground.comm.size - 1:
                trainee.step()

    def of_another_order() -> None:
        net = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in ("ba" if there else "ab")})
        model = DistributedDataParallel(net)
        model.register_comm_hook(SparseState(net.named_parameters()), sparse_hook)
        net.forward = lambda x: net["b"](net["a"](x))
        model(torch.ones(2, 3)).sum().backward()

    same = "(?s)ValueError: all ranks must call with the same .*"
    complex_net = torch.nn.Linear(4, 2, dtype=torch.complex64)
    return {
        "of another model": (
            of_another_model,
            r"ValueError: named_parameters must have every parameter .* lacks a torch float32 \(2,\)",
        ),
        "of another order": (of_another_order, same + r"names=\('b.weight', "),
        "complex": (
            lambda: SparseState(complex_net.named_parameters()),
            "TypeError: named_parameters: weight must be of dtype float32.*got complex64",
        ),
        "one scaler": (
            lambda: SparseState(pairs, scaler=torch.amp.GradScaler("cpu") if there else None),
            same + "scaled=True",
        ),
        "one optimizer": (lambda: SparseState(pairs, optimizer=sgd if there else None), same + "GlobalMomentum"),
        "zero": (
            lambda: SparseState(pairs, optimizer=zero),
            "TypeError: optimizer must be the one that steps, got ZeroRedundancyOptimizer around .* pass .optim",
        ),
        "nothing can travel": (
            lambda: SparseState(pairs, optimizer=adamw, algorithm="oktopk", momentum="second-moment"),
            "ValueError: algorithm must carry second moments with momentum='second-moment', got",
        ),
        "copy": (
            lambda: sparse_hook(copy.deepcopy(SparseState(pairs, optimizer=sgd)), None),
            "RuntimeError: state must know the optimizer .* load the copy's state_dict",
        ),
        "state": (
            lambda: SparseState(pairs).load_state_dict({}),
            r"ValueError: state must have 'form', got \[\]; one that was written by sparse_mpi 0.2",
        ),
        "names": (
            lambda: SparseState(pairs).load_state_dict(saved | {"owed": {"0.weights": {}}}),
            "ValueError: state must have each of this model's parameters at most once, got '0.weights'",
        ),
        "one rank skips a step": (
            skips_a_step,
            "(?s).*backward must reduce once before a step with momentum='matched'",
        ),
    }


MISTAKES["ddp"] = mistakes


def join(store: Any, rank: int, size: int) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(store), size), rank=rank, world_size=size)


def among_the_ranks_of_mpi(folder: Any) -> None:
    """Be refused in a group whose ranks are turned around, and then join one whose ranks are MPI's."""
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    join(folder / "turned", size - 1 - rank, size)
    said = said_by(lambda: SparseState(torch.nn.Linear(3, 2).named_parameters()))
    words = "comm must have the ranks of the process group, got rank {} of 3 where that has rank {}".format
    if rank == 1:
        assert said.startswith("ValueError: all ranks must call with the same arguments"), said
    else:
        assert words(rank, size - 1 - rank) in said and "initialise it with the rank and size of MPI.COMM" in said, said
    dist.destroy_process_group()
    join(folder / "store", rank, size)


def of_torch(trainee: Trainee, folder: Path | None = None) -> dict[str, TrainingState]:
    optimizer = None if isinstance(trainee, Local) else trainee.optimizer
    return {"training": TrainingState(trainee.net, optimizer, trainee.verbs, folder and str(folder))}


KEPT = [(door, kind) for kind in ("momentum", "adamw") for door in ("optimizer", "ddp", "local")]


@check(
    DDP,
    {f"{door} {kind}": some(door=door, optimizer=kind) for door, kind in KEPT}
    | {"elect": some(door="ddp", optimizer="adamw", algorithm="elect")},
)
def checkpoints_of_torch_are_equal_to_our_own(ground: Ground, door: str, **how: Any) -> None:
    """On the same ranks to the bit; on fewer as by the door's own verbs."""
    (folder := ground.folder / f"torch {door} {how}").mkdir(exist_ok=True)
    straight = ground(door=door, **how).steps(range(5))
    straight.zero_grad(True)
    checkpoint.save(of_torch(straight), checkpoint_id=folder / "torch")
    straight.save(folder)

    def loaded(given: Any, ours: bool) -> Trainee:
        new = ground(given, door, **how)
        with torch.no_grad():
            for parameter in new.parameters:
                parameter.add_(1.0)
        if ours:
            new.load(folder, ground.comm.size)
        else:
            state = of_torch(new, folder / "torch")
            checkpoint.load(state, checkpoint_id=folder / "torch", process_group=given)
        return new

    for ranks in (ground.comm.size, ground.comm.size - 1):
        given = dist.new_group(range(ranks))
        if ground.comm.rank < ranks:
            ends = [loaded(given, ours).steps(range(5, 9)) for ours in (True, False)]
            ends += [straight.steps(range(5, 9))] if ranks == ground.comm.size else []
            assert all(np.array_equal(end.weights(), ends[0].weights()) for end in ends)
            assert all(np.array_equal(end.owed(), ends[0].owed()) for end in ends)
