"""Drawn programs of calls: equal weights on all ranks, torch's where everything is sent, or one error on all.

A program that fails is printed as Python; put it into `KNOWN`, or `KNOWN_JOBS`.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sparse_mpi import World
from sparse_mpi.comm import Comm
from sparse_mpi.optim import DistributedOptimizer

from ..launch import launch
from ..prefork import torchrun
from .sequences import MODES, Call, Program, Seen, Trainee, Verdict, judge, run, same, stuck

torch.set_num_threads(1)
SMALL = 1.5e-4  # MB: a bucket for each layer
CHANGES = ("in place", "data", "replace", "none", "zeros")  # of gradients
EACH, RANKS = 100, 3  # programs of a job, at most, and its processes
NUMBERS = {"fast": 20, "wide": 2000, "all": 2000}  # of programs
END = (Call("zero_grad", True), Call("backward", 0), Call("step"), Call("update")) * 2  # all ranks reduce once more
OVERFLOW = (Call("overflow", 0), Call("step"), Call("update"))
# Programs that were drawn once, of which a rank alone, or all, trained otherwise
KNOWN = {
    "each rank steps along its own": Program((Call("backward", 0), Call("skip"), *END)),
    "no gradients behind an overflow": Program(
        (*OVERFLOW, Call("zero_grad", False), Call("step"), Call("update"), *END), 1, "decay", scaled=True
    ),
    "parameters come when other ranks have begun": Program(
        (
            *(Call("backward", 0, 0), Call("zero_grad", True)),
            *(Call("backward", 0), Call("step"), Call("zero_grad", True)) * 3,
            *(Call("add_group"), *END),
        ),
        3,
        density=0.1,
        schedule=1,
    ),
    "a scaled step without gradients of a rank": Program(
        (Call("backward", 0), Call("zero_grad", True, 0), Call("step"), Call("update"), *END), 3, scaled=True
    ),
    "an overflow of a rank that is cleared": Program(
        (Call("overflow", 1), Call("unscale"), Call("zero_grad", True), Call("backward", 0), Call("step"), *END),
        2,
        "nesterov",
        density=0.1,
        algorithm="oktopk",
        scaled=True,
    ),
}
WHOLE, FIRST, STEP = Call("backward", 0), Call("backward", 1), Call("step")  # passes by what they use
NONE, ZEROS = Call("zero_grad", True), Call("zero_grad", False)
KNOWN["copies and a load"] = Program(
    (WHOLE, STEP, Call("copy", "copy"), Call("copy", "pickle"), Call("reload"), NONE, *END), 3, "momentum", density=0.1
)
# Loops as people write them
LOOPS = {
    "plain": (NONE, WHOLE, STEP) * 4,
    "zeros": (ZEROS, WHOLE, STEP) * 4,
    "closure": (Call("closure", 0),) * 4,
    "two losses": (NONE, WHOLE, FIRST, STEP) * 4,
    "uneven passes": (NONE, WHOLE, STEP, NONE, WHOLE, WHOLE, WHOLE, STEP) * 2,
    "clipped": (NONE, WHOLE, Call("clip", 0.05), STEP) * 4,
    **{how: (NONE, WHOLE, Call("change", how), STEP) * 4 for how in ("data", "replace")},
    "another pass": (NONE, WHOLE, NONE, WHOLE, STEP) * 4,
    "left out": (NONE, WHOLE, STEP, NONE, WHOLE, NONE, STEP) * 2,
}
KNOWN_JOBS = {
    "ddp": [
        # unscale_ before the pass: the scaler leaves the scale in
        Program((WHOLE, STEP, Call("update"), Call("unscale"), ZEROS, WHOLE, STEP, *END), 3, "nesterov", scaled=True),
        # Layers that no rank uses: their momentum waits without a gradient, and goes on where that is zero
        *(
            Program((WHOLE, STEP, z, FIRST, STEP, NONE, WHOLE, STEP, *END), 3, "momentum", how)
            for z in (NONE, ZEROS)
            for how in (None, "corrected")
        ),
        Program((WHOLE, STEP, Call("clip", 0.05, 0), ZEROS, FIRST, STEP, *END), 3, "decay", "global", 0.1),
        # A flush behind an overflow in the first step, when nothing was reduced
        Program((*OVERFLOW[:1], Call("flush"), *OVERFLOW[1:], *END), 3, density=0.1, scaled=True),
        # A frozen layer, along whose zeros torch's momentum would go on
        Program((WHOLE, STEP, Call("freeze", 1), ZEROS, WHOLE, STEP, *END), 3, "momentum"),
        # A step behind a pass without reduction
        Program((WHOLE, STEP, Call("unreduced", 1), STEP, *END), 3, density=0.1, algorithm="oktopk"),
    ],
    "fsdp": [
        Program((WHOLE, Call("change", "in place", 2), STEP, *END), 3, "momentum", density=0.1),
        # One rank flushes where the others reduce
        Program((FIRST, NONE, Call("freeze", 0, 0), FIRST, STEP, Call("flush"), *END), 3, "adam", density=0.1),
    ],
}


class Wrapped(Trainee):
    """A rank whose optimizer steps along the gradients of all."""

    def __init__(self, program: Program, comm: Comm) -> None:
        self.comm = comm
        super().__init__(program, comm.rank)

    def distribute(self) -> None:
        program = self.program
        DistributedOptimizer(
            self.optimizer,
            self.net.named_parameters(),
            comm=self.comm,
            density=program.density,
            algorithm=program.algorithm,
            momentum=program.momentum,
            overlap=program.overlap,
            backward_passes_per_step=program.passes,
            bucket_cap_mb=SMALL,
            scaler=self.scaler if program.scaled else None,
        )

    def synchronize(self, _: None) -> None:
        self.optimizer.synchronize()

    def skip(self, _: None) -> None:
        with self.optimizer.skip_synchronize():
            self.step()

    def flush(self, _: None = None) -> None:
        self.optimizer.flush()

    def reload(self, _: None) -> None:
        super().reload(_)
        self.optimizer.reduction.load_state_dict(copy.deepcopy(self.optimizer.reduction.state_dict()))


def seen_by_optimizer(program: Program) -> list[Seen]:
    world = World(program.ranks, schedule=program.schedule)
    return world.run(lambda comm: run(lambda: Wrapped(program, comm), program))


def by_optimizer(program: Program) -> Verdict:
    try:
        seen = seen_by_optimizer(program)
    except RuntimeError as error:  # no rank could go on, or they were in different calls
        return stuck(program, str(error))
    return judge(program, seen)


@st.composite
def programs(draw: Any, door: str = "optimizer", sizes: tuple[int, ...] = (1, 2, 3)) -> Program:
    """Programs of a door: steps as people take them, and among them any other call."""
    ranks = draw(st.sampled_from(sizes))
    optimizer = draw(st.sampled_from(list(MODES)))
    momentum = draw(st.sampled_from(MODES[optimizer]))
    carries = momentum == "second-moment"
    scaled = door != "fsdp" and draw(st.integers(0, 3)) == 3
    which, layer, how = st.integers(0, 1), st.integers(0, 2), st.sampled_from(CHANGES)
    alone = st.one_of(*[st.none()] * 3, *([st.integers(0, ranks - 1)] if ranks > 1 else []))

    def call(name: str, value: Any = None, on: Any = None) -> st.SearchStrategy:
        values = [x if isinstance(x, st.SearchStrategy) else st.just(x) for x in (value, on)]
        return st.builds(Call, st.just(name), *values)

    zero, step = call("zero_grad", st.booleans(), alone), call("step")
    others = [zero, step, call("backward", which), call("clip", st.just(0.05), alone), call("change", how, alone)]
    others += [call("rate"), call("reload"), call("copy", st.sampled_from(["copy", "pickle"]))]
    others += [call("freeze", layer, alone), call("unfreeze", layer, alone), call("flush")]
    if door == "optimizer":
        others += [call("synchronize"), call("skip"), call("add_group"), call("backward", which, alone)]
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
    density = draw(st.sampled_from([1.0, 0.1]))
    return Program(
        calls=(*(one for phrase in phrases for one in phrase), *END),
        ranks=ranks,
        optimizer=optimizer,
        momentum=momentum,
        density=density,
        algorithm="elect" if carries else draw(st.sampled_from(["topka", "elect", "oktopk"])),
        overlap=door != "optimizer" or draw(st.booleans()),
        passes=1 if door != "optimizer" else draw(st.sampled_from([1, 1, 2])),
        scaled=scaled,
        door=door,
        schedule=draw(st.one_of(st.none(), st.integers(0, 3))) if door == "optimizer" else None,
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


def test_programs_with_an_optimizer(number: int) -> None:
    fates: Counter[str] = Counter()

    @settings(max_examples=number, suppress_health_check=list(HealthCheck))
    @given(programs())
    def hold(program: Program) -> None:
        verdict = by_optimizer(program)
        fates[verdict.fate] += 1
        assert verdict.problem is None, f"{verdict.problem}: {program}"

    hold()
    # Most programs train, and many are refused
    assert fates["trained"] > number // 4 and fates["refused"] > number // 20, fates


@pytest.mark.parametrize("name", KNOWN)
def test_programs_that_went_wrong_once(name: str) -> None:
    assert by_optimizer(KNOWN[name]).problem is None


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_trains_as_in_torch_and_overlap_changes_no_bit(loop: str, optimizer: str) -> None:
    """Torch's weights where everything is sent; reductions begin early only where nothing comes behind them."""
    program = Program(LOOPS[loop], 3, optimizer)
    assert by_optimizer(program) == Verdict(None, "trained")
    soon, late = (seen_by_optimizer(program._replace(density=0.1, overlap=overlap)) for overlap in (True, False))
    for one in (*soon, *late):
        assert one.error is None and all(map(same, one.weights, soon[0].weights))


