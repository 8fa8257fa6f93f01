"""Threshold reuse (Ok-Topk, Li & Hoefler, PPoPP'22): last step's threshold selects this step's entries in one pass.

``refresh="histogram"`` (default): the threshold is set a little below the k-th magnitude that the last ones let expect.
As long as between k and 3k/2 entries reach it, the k largest are among them and are picked out exactly: top-k for the
price of one read of the vector, with no estimate that can drift. Otherwise a sample or a histogram of *this* vector
finds the k-th magnitude. The margin below it is controlled: smaller after a step that let too many pass, larger after
one that let too few. The gradient can be added to the residual in the same pass.

``refresh="exact"`` is the published rule (`StaleRule`): the exact k-th magnitude every ``period`` steps, in
between the stale threshold. Where more than 5k/4 entries reach that, it is raised by 3 % before anything is selected,
up to five times; and it is nudged for the next step when the count leaves [2k/3, 5k/4]. Its counts wander, and nothing
bounds them; it is here to be compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isfinite, sqrt

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_choice, check_range, check_whole
from sparse_mpi.kernels.base import Later, Number
from sparse_mpi.select.base import NOT_ZERO, Selector, accumulate
from sparse_mpi.select.exact import largest
from sparse_mpi.sparse import Layout, SparseVector, all_at_least, at_least, truncate

# The published rule of Ok-Topk (Li & Hoefler, PPoPP'22) for a threshold: exact now and then, stale in between.
#
# Both thresholds of the paper follow it: the local one that selects (`select/threshold.py`) and the global one that
# cuts the sums (`algorithms/global_threshold.py`). They differ in the constants of the published program, which raises
# only the local one before it is used.


FEWEST = Fraction(2, 3)  # times k: a stale threshold that fewer entries reach is lowered
RAISE = 1.03  # the factor by which the published program raises a threshold before it selects
MAX_RAISES = 5  # in a step


@dataclass(frozen=True)
class StaleRule:
    """Controller of a threshold that is exact every ``period`` steps and corrected by a small factor in between.

    Args:
        period: steps between exact thresholds (tau' in the paper).
        nudge: the factor above 1 by which a threshold is lowered or raised after a step whose count was off.
        most: times k: a stale threshold that more entries reach is raised.
    """

    period: int
    nudge: float
    most: Fraction

    def refresh_due(self, age: int, k: int, last_k: int) -> bool:
        """Return True if this step needs an exact threshold: one is due, or ``last_k`` entries were wanted, not k."""
        return age % self.period == 0 or k != last_k

    def nudged(self, bits: int, count: int, k: int, dtype: np.dtype) -> int:
        """Return the magnitude bits to use in the next step, after ``count`` entries reached ``bits`` in this one.

        Args:
            bits: magnitude bits of the threshold of this step.
            count: entries that reached it.
            k: entries wanted.
            dtype: float32 or float64, of the numbers whose magnitudes these are.
        """
        threshold = _value_of(bits, dtype)
        if count < FEWEST * k:
            threshold = threshold / self.nudge
        elif count > self.most * k:
            threshold = threshold * self.nudge
        return int(_bits_of(threshold.astype(dtype)))

    def raised(self, bits: int, dtype: np.dtype) -> np.ndarray:
        """Return the magnitude bits of the stale threshold and of those it may be raised to, ``(6,)`` ascending."""
        with np.errstate(over="ignore"):
            thresholds = (_value_of(bits, dtype) * RAISE ** np.arange(MAX_RAISES + 1)).astype(dtype)
        return np.maximum.accumulate(_bits_of(thresholds))  # NaN and Inf stay what they are

    def first_in_bounds(self, raised: np.ndarray, counts: np.ndarray, k: int) -> int:
        """Return the lowest of the ``raised`` thresholds that are not reached by too many entries, or the highest.

        Args:
            raised: magnitude bits, ascending.
            counts: how many entries reach each of them.
            k: entries wanted.
        """
        found = np.flatnonzero(counts <= self.most * k)
        return int(raised[found[0] if len(found) else -1])


def _value_of(bits: int, dtype: np.dtype) -> np.ndarray:
    """Return the magnitude, of type ``dtype``, that has these bits."""
    return np.array(bits, f"int{8 * dtype.itemsize}").view(dtype)


def _bits_of(magnitudes: np.ndarray) -> np.ndarray:
    """Return the bits of ``magnitudes`` as integers."""
    return magnitudes.view(f"int{8 * magnitudes.itemsize}")


MIN_MARGIN_OCTAVES, MAX_MARGIN_OCTAVES = 1 / 256, 1 / 4
CHANCE = 1 / 4  # over the root of k: growth of a k-th magnitude that tells nothing
MOST = Fraction(5, 4)  # times k: above it the published program raises its threshold


@dataclass(frozen=True)
class ThresholdState:
    """The state of the selector from step to step; ``age`` and ``k`` serve the published rule only."""

    threshold: Number = 0  # magnitude bits to try next; 0 before the first step, 1 where few entries are not zero
    margin: float = 1 / 16  # octaves that it lies below the k-th magnitude that is expected
    age: int = 0  # steps since the threshold was last computed exactly
    k: int = 0  # the number of entries for which it was computed
    kth: Number = 0  # magnitude bits of the last k-th magnitude


@dataclass(frozen=True)
class Threshold(Selector):
    """Threshold reuse (Ok-Topk: Li & Hoefler, PPoPP'22): the k largest magnitudes, found by last step's threshold.

    Args:
        refresh: ``"histogram"`` or ``"exact"`` (the published rule).
        period: steps between exact thresholds of the published rule (32; BERT 128).
        nudge: the published rule's correction factor in between (1.012 VGG; 1.025 BERT).
    """

    refresh: str = "histogram"
    period: int = 32
    nudge: float = 1.012

    def __post_init__(self) -> None:
        check_choice("refresh", self.refresh, ("histogram", "exact"))
        check_whole("period", self.period, 1, "step")
        check_range("nudge", self.nudge, "(1, inf)", "1.012 is usual")

    @property
    def band(self) -> tuple[float, float]:
        """Return 1 and 1; of the published rule 0 and infinity, because any number may reach a stale threshold."""
        return (0.0, np.inf) if self.refresh == "exact" else (1.0, 1.0)

    def init(self, layout: Layout, k: int) -> ThresholdState:
        """Return the state before the first step, which holds no threshold."""
        return ThresholdState()

    def select(
        self, x: Array, k: int, state: ThresholdState, add: Array | None = None
    ) -> tuple[SparseVector, ThresholdState]:
        """Select exactly k entries of ``x`` ``(n,)``, of equal magnitudes those of lower index, but no zeros.

        With ``refresh="exact"`` select those that reach the stale threshold instead: about k, and at least one.
        """
        if self.refresh == "exact":
            accumulate(x, add)
            return self._select_stale(x, k, state)
        threshold = int(state.threshold)  # a device has told it long ago
        return self._from_passed(x, k, state, threshold, at_least(x, max(threshold, NOT_ZERO), k + k // 2, add))

    def _from_passed(
        self, x: Array, k: int, state: ThresholdState, threshold: int, passed: SparseVector | None
    ) -> tuple[SparseVector, ThresholdState]:
        """Select the k largest of the entries that passed the threshold, or of all if these are too few or too many.

        Args:
            x: ``(n,)``.
            k: entries to select.
            state: of the step before.
            threshold: its threshold, which they passed.
            passed: the entries of ``x`` that reach it; None if they are more than 3k/2.
        """
        if passed is None:
            selected, change = largest(x, k), 1 / 2
        elif (reached := len(passed.indices)) < k and threshold > NOT_ZERO:
            selected, change = largest(x, k), 3 / 2
        else:  # enough, or all that are not zero
            change = 3 / 4 if 4 * reached > 5 * k else 1.0
            selected = truncate(passed, k, reuse=True)
        margin = state.margin
        if threshold:
            margin = min(max(margin * change, MIN_MARGIN_OCTAVES), MAX_MARGIN_OCTAVES)
        if len(selected.indices) < k:  # all that are not zero: they are to be found again in one pass
            return selected, ThresholdState(NOT_ZERO, margin)
        kth, below = kernels.of(selected.values).smallest(selected.values), int(margin * (1 << np.finfo(x.dtype).nmant))

        def expected() -> int:
            return max(_following(int(state.kth), int(kth), k, x.dtype) - below, NOT_ZERO)

        # Where the host would wait for a device, it does so in the next step, when the number has long been there
        return selected, ThresholdState(Later(expected) if isinstance(kth, Later) else expected(), margin, kth=kth)

    def _select_stale(self, x: Array, k: int, state: ThresholdState) -> tuple[SparseVector, ThresholdState]:
        """Select by the published rule: the entries of ``x`` ``(n,)`` that reach the stale threshold, at least one."""
        rule = StaleRule(self.period, self.nudge, MOST)
        threshold, age = int(state.threshold), state.age
        if rule.refresh_due(age, k, state.k):
            threshold, age = max(kernels.kth_magnitude(x, k, most=k), NOT_ZERO), 0
        else:
            tried = rule.raised(threshold, x.dtype)
            threshold = max(rule.first_in_bounds(tried, kernels.of(x).count(x, tried), k), NOT_ZERO)
        selected = all_at_least(x, threshold)
        if selected.nnz == 0:  # The threshold lies above the maximum: take the largest entry rather than none.
            selected = largest(x, 1)
        return selected, ThresholdState(rule.nudged(threshold, selected.nnz, k, x.dtype), age=age + 1, k=k)


def _following(last: int, kth: int, k: int, dtype: np.dtype) -> int:
    """Return the magnitude bits that are expected to follow ``last`` and ``kth``, the k-th ones of two steps.

    What waits grows, most of all in the first steps: as the root of the number of gradients it sums up, if these are
    independent. So the square of its growth g is (t + 1) / t, and the next one 2 - 1 / g^2. What shrinks goes on so.
    Where the two differ by no more than chance makes them, nothing is expected.
    """
    before, now = np.array([last, kth], f"int{8 * dtype.itemsize}").view(dtype).tolist()
    if not (before and now and isfinite(before) and isfinite(now)):
        return kth
    growth = min(max(now / before, 0.5), 2.0)
    if abs(growth - 1) < CHANCE / sqrt(k):
        return kth
    growth = sqrt(2 - 1 / growth**2) if growth > 1 else growth
    return int(_bits_of(np.array(min(now * growth, float(np.finfo(dtype).max)), dtype)))
