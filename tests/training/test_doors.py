"""Four doors of training, `check_door`: the same laws, and programs of calls as in torch or refused on all ranks.

A program that fails is printed as Python; put it into `KNOWN`.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sparse_mpi import World

from ..launch import launch, needs_mpi
from ..prefork import copied, torchrun
from . import ddp_checks, fsdp_checks  # noqa: F401  whose checks are among those of their doors
from .calls import MODES, WHOLE, Call, Program
from .check_door import Ground, checks
from .doors import DOORS
from .orders import COPIED, END, HOOKS, KNOWN, LOOPS, NONE, REFUSED, SCALERS, STEP, TAKEN, UPDATE
from .programs import Seen, Verdict, judge, run, same, stuck

IN_PROCESS = ("optimizer", "local")
RANKS = {"optimizer": 3, "local": 3, "ddp": 3, "fsdp": 4}
CHANGES = ("in place", "data", "replace", "none", "zeros")  # of gradients
EACH = 120  # programs of a job, at most
LONG = 1500  # seconds of all programs of the wide tier
# Of algorithms in the background, one with each schedule
BACKGROUND = ("elect in the background", "gtopk in the background", "topka in the background")
VARIANT = pytest.mark.full("a variant")
NUMBERS = {"fast": 24, "wide": 2000, "all": 2000}  # of programs of a door; a third where they need processes


def seen_in_process(program: Program) -> list[Seen]:
    world = World(program.ranks, schedule=program.schedule)
    return world.run(lambda comm: run(lambda: DOORS[program.door](program, comm), program))


def in_process(program: Program) -> Verdict:
    try:
        seen = seen_in_process(program)
    except RuntimeError as error:  # no rank could go on, or they were in different calls
        return stuck(program, str(error))
    return judge(program, seen)


@st.composite
def programs(draw: Any, door: str = "optimizer", sizes: tuple[int, ...] = (1, 2, 3)) -> Program:
    """Programs of a door: steps as people take them, and among them any other call."""
    ranks = draw(st.sampled_from(sizes))
    optimizer = draw(st.sampled_from(list(MODES)))
    momentum = draw(st.sampled_from(MODES[optimizer])) if door != "local" else None
    carries = momentum == "second-moment"
    scaled = door in ("optimizer", "ddp") and draw(st.integers(0, 3)) == 3
    # DDP itself waits for ever where some ranks have no gradient at all, of a first layer that is frozen
    which, layer, how = st.integers(0, 1), st.integers(int(door == "ddp"), 2), st.sampled_from(CHANGES)
    # Behind a pass of DDP torch's own scaler raises on the one rank that has cleared its gradients
    parts = ranks > 1 and not (scaled and door == "ddp")
    alone = st.one_of(*[st.none()] * 3, *([st.integers(0, ranks - 1)] if parts else []))

    def call(name: str, value: Any = None, on: Any = None) -> st.SearchStrategy:
        values = [x if isinstance(x, st.SearchStrategy) else st.just(x) for x in (value, on)]
        return st.builds(Call, st.just(name), *values)

    zero, step = call("zero_grad", st.booleans(), alone), call("step")
    others = [zero, step, call("backward", which), call("clip", st.just(0.05), alone), call("change", how, alone)]
    others += [call("rate"), call("reload"), call("copy", st.sampled_from(["copy", "pickle"])), call("some")]
    others += [call("freeze", layer, alone), call("unfreeze", layer, alone), call("flush")]
    if door in IN_PROCESS:
        others += [call("synchronize"), call("backward", which, alone)]
        others += [call("skip"), call("add_group")] if door == "optimizer" else []
    else:
        others += [call("unreduced", which)]
    if scaled:
        overflow = call("overflow", st.integers(0, ranks - 1))
        others += [call("unscale"), call("update"), overflow]
    else:
        others += [call("closure", which), call("bare_step")]
    any_call = st.one_of(others)
    pieces = [call("zero_grad", st.booleans()), call("backward", which), step, *([call("update")] if scaled else [])]
    if scaled:
        pieces[1] = st.one_of(pieces[1], pieces[1], overflow)
    plain = st.tuples(*pieces)
    # A step into which something else has come
    odd = st.builds(
        lambda calls, one, at: (*calls[:at], one, *calls[at:]), plain, any_call, st.integers(0, len(pieces))
    )
    phrases = draw(st.lists(st.one_of(plain, odd, odd, st.tuples(any_call)), min_size=1, max_size=7))
    return Program(
        calls=(*(one for phrase in phrases for one in phrase), *END),
        ranks=ranks,
        optimizer=optimizer,
        momentum=momentum,
        density=draw(st.sampled_from([1.0, 0.1])),
        algorithm="elect" if carries else draw(st.sampled_from(["topka", "elect", "oktopk"])),
        overlap=door != "optimizer" or draw(st.booleans()),
        passes=1 if door != "optimizer" else draw(st.sampled_from([1, 1, 2])),
        scaled=scaled,
        door=door,
        schedule=draw(st.one_of(st.none(), st.integers(0, 3))) if door in IN_PROCESS else None,
        every=draw(st.integers(1, 3)) if door == "local" else 1,
        outer=draw(st.sampled_from(["one", "outer"])) if door == "local" else "one",
    )


@pytest.fixture
def number(request: pytest.FixtureRequest) -> int:
    return NUMBERS[request.config.getoption("--tier")]


@pytest.fixture(autouse=True)
def quiet():
    """Schedules warn where a program does not step before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(
    ("door", "law"),
    [
        pytest.param(door, law, marks=[] if law.endswith(BACKGROUND) or "background" not in law else VARIANT)
        for door in IN_PROCESS
        for law in checks(door)
    ],
)
def test_laws(door: str, law: str, tmp_path: Path) -> None:
    for ranks in (1, RANKS[door]):
        (folder := tmp_path / str(ranks)).mkdir()
        World(ranks).run(lambda comm, folder=folder: checks(door)[law](Ground(door, comm, folder)))