@pytest.mark.parametrize("optimizer", ["momentum", "fused"])
@pytest.mark.parametrize("calls", ["", "unscale", "synchronize", "synchronize unscale", "unscale synchronize"])
def test_a_loss_scaler_trains_in_any_order_and_skips_on_all_ranks(calls: str, optimizer: str) -> None:
    """A gradient of the last rank overflows once: all leave that step out, as torch with the mean does."""
    rest = (*map(Call, calls.split()), STEP, Call("update"), NONE)
    program = Program((WHOLE, *rest, Call("overflow", 2), *rest, WHOLE, *rest), 3, optimizer, scaled=True)
    for density in (1.0, 0.1):
        assert by_optimizer(program._replace(density=density)) == Verdict(None, "trained")


def drawn(door: str, ranks: int, number: int) -> list[Program]:
    found: list[Program] = []

    @settings(max_examples=number, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(programs(door, (ranks,)))
    def take(program: Program) -> None:
        found.append(program)

    take()
    return found


def job(folder: Path, ranks: int, some: list[Program], seconds: float = 240) -> list[Verdict]:
    """Judge what the processes of a job have seen of ``some`` programs."""
    (folder / "programs").write_text(repr(some))
    program = ("tests/training/sequences_job.py", str(folder))
    done = launch(None, *torchrun(ranks, *program), seconds=seconds, OMP_NUM_THREADS="1")
    at = [file.read_text() for file in sorted(folder.glob("at-*"))]
    assert done.returncode == 0, f"the job ended in {at}: {done.stderr[-3000:]}"
    seen = [torch.load(folder / f"seen-{rank}.pt", weights_only=False) for rank in range(ranks)]
    return [judge(program, [Seen(*row) for row in rows]) for program, *rows in zip(some, *seen, strict=True)]


@pytest.mark.jobs
def test_programs_with_process_groups(tmp_path: Path, number: int) -> None:
    some = [known._replace(door=door) for door, programs in KNOWN_JOBS.items() for known in programs]
    some += [program for door in KNOWN_JOBS for program in drawn(door, RANKS, number // 5)]
    verdicts = []
    for first in range(0, len(some), EACH):
        (folder := tmp_path / str(first)).mkdir()
        verdicts += job(folder, RANKS, some[first : first + EACH])
    wrong = [f"{v.problem}: {p}" for p, v in zip(some, verdicts, strict=True) if v.problem is not None]
    assert not wrong, "\n".join(wrong)
