"""Count an algorithm's messages on the P ranks of a `World`, and the energy that it removes from the summed gradient.

Algorithms with error feedback cannot be compared by one step: large residuals make the next steps easier. So all of
them start cold, and energies are measured from step `SETTLED` on, each against the best possible entries.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.algorithms.base import with_selectors
from sparse_mpi.arrays import Array
from sparse_mpi.checks import present
from sparse_mpi.monitor.step_report import StepReport
from sparse_mpi.monitor.watch import attainable
from sparse_mpi.select import Selector
from sparse_mpi.select.base import Wrapper
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi_bench.analysis.gradients import Gradients
from sparse_mpi_bench.analysis.recording import RecordedCall, Step, watched

WORD = 4  # bytes: the papers' unit
PAIR, VALUE = 8, 4  # bytes of an entry and of a value of fewer than 2^31 float32, as `Algorithm.bound` counts them
CHECKED = 16  # bytes of the consistency check with which every step begins
TOLERANCE = 1 + 1e-9  # room for rounding in formulas
SETTLED = 10  # steps from a cold start before the first whose energy counts


class Union(Wrapper):
    """Wraps the selector that all ranks of a `World` share; ``counts`` has each step's union of selections, counted."""

    def __init__(self, selector: Selector, size: int, ranks: int) -> None:
        super().__init__(selector)
        self.counts: list[int] = []
        self._covered = np.zeros(size, bool)
        self._ranks, self._made = ranks, 0

    def select(self, x: Array, k: int, state: Any, add: Array | None = None) -> tuple[SparseVector, Any]:
        selected, state = self.selector.select(x, k, state, add)
        self._covered[selected.indices] = True
        self._made += 1
        if self._made % self._ranks == 0:
            self.counts.append(int(np.count_nonzero(self._covered)))
            self._covered[:] = False
        return selected, state


def instrumented(algorithm: Algorithm, size: int, ranks: int) -> tuple[Union | None, Algorithm]:
    """Return the algorithm with its selector wrapped, and the `Union` that wraps it; None where it has no selector."""
    if algorithm.selector is None:
        return None, algorithm
    union = Union(algorithm.selector, size, ranks)
    return union, with_selectors(algorithm, lambda _: union)


@dataclass(frozen=True)
class Volume:
    """The counted traffic of one rank and step. Words are 4 bytes of payload; formulas include consistency checks."""

    algorithm: str
    ranks: int
    n: int
    k: int
    steps: int
    words: float  # mean over ranks and steps
    between: float  # part of these words for ranks on other nodes
    most_words: float
    control: float  # bytes, mean
    most_control: float
    messages: float  # maximum over ranks and steps, control included
    imbalance: float  # payload of the busiest rank over the mean, mean over the steps
    largest_step: float  # bytes of the step in which ranks send most, over the mean of all steps
    busiest: float  # bytes that one rank sends, or payload that it receives, in all steps, over the mean of all ranks
    selected: float  # entries a rank selects, over k
    total: float  # entries of the result, over k
    energy: float  # share of the summed acc's squared norm that the result removes, over the share of the same
    # number of largest entries: 1 is the best there is
    fill_in: float | None  # entries that the ranks select together, each counted once, over k
    formula_words: float
    formula_control: float
    formula_messages: float
    lowest: float  # bytes, 8k(P-1)/P

    @property
    def within(self) -> bool:
        """Return whether no rank sent more than the formula allows in any step."""
        return (
            self.most_words <= self.formula_words * TOLERANCE
            and self.messages <= self.formula_messages * TOLERANCE
            and self.most_control <= self.formula_control * TOLERANCE
        )

    @property
    def over_bound(self) -> float | None:
        return (self.words * WORD + self.control) / self.lowest if self.lowest else None

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"within": self.within, "over bound": self.over_bound}


class _Seen(NamedTuple):
    report: StepReport
    between: float  # bytes


