"""Interleaved selection (ADTopk, HPDC'24, DOI 10.1145/3625549.3658678): all-dimension selection and top-k in turns.

All-dimension selection reaches every row of a matrix, plain top-k takes the largest magnitudes wherever they are. A
matrix has the same number of entries either way, the sum of its rows' quotas. So tensors, counts and dense tensors are
the same in every step, and plain top-k is all-dimension selection of the matrix as a single row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, bits_type
from sparse_mpi.checks import check_choice, check_whole
from sparse_mpi.rows import Pattern, dense_tensors, quotas
from sparse_mpi.select.alldim import AllDim, select_rows
from sparse_mpi.select.base import accumulate
from sparse_mpi.sparse import Layout, SparseVector

MIN_PERIOD_STEPS = 5


def _none(dtype: type) -> Any:
    return field(default_factory=lambda: np.zeros(0, dtype))


@dataclass(frozen=True)
class InterleavedState:
    """The state of the selector, equal on all ranks.

    The arrays have one element for each matrix that takes turns in threshold mode, and are empty in the other.
    """

    layout: Layout
    step: int = 0  # selections made
    thresholds: np.ndarray = _none(np.float64)  # last agreed k-th magnitudes; NaN before the first
    periods: np.ndarray = _none(np.int64)  # steps between two refreshes of the threshold
    refresh: np.ndarray = _none(np.int64)  # the step after which the next refresh is due
    on: np.ndarray = _none(np.bool_)  # whether the matrix is on all-dimension selection


@dataclass(frozen=True)
class Interleaved(AllDim):
    """Interleaved selection (ADTopk, HPDC'24): all-dimension selection and plain top-k of each matrix, in turns.

    With ``mode="alternate"`` they alternate step by step, all-dimension selection first. With ``mode="threshold"`` the
    k-th magnitude of the matrix, averaged over the ranks, decides: plain top-k while it moves by more than a tenth
    between two refreshes, all-dimension selection while it moves by less, and only that in the last quarter of
    training. Among the algorithms `adtopk` alone lets ranks agree on thresholds.

    Args:
        rows, dense: as for `AllDim`.
        mode: ``"alternate"`` or ``"threshold"``.
        always_alldim: number of matrices at the end that do not take turns, but stay on all-dimension selection.
        steps: number of training steps in total, which threshold mode needs.
        period: initial number of steps from one refresh to the next (5 ResNet, 10 VGG, 20 LSTM and BERT).
        warmup: steps on plain top-k before the first refresh.
    """

    mode: str = "alternate"
    always_alldim: int = 1
    steps: int | None = None
    period: int = 10
    warmup: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("mode", self.mode, ("alternate", "threshold"))
        check_whole("always_alldim", self.always_alldim, 0, "matrices")
        if self.mode == "threshold" and self.steps is None:
            raise ValueError("steps must be all steps of training in mode='threshold', at least 1, got None")
        if self.steps is not None:
            check_whole("steps", self.steps, 1, "step", "it is the number of all steps of training")
        check_whole("period", self.period, MIN_PERIOD_STEPS, "steps")
        check_whole("warmup", self.warmup, 1, "step")

    def init(self, layout: Layout, k: int) -> InterleavedState:
        if self.mode == "threshold":
            raise ValueError(
                "mode must be 'alternate' in an algorithm in which ranks do not agree on thresholds, got 'threshold'; "
                "use algorithm='adtopk'"
            )
        return self.init_agreeing(layout, k)

    def init_agreeing(self, layout: Layout, k: int) -> InterleavedState:
        super().init(layout, k)
        turns = self.most_agreed(layout)
        return InterleavedState(
            layout,
            0,
            np.full(turns, np.nan),
            np.full(turns, self.period, np.int64),
            np.full(turns, self.warmup, np.int64),
            np.zeros(turns, np.bool_),
        )

    def select(
        self, x: Array, k: int, state: InterleavedState, add: Array | None = None
    ) -> tuple[SparseVector, InterleavedState]:
        accumulate(x, add)
        return select_rows(x, self.pattern(k, state)), replace(state, step=state.step + 1)

    def pattern(self, k: int, state: InterleavedState) -> Pattern:
        return self._merged(state.layout, k, self._plain(state))

    def longest(self, layout: Layout, k: int) -> Pattern:
        # All matrices that take turns are on plain top-k: column numbers in a longer row take more bytes
        return self._merged(layout, k, self._turning(layout))

    def _merged(self, layout: Layout, k: int, plain: tuple[int, ...]) -> Pattern:
        pattern = quotas(layout, k, self.rows, self.dense)
        return tuple(t.merged() if t.tensor in plain else t for t in pattern) if plain else pattern

    def _turning(self, layout: Layout) -> tuple[int, ...]:
        dense = dense_tensors(layout, self.dense)
        sizes = zip(layout.shapes, layout.sizes, strict=True)
        matrices = [i for i, (shape, size) in enumerate(sizes) if len(shape) >= 2 and size and i not in dense]
        return tuple(matrices[: max(len(matrices) - self.always_alldim, 0)])

    def _plain(self, state: InterleavedState) -> tuple[int, ...]:
        """Return the numbers of the tensors that are on plain top-k in the next step."""
        turning = self._turning(state.layout)
        if self.mode == "alternate":
            return turning if state.step % 2 else ()
        if self._late(state.step):
            return ()
        return tuple(number for number, on in zip(turning, state.on, strict=True) if not on)

    def _late(self, step: int) -> bool:
        return self.steps is not None and 4 * step >= 3 * self.steps

    def agree(
        self, x: Array, k: int, state: InterleavedState, mean: Callable[[np.ndarray], np.ndarray]
    ) -> InterleavedState:
        if not self.due(state).any():
            return state
        return self.adapt(state, mean(self.thresholds(x, k, state)))

    def most_agreed(self, layout: Layout) -> int:
        return len(self._turning(layout)) if self.mode == "threshold" else 0

    def due(self, state: InterleavedState) -> np.ndarray:
        """Return a mask of the matrices that take turns: True where the threshold must be refreshed now."""
        return (state.refresh <= state.step) & (not self._late(state.step))

    def thresholds(self, x: Array, k: int, state: InterleavedState) -> np.ndarray:
        """Return this rank's k-th magnitudes ``(d,)`` float64 of the d matrices whose thresholds are due."""
        due = {n for n, due in zip(self._turning(state.layout), self.due(state), strict=True) if due}
        bits = [
            kernels.kth_magnitude(x[t.offset : t.offset + t.size], t.entries, t.entries)
            for t in quotas(state.layout, k, self.rows, self.dense)
            if t.tensor in due
        ]
        kind = bits_type(x)
        return np.array(bits, kind).view(f"f{kind.itemsize}").astype(np.float64)

    def adapt(self, state: InterleavedState, thresholds: np.ndarray) -> InterleavedState:
        """Return the state with new ``thresholds`` ``(d,)`` for the matrices that are due, and new periods and turns.

        A change of less than a tenth of the last threshold turns all-dimension selection on and makes the period one
        step longer, and two steps if it is less than a twentieth. A greater change turns it off and makes the period
        one step shorter, and two if it is more than a fifth, down to 5 steps. The first threshold decides nothing.
        """
        due = self.due(state)
        last = state.thresholds[due]
        with np.errstate(invalid="ignore"):
            change, tenth = np.abs(thresholds - last), last / 10
        calm, moved = change < tenth, change > tenth
        longer = calm * 1 + (change < tenth / 2)
        shorter = moved * 1 + (change > 2 * tenth)
        periods, on, refresh, agreed = (a.copy() for a in (state.periods, state.on, state.refresh, state.thresholds))
        periods[due] = np.where(moved, np.maximum(periods[due] - shorter, MIN_PERIOD_STEPS), periods[due] + longer)
        on[due] = np.where(moved, False, on[due] | calm)
        refresh[due] = state.step + periods[due]
        agreed[due] = thresholds
        return replace(state, thresholds=agreed, periods=periods, on=on, refresh=refresh)