@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("door", IN_PROCESS)
def test_drawn_programs(door: str, number: int) -> None:
    fates: Counter[str] = Counter()

    @settings(max_examples=number, suppress_health_check=list(HealthCheck))
    @given(programs(door))
    def hold(program: Program) -> None:
        verdict = in_process(program)
        fates[verdict.fate] += 1
        assert verdict.problem is None, f"{verdict.problem}: {program}"

    hold()
    # Most programs train, and many are refused
    assert fates["trained"] > number // 4, fates
    assert door == "local" or fates["refused"] > number // 20, fates


@pytest.mark.parametrize(("door", "at"), [(door, at) for door in IN_PROCESS for at in range(len(KNOWN[door]))])
def test_programs_that_went_wrong_once(door: str, at: int) -> None:
    assert in_process(KNOWN[door][at]._replace(door=door)).problem is None


def refused(verdict: Verdict, seen: Iterable[Seen], words: str) -> bool:
    return verdict == Verdict(None, "refused") and all(re.search(words, str(one.error), re.DOTALL) for one in seen)


@pytest.mark.parametrize(
    ("door", "name"), [(door, name) for name, (doors, *_) in REFUSED.items() for door in doors if door in IN_PROCESS]
)
def test_an_order_of_calls_that_is_none_is_refused_in_these_words(door: str, name: str) -> None:
    _, program, words = REFUSED[name]
    program = program._replace(door=door)
    seen = seen_in_process(program)
    assert refused(judge(program, seen), seen, words), seen


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_trains_as_in_torch_and_overlap_changes_no_bit(loop: str, optimizer: str) -> None:
    """Torch's weights where everything is sent; reductions begin early only where nothing comes behind them."""
    program = Program(LOOPS[loop], 3, optimizer)
    assert in_process(program) == Verdict(None, "trained")
    soon, late = (seen_in_process(program._replace(density=0.1, overlap=overlap)) for overlap in (True, False))
    for one in (*soon, *late):
        assert one.error is None and all(map(same, one.weights, soon[0].weights))


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam"])
@pytest.mark.parametrize("loop", LOOPS)
def test_local_steps_are_diloco(loop: str, optimizer: str) -> None:
    """Where everything is sent, after each step, or every third."""
    for every in (1, 3):
        program = Program(LOOPS[loop] * 2, 3, optimizer, door="local", every=every, outer="outer")
        assert in_process(program) == Verdict(None, "trained")


