"""Published programs, for comparison: their settings, and Ok-Topk's thresholds, stale in most steps.

Both thresholds of Ok-Topk (Li & Hoefler, PPoPP'22), the local one that selects and the global one that cuts sums, are
exact every ``period`` steps and nudged in between; their counts are unbounded. The program raises the local one before
a selection, by 3 % up to five times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms.adtopk import ADTopk
from sparse_mpi.algorithms.base import Algorithm, levels_field
from sparse_mpi.algorithms.gtopk import GTopk
from sparse_mpi.algorithms.oktopk import OkTopk
from sparse_mpi.algorithms.spardl import CONTIGUOUS, SparDL
from sparse_mpi.arrays import Array, magnitude_bits, namespace
from sparse_mpi.checks import check_range, check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.select import Selector
from sparse_mpi.select.alldim import AllDim
from sparse_mpi.select.base import NOT_ZERO, accumulate, most_selected
from sparse_mpi.select.exact import largest
from sparse_mpi.select.interleaved import Interleaved
from sparse_mpi.sparse import Layout, SparseVector, all_at_least, take
from sparse_mpi.states import ranged

A = TypeVar("A", bound=Algorithm)
FEWEST = Fraction(2, 3)  # times k: a stale threshold that fewer entries reach is lowered
MOST_SELECTED, MOST_SUMS = Fraction(5, 4), Fraction(4, 3)  # times k: one that more entries reach is raised
SUMS_NUDGE = 1.008  # the factor by which the global threshold is lowered or raised
RAISE, MAX_RAISES = 1.03, 5  # factor and most raises of the local threshold before it selects


@dataclass(frozen=True)
class StaleRule:
    """Controller of a threshold, exact every ``period`` steps and corrected by a small factor in between.

    Args:
        period: steps between exact thresholds (tau' in the paper).
        nudge: the factor above 1 by which a threshold is lowered or raised after a step that missed its count.
        most: times k: a stale threshold that more entries reach is raised.
    """

    period: int
    nudge: float
    most: Fraction

    def refresh_due(self, age: int, k: int, last_k: int) -> bool:
        return age % self.period == 0 or k != last_k

    def nudged(self, bits: int, count: int, k: int, dtype: np.dtype) -> int:
        threshold = _value_of(bits, dtype)
        if count < FEWEST * k:
            threshold = threshold / self.nudge
        elif count > self.most * k:
            threshold = threshold * self.nudge
        return int(_bits_of(threshold.astype(dtype)))

    def raised(self, bits: int, x: Array, k: int) -> int:
        """Return the lowest raised threshold that at most ``most`` times k entries reach, else the highest."""
        with np.errstate(over="ignore"):
            thresholds = (_value_of(bits, x.dtype) * RAISE ** np.arange(MAX_RAISES + 1)).astype(x.dtype)
        tried = np.maximum.accumulate(_bits_of(thresholds))  # NaN and Inf stay
        found = np.flatnonzero(kernels.of(x).count(x, tried) <= self.most * k)
        return int(tried[found[0] if len(found) else -1])


def _value_of(bits: int, dtype: np.dtype) -> np.ndarray:
    return np.array(bits, f"int{8 * dtype.itemsize}").view(dtype)


def _bits_of(magnitudes: np.ndarray) -> np.ndarray:
    return magnitudes.view(f"int{8 * magnitudes.itemsize}")


@dataclass(frozen=True)
class StaleState:
    bits: int = ranged("[0, bits)", 0)  # magnitude bits of the threshold
    age: int = ranged("[0, many)", 0)  # steps since it was exact
    k: int = ranged("[0, n]", 0)  # the number of entries for which it was exact


@dataclass(frozen=True)
class StaleSelector(Selector):
    """The published local threshold: about k entries, at least one.

    Args:
        period: steps between exact thresholds (32; BERT 128).
        nudge: the correction factor in between (1.012 VGG; 1.025 BERT).
    """

    period: int = 32
    nudge: float = 1.012

    def __post_init__(self) -> None:
        check_whole("period", self.period, 1, "step")
        check_range("nudge", self.nudge, "(1, inf)", "1.012 is usual")

    @property
    def band(self) -> tuple[float, float]:
        return 0.0, np.inf

    def init(self, layout: Layout, k: int) -> StaleState:
        return StaleState()

    def select(self, x: Array, k: int, state: StaleState, add: Array | None = None) -> tuple[SparseVector, StaleState]:
        accumulate(x, add)
        rule = StaleRule(self.period, self.nudge, MOST_SELECTED)
        bits, age = state.bits, state.age
        if rule.refresh_due(age, k, state.k):
            bits, age = kernels.kth_magnitude(x, k), 0
        else:
            bits = rule.raised(bits, x, k)
        bits = max(bits, NOT_ZERO)
        selected = all_at_least(x, bits)
        if selected.nnz == 0:
            selected = largest(x, 1)
        return selected, StaleState(rule.nudged(bits, selected.nnz, k, x.dtype), age + 1, k)


@dataclass(frozen=True)
class StaleThreshold:
    """The published global threshold: k sums every ``period`` steps, in between all that reach it, possibly none."""

    period: int = 32

    def init(self) -> StaleState:
        return StaleState()

    def cut(
        self,
        sums: SparseVector,
        k: int,
        state: StaleState,
        comm: Comm,
        piggyback: int = 0,
        chosen: Array | None = None,
    ) -> tuple[SparseVector, np.ndarray, np.ndarray, StaleState]:
        sums = sums if chosen is None else take(sums, chosen)
        values = sums.values
        rule = StaleRule(self.period, SUMS_NUDGE, MOST_SUMS)
        bits, age = state.bits, state.age
        # Every now and then all ranks gather all sums, more for more ranks, for the exact k-th magnitude.
        if rule.refresh_due(age, k, state.k):
            everything, _ = comm.allgatherv(values)
            wanted, age = min(k, len(everything)), 0
            bits = kernels.kth_magnitude(everything, wanted) if wanted else 0
        # All ranks must know how many entries of each rank reach the threshold.
        mask = magnitude_bits(values) >= bits
        row = np.array([int(namespace(values).count_nonzero(mask)), piggyback], np.int64)
        counts, piggybacked = comm.allgather(row, control=True).T
        bits = rule.nudged(bits, int(counts.sum()), k, values.dtype)
        return take(sums, mask, int(row[0])), counts, piggybacked, StaleState(bits, age + 1, k)

    def bound(self, everything: float, k: int, ranks: int) -> tuple[float, float, int, float]:
        return everything, everything * (ranks - 1), 3 * rounds(ranks), 20 * (ranks - 1)


@dataclass(frozen=True)
class PublishedOkTopk(OkTopk):
    """Ok-Topk with the published global threshold: it sends more than `OkTopk`, and its results may exceed k.

    Args:
        selector, period, trigger, wire, radix, levels: fields of `OkTopk`; one level by default.
        threshold_period: steps between exact global thresholds (tau' in the paper).
    """

    selector: Selector = StaleSelector()
    threshold_period: int = 32
    levels: int | None = levels_field(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("threshold_period", self.threshold_period, 1, "step")

    @cached_property
    def _rule(self) -> StaleThreshold:
        return StaleThreshold(self.threshold_period)

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        return 0, min(layout.size, most_selected(self.selector, layout, k) * ranks)


VGG = PublishedOkTopk(trigger=4.0)
# The programs by workload, "" where all workloads have the same. Ok-Topk's nudging factors are known for VGG and BERT;
# LSTM is given VGG's. SparDL prunes and selects region by region. ADTopk's rows are lines along the second dimension;
# its program sends int64 indices in two messages a tensor, where ours has the same entries in one message, by column.
PROGRAMS: Mapping[type, Mapping[str, Algorithm]] = {
    OkTopk: {
        "vgg": VGG,
        "lstm": VGG,
        "bert": PublishedOkTopk(StaleSelector(128, 1.025), trigger=4.0, threshold_period=128),
    },
    GTopk: {"": GTopk(residual="published")},
    SparDL: {"": SparDL(AllDim(), "block", block=CONTIGUOUS, selection="block", residual="published")},
    ADTopk: {"": ADTopk(Interleaved(rows="axis1"))},
}


def published(kind: type[A], workload: str = "") -> A:
    """Return the algorithm ``kind`` with its published settings, for ``workload`` if they depend on it."""
    known = PROGRAMS.get(kind, {})
    if workload not in known:
        choice = f"must be one of {', '.join(known)}" if any(known) else "are the same for all workloads"
        which = f"published settings of {kind.__name__} {choice if known else 'are not known'}"
        raise ValueError(f"{which}, got {workload!r}")
    return known[workload]  # type: ignore[return-value]
