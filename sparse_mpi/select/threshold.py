"""Threshold reuse (Ok-Topk, Li & Hoefler, PPoPP'22): last step's threshold selects this step's entries in one pass.

``refresh="histogram"`` (default): the threshold is set a little below the last k-th magnitude. As long as between k and
3k/2 entries pass it, they hold the k largest ones, which are picked out exactly: top-k for the price of one read of the
vector and no estimate that can drift. Otherwise a sample or a histogram of *this* vector settles it. How far below is
controlled: nearer after a step that let too many pass, farther after one that let too few. The gradient can join the
residual in the same pass.

``refresh="exact"`` is the published rule: the exact k-th magnitude every ``period`` steps, in between the stale
threshold, nudged when the count leaves [2k/3, 5k/4]. Its counts wander; it is here to be compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.kernels.base import magnitude_bits
from sparse_mpi.select.base import at_least
from sparse_mpi.select.exact import top_k
from sparse_mpi.sparse import Layout, SparseVector, truncate

LEAST, MOST = 1 / 256, 1 / 4  # octaves of margin


@dataclass(frozen=True)
class ThresholdState:
    """What is carried from step to step."""

    threshold: int = 0  # magnitude bits to try next; 0 before the first step
    margin: float = 1 / 16  # octaves that it lies below the last k-th magnitude
    age: int = 0  # steps since the threshold was last computed exactly
    k: int = 0  # that it was computed for


@dataclass(frozen=True)
class Threshold:
    """Threshold reuse (Ok-Topk: Li & Hoefler, PPoPP'22): the k largest magnitudes, found by last step's threshold.

    Args:
        refresh: ``"histogram"`` or ``"exact"`` (the published rule).
        period: steps between exact thresholds of the published rule (32; BERT 128).
        nudge: its correction factor in between (1.012 VGG; 1.025 BERT).
    """

    refresh: str = "histogram"
    period: int = 32
    nudge: float = 1.012

    band: ClassVar[tuple[float, float]] = (1.0, 1.0)  # of the default; the published rule promises none
    shared: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.refresh not in ("histogram", "exact"):
            raise ValueError(f"refresh must be 'histogram' or 'exact', got {self.refresh!r}")
        if self.period < 1:
            raise ValueError(f"period must be at least 1 step, got {self.period}")

    def init(self, layout: Layout, k: int) -> ThresholdState:
        """No threshold yet."""
        return ThresholdState()

    def select(self, x: Array, k: int, state: ThresholdState) -> tuple[SparseVector, ThresholdState]:
        """Exactly k entries of ``x`` ``(n,)``; of equal magnitudes those of lower index."""
        if self.refresh == "exact":
            return self._published(x, k, state)
        return self._settled(x, k, state, at_least(x, state.threshold, most=k + k // 2))

    def accumulate_select(
        self, residual: Array, gradient: Array, k: int, state: ThresholdState
    ) -> tuple[SparseVector, ThresholdState]:
        """`select` after ``residual += gradient``, in place and in the same pass."""
        if self.refresh == "exact":
            kernels.accumulate(residual, gradient)
            return self._published(residual, k, state)
        found = kernels.of(residual).accumulate_select(residual, gradient, state.threshold, most=k + k // 2)
        return self._settled(residual, k, state, None if found is None else SparseVector(*found, len(residual)))

    def _settled(
        self, x: Array, k: int, state: ThresholdState, passed: SparseVector | None
    ) -> tuple[SparseVector, ThresholdState]:
        """The k largest of those that passed the threshold; of ``x`` if they were too few or too many."""
        if passed is None:
            selected, change = top_k(x, k), 1 / 2
        elif passed.nnz < k:
            selected, change = top_k(x, k), 3 / 2
        else:
            change = 3 / 4 if 4 * passed.nnz > 5 * k else 1.0
            selected = truncate(passed, k, reuse=True)
        margin = min(max(state.margin * change, LEAST), MOST) if state.threshold else state.margin
        below = int(margin * (1 << np.finfo(x.dtype).nmant))
        return selected, ThresholdState(max(_smallest(selected.values) - below, 0), margin)

    def _published(self, x: Array, k: int, state: ThresholdState) -> tuple[SparseVector, ThresholdState]:
        threshold, age = state.threshold, state.age
        if age % self.period == 0 or k != state.k:
            threshold, age = kernels.kth_magnitude(x, k, most=k), 0
        selected = at_least(x, threshold, most=len(x))
        assert selected is not None
        if selected.nnz == 0:  # a threshold above the maximum: take the largest entry rather than none
            selected = top_k(x, 1)
        bits = np.dtype(f"int{8 * x.itemsize}").type(threshold)
        if selected.nnz < 2 * k / 3:
            bits = (bits.view(x.dtype.type) / self.nudge).astype(x.dtype).view(bits.dtype)
        elif selected.nnz > 5 * k / 4:
            bits = (bits.view(x.dtype.type) * self.nudge).astype(x.dtype).view(bits.dtype)
        return selected, ThresholdState(int(bits), age=age + 1, k=k)


def _smallest(values: Array) -> int:
    """The least magnitude bits of ``values``, in parts: their magnitudes need no memory of the same size."""
    part = max(kernels.SMALL, len(values) // 16)
    return min(int(magnitude_bits(values[lo : lo + part]).min()) for lo in range(0, len(values), part))