@pytest.mark.parametrize("optimizer", ["momentum", "fused"])
@pytest.mark.parametrize("calls", SCALERS)
def test_a_loss_scaler_trains_in_any_order_and_skips_on_all_ranks(calls: str, optimizer: str) -> None:
    """A gradient of the last rank overflows once: all leave that step out, as torch with the mean does."""
    rest = (*map(Call, calls.split()), STEP, UPDATE, NONE)
    program = Program((WHOLE, *rest, Call("overflow", 2), *rest, WHOLE, *rest), 3, optimizer, scaled=True)
    for density in (1.0, 0.1):
        assert in_process(program._replace(density=density)) == Verdict(None, "trained")


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_tables_train_as_in_torch(optimizer: str) -> None:
    for loop in ("plain", "closure", "left out", "uneven passes"):
        assert in_process(Program(LOOPS[loop], 3, optimizer, net="tables")) == Verdict(None, "trained")


def drawn(door: str, number: int) -> list[Program]:
    found: list[Program] = []

    @settings(max_examples=number, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(programs(door, (RANKS[door],)))
    def take(program: Program) -> None:
        found.append(program)

    take()
    return found


class Job(NamedTuple):
    """What the processes of a job said.

    Attributes:
        said: what is wrong, by check, of each rank.
        seen: of each program, by each rank.
    """

    said: list[dict[str, str]]
    seen: list[list[Seen]]


def job(folder: Path, door: str, names: Iterable[str], some: list[Program], mpi: bool = False) -> Job:
    """Have processes go through the checks of these names, and through programs."""
    (folder / "programs").write_text(repr(some))
    program = ("-m", "tests.training.door_job", str(folder), door, *names)
    start = (RANKS[door], *copied(*program)) if mpi else (None, *torchrun(RANKS[door], *program))
    done = launch(*start, seconds=280, OMP_NUM_THREADS="1")
    at = [file.read_text() for file in sorted(folder.glob("at-*"))]
    assert done.returncode == 0, f"the job ended in {at}: {done.stderr[-3000:]}"
    files = [torch.load(folder / f"said-{rank}.pt", weights_only=False) for rank in range(RANKS[door])]
    seen = [[Seen(*row) for row in rows] for rows in zip(*(seen for _, seen in files), strict=True)]
    return Job([said for said, _ in files], seen)


def written(door: str, fast: bool) -> dict[str, Program]:
    """Return the programs of a door that are no drawn ones, by name; ``fast`` leaves variants of FSDP2 out."""
    ranks, few = RANKS[door], fast and door == "fsdp"
    some = {f"known {at}": program for at, program in enumerate(KNOWN[door])}
    some |= {f"{name} sgd": Program(loop, ranks) for name, loop in LOOPS.items()}
    taken = ("nesterov", "adamw", *(["fused"] if door == "ddp" else []))  # of DTensors torch has no fused kernels
    some |= {f"{name} {o}": Program(LOOPS[name], ranks, o) for name in TAKEN[: 1 if few else None] for o in taken}
    some |= {name: program._replace(ranks=ranks) for name, (doors, program, _) in REFUSED.items() if door in doors}
    if door == "fsdp":
        del some[f"{COPIED} sgd"]
        layouts: dict[str, dict[str, Any]] = {"shards": {"shards": 2}, "roots": {"wrap": {"roots": True}}}
        layouts["joined"] = {"shards": 2, "wrap": {"joined": 1e9}}
        loops = ("a layer that some leave out", "adamw"), ("plain", "momentum"), ("clipped", "sgd")
        for layout, how in layouts.items():
            for loop, o in loops[: 1 if few else None]:
                some[f"{loop} {o} {layout}"] = Program(LOOPS[loop], ranks, o, **how)
    else:
        some["tables"] = Program(LOOPS["plain"], ranks, "adagrad", net="tables")
        calls = (WHOLE, Call("unscale"), STEP, UPDATE, NONE, Call("overflow", 2), Call("unscale"), STEP, UPDATE, NONE)
        some |= {f"scaled {o}": Program(calls * 2, ranks, o, scaled=True) for o in ("sgd", "fused", "adamw")}
    return {name: program._replace(door=door) for name, program in some.items()}


def laws_of_a_job(door: str) -> dict[str, bool]:
    """Tell of each check whether it is in every job: the first variant of a law is. Doors in process have all."""
    names = [law for law in checks(door) if (door, law) not in COMPILED]
    return {law: law.split(":")[0] not in {other.split(":")[0] for other in names[:at]} for at, law in enumerate(names)}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], Job]:
    """The jobs of the doors that have process groups: their checks and programs, of drawn ones the fast tier's."""
    fast = request.config.getoption("--tier") == "fast"

    @cache
    def begin(door: str) -> Job | str:
        try:
            return job(
                tmp_path_factory.mktemp(door),
                door,
                [law for law, always in laws_of_a_job(door).items() if always or not fast],
                [*written(door, fast).values(), *(drawn(door, NUMBERS["fast"] // 3) if fast else ())],
            )
        except (AssertionError, pytest.fail.Exception) as error:
            return str(error)

    def ended(door: str) -> Job:
        one = begin(door)
        return one if isinstance(one, Job) else pytest.fail(one)

    return ended


COMPILED = [(door, law) for door in HOOKS for law in checks(door) if "compiled" in law]


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("door", "law"),
    [
        pytest.param(door, law, marks=[] if always else VARIANT)
        for door in HOOKS
        for law, always in laws_of_a_job(door).items()
    ],
)
def test_laws_with_process_groups(begun: Callable[[str], Job], door: str, law: str) -> None:
    wrong = [f"rank {rank}: {said[law]}" for rank, said in enumerate(begun(door).said) if said[law]]
    assert not wrong, "\n".join(wrong)


@pytest.mark.jobs
@pytest.mark.parametrize("door", HOOKS)
def test_programs_with_process_groups(begun: Callable[[str], Job], door: str, number: int) -> None:
    """Loops train as in torch, and orders that are none are refused in these words."""
    wrong, programs = [], written(door, number == NUMBERS["fast"])
    for (name, program), seen in zip(programs.items(), begun(door).seen[: len(programs)], strict=True):
        verdict = judge(program, seen)
        if name in REFUSED:
            right = refused(verdict, seen, REFUSED[name][2])
        else:
            right = verdict.problem is None and (name.startswith("known") or verdict.fate == "trained")
        wrong += [] if right else [f"{name}: {verdict}, {[one.error for one in seen]}: {program}"]
    assert not wrong, "\n".join(wrong)


@pytest.mark.jobs
@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("door", HOOKS)
def test_drawn_programs_with_process_groups(
    begun: Callable[[str], Job], door: str, number: int, tmp_path: Path
) -> None:
    some, wrong = drawn(door, number // 3), []
    for first in range(0, len(some), EACH):
        part = some[first : first + EACH]
        if number == NUMBERS["fast"]:
            seen = begun(door).seen[-len(part) :]
        else:
            (folder := tmp_path / str(first)).mkdir()
            seen = job(folder, door, (), part).seen
        verdicts = [judge(*one) for one in zip(part, seen, strict=True)]
        wrong += [f"{v.problem}: {p}" for p, v in zip(part, verdicts, strict=True) if v.problem is not None]
    assert not wrong, "\n".join(wrong)


@pytest.mark.jobs
@pytest.mark.full("torch compiles")
@pytest.mark.parametrize(("door", "law"), COMPILED)
def test_compiled_models_train(door: str, law: str, tmp_path: Path) -> None:
    wrong = [said[law] for said in job(tmp_path, door, [law], []).said]
    assert not any(wrong), wrong


@pytest.mark.jobs
@pytest.mark.full("another start of the jobs, under MPI")
@needs_mpi
def test_the_ranks_of_a_group_are_those_of_mpi(tmp_path: Path) -> None:
    laws = [law for law in checks("ddp") if law.startswith("nothing is lost") or "same bits" in law]
    wrong = [said[law] for said in job(tmp_path, "ddp", laws, [], mpi=True).said for law in laws if said[law]]
    assert not wrong, wrong[0]
