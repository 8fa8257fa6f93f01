"""Take turns: algorithms make their steps one after another, so that a busy machine is busy for all algorithms."""

from __future__ import annotations

import resource
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter, process_time
from typing import TypeVar

import numpy as np

from sparse_mpi.arrays import Array, namespace, synchronize_device
from sparse_mpi.checks import present
from sparse_mpi.cli.progress import Bar
from sparse_mpi.comm import Comm
from sparse_mpi.comm.forwarding import ForwardingComm
from sparse_mpi.fault_tolerance import ElasticAllreduce
from sparse_mpi.predict.ways import BASELINE
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.sparse import Layout
from sparse_mpi_bench.break_even import Cost
from sparse_mpi_bench.candidates import TEAM, Candidate

T = TypeVar("T")

MIN_STEPS = 3  # steps of a candidate that count, however long they take
FIELDS = (
    *("step", "select", "exchange", "merge", "processor"),
    *("sent", "received", "control", "messages", "selected", "total"),
)


class ProcessorTime(ForwardingComm):
    """A `Comm` that counts the processor time outside its calls: the time on cores of the ranks' own."""

    def __init__(self, comm: Comm, whole: ProcessorTime | None = None) -> None:
        super().__init__(comm)
        self._whole = whole or self  # time between calls of a part counts there
        self._computing, self._since = 0.0, process_time()  # seconds up to the last call, which ended then

    def _around(self, call: Callable[[], T]) -> T:
        self._whole._computing = self.elapsed()
        try:
            return call()
        finally:
            self._whole._since = process_time()

    def split(self, color: int) -> ProcessorTime:
        return ProcessorTime(super().split(color), self._whole)

    def elapsed(self) -> float:
        return self._whole._computing + process_time() - self._whole._since


def batches(entered: Sequence[Candidate], size: int) -> list[list[Candidate]]:
    baseline, *others = entered
    return [[baseline, *others[at : at + size]] for at in range(0, len(others), size)] or [[baseline]]


def take_turns(
    entered: Sequence[Candidate], layout: Layout, rules: Namespace, base: Array, comm: Comm, bar: Bar
) -> dict[str, np.ndarray]:
    """Return ``(P, steps, len(FIELDS))`` of every candidate, by name. Raises ValueError: no team can survive."""
    clock = ProcessorTime(comm)
    common = {"density": rules.density}
    reducers: dict[str, SparseAllreduce] = {}
    for each in entered:
        # A plain sum leaves nothing to remember, and would pay for a residual of zeros in every step
        feedback = "none" if each == Candidate(BASELINE) else "residual"
        made = {"algorithm": each.make(), **common}
        reducers[each.name] = SparseAllreduce(layout, comm=clock, feedback=feedback, **made)
        if rules.copy_every is not None and each != Candidate(BASELINE):
            own, often = comm.duplicate(), rules.copy_every
            reducers[each.name + TEAM] = ElasticAllreduce(layout, comm=own, copy_every=often, **made)
    samples: dict[str, list[list[float]]] = {name: [] for name in reducers}
    spent = dict.fromkeys(reducers, 0.0)
    for number, gradient in enumerate(shifted(base, rules.seed, rules.warmup + rules.steps)):
        few = number - rules.warmup < min(MIN_STEPS, rules.steps)
        running = [name for name in reducers if few or spent[name] < rules.seconds]
        if not running:
            break
        what = f"step {number + 1 - rules.warmup} of {rules.steps}" if number >= rules.warmup else "warm-up"
        bar.say(f"{what}, candidates: {len(running)}")
        for name in np.random.default_rng([rules.seed, number]).permutation(running):  # none always follows another
            synchronize_device(gradient)
            comm.barrier()
            samples[name].append(_step(reducers[name], gradient, clock))
        longest = comm.allreduce(np.array([samples[name][-1][0] for name in running]), "max", control=True)
        for name, seconds in zip(running, longest.tolist(), strict=True):
            spent[name] += seconds
        bar.update()
    return {
        name: np.asarray(comm.allgather(np.array(rows[rules.warmup :]), control=True)) for name, rows in samples.items()
    }


def shifted(base: Array, seed: int, steps: int) -> Iterator[Array]:
    """Yield ``base`` ``(n,)``, shifted by a random distance from step to step, the same on all ranks."""
    for shift in np.random.default_rng(seed).integers(0, len(base), steps):
        yield namespace(base).roll(base, shift)


def _step(reducer: SparseAllreduce, gradient: Array, clock: ProcessorTime) -> list[float]:
    start, computed = perf_counter(), clock.elapsed()
    reducer.step(gradient)
    synchronize_device(gradient)
    seconds, processor = perf_counter() - start, clock.elapsed() - computed
    report = present(reducer.report, "a step was made")
    traffic = report.traffic
    phases = [report.select_seconds, report.exchange_seconds, report.merge_seconds]
    counted = [traffic.sent, traffic.received, traffic.control, traffic.messages]
    return [seconds, *phases, processor, *counted, report.selected, report.total]


def slowest(samples: np.ndarray) -> np.ndarray:
    return samples[:, :, FIELDS.index("step")].max(0)


def summarise(samples: np.ndarray) -> dict[str, float]:
    """Return medians over the steps of the slowest rank's times, ``exchange`` of the one that waits least.

    ``bytes`` are of the direction that carries more. Counts are means over the steps, of the rank with most.
    """
    of = dict(zip(FIELDS, np.moveaxis(samples, 2, 0), strict=True))
    of["compute"] = of["select"] + of["merge"]
    of["bytes"] = np.maximum(of["sent"], of["received"]) + of["control"]
    of["sent"] = of["sent"] + of["control"]
    found = {name: float(np.median(of[name].max(0))) for name in ("step", "select", "merge", "compute", "processor")}
    found["exchange"] = float(np.median(of["exchange"].min(0)))
    means = ("bytes", "sent", "messages", "control", "selected", "total")
    return found | {name: float(of[name].mean(1).max()) for name in means}


def cost(summary: dict[str, float], alone: bool = False) -> Cost:
    """Return the cost of a step by its `summarise`; ``alone``: with a core for each rank."""
    return Cost(summary["processor" if alone else "compute"], summary["messages"], summary["bytes"])


def peak_memory(comm: Comm) -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    most = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(comm.allreduce(np.array([most], np.int64), control=True)[0])