def count(
    algorithm: Algorithm,
    name: str,
    gradients: Gradients,
    ranks: int,
    k: int,
    steps: int,
    warmup: int,
    progress: Callable[[], None] = lambda: None,
    ranks_per_node: int = 1,
) -> Volume:
    """Run ``warmup + steps`` steps with error feedback on the ranks of a `World`, and count all but the warm-up."""
    union, observed = instrumented(algorithm, gradients.size, ranks)
    acc, energies = np.zeros(gradients.size), []  # summed over the ranks; energy that each step removes from it

    def remove(step: Step) -> None:
        for rank in range(ranks):
            np.add(acc, gradients.at(step.number, rank), out=acc)
        before = best = float(acc @ acc)
        if isinstance(step.total, SparseVector):
            best = attainable(acc, step.total.nnz)
            acc[step.total.indices] -= step.total.values
        else:
            np.subtract(acc, step.total, out=acc)
        energies.append(float((before - acc @ acc) / best) if best else 1.0)

    def see(step: Step) -> _Seen:
        if step.comm.rank == 0:
            remove(step)
            progress()
        between = sum(leaving(call, step.comm.rank, ranks_per_node) for call in step.comm.record)
        return _Seen(present(step.reducer.report, "a step was made"), between)

    seen = [rank[warmup:] for rank in watched(observed, gradients, ranks, warmup + steps, see, k=k)]
    covered = [] if union is None else union.counts[warmup:]
    energy = statistics.mean(energies[max(warmup, min(SETTLED, len(energies) - 1)) :])
    return _summary(algorithm, name, gradients.size, k, seen, covered, energy)


def formula(algorithm: Algorithm, n: int, k: int, ranks: int) -> tuple[float, float, float]:
    """Return words of payload, bytes of control and messages that a rank may send in a step, checks included."""
    bound = algorithm.bound(Layout.of(n), k, ranks)
    checks = 2 * CHECKED * (ranks - 1) // ranks
    words = bound.payload(PAIR, VALUE) / WORD
    return words, bound.control + checks, bound.messages + 2 * (ranks - 1).bit_length()


def leaving(call: RecordedCall, rank: int, ranks_per_node: int) -> float:
    """Return the bytes of payload that ``rank`` sends to other nodes; equal shares where all get the same."""
    receivers = np.array(list(call.to) or [member for member in call.members if member != rank], np.int64)
    weights = np.array(list(call.to.values()) or [1] * len(receivers), np.float64)
    away = receivers // ranks_per_node != rank // ranks_per_node
    return call.counted.sent * float(weights[away].sum() / weights.sum()) if call.counted.sent else 0.0


def gigabytes(algorithm: Algorithm, gradients: Gradients, ranks: int) -> float:
    """Estimate the memory that `count` needs, in GB: residuals, gradients, and two vectors more for copies."""
    n = gradients.size
    bound = algorithm.bound(Layout.of(n), 1, ranks)
    copied = (bound.pairs > 0 and bound.values >= n) or bound.extra >= n
    return 4e-9 * n * ranks * (2 + (not gradients.shared) + 2 * copied)


def _summary(
    algorithm: Algorithm, name: str, n: int, k: int, seen: list[list[_Seen]], covered: list[int], energy: float
) -> Volume:
    ranks, every = len(seen), [step for rank in seen for step in rank]
    traffic = [step.report.traffic for step in every]
    sent = [[each.report.traffic.sent for each in step] for step in zip(*seen, strict=True)]
    bytes_ = np.array([[s.report.traffic.sent + s.report.traffic.control for s in rank] for rank in seen])
    received = np.array([[s.report.traffic.received for s in rank] for rank in seen])
    words, control, messages = formula(algorithm, n, k, ranks)
    return Volume(
        name,
        ranks,
        n,
        k,
        len(sent),
        words=statistics.mean(t.sent for t in traffic) / WORD,
        between=statistics.mean(step.between for step in every) / WORD,
        most_words=max(t.sent for t in traffic) / WORD,
        control=statistics.mean(t.control for t in traffic),
        most_control=max(t.control for t in traffic),
        messages=max(t.messages for t in traffic),
        imbalance=statistics.mean(max(step) * ranks / sum(step) if sum(step) else 1.0 for step in sent),
        largest_step=_peak(bytes_.mean(axis=0)),
        busiest=max(_peak(bytes_.mean(axis=1)), _peak(received.mean(axis=1))),
        selected=statistics.mean(step.report.selected for step in every) / k,
        total=statistics.mean(step.report.total for step in every) / k,
        energy=energy,
        fill_in=statistics.mean(covered) / k if covered else None,
        formula_words=words,
        formula_control=control,
        formula_messages=messages,
        lowest=8 * k * (ranks - 1) / ranks,
    )


def _peak(numbers: np.ndarray) -> float:
    return float(numbers.max() / numbers.mean()) if numbers.any() else 1.0
