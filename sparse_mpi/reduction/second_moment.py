"""The second moment of a rank's own gradients, which travels with the entries of its steps: `SecondMoment`.

The square of a sum of d late gradients is d times the square of one: Adam cannot compute second moments from sums. But
each rank knows the squares of its own gradients. If they are independent, their mean has the mean of the ranks' second
moments over P; a tensor's `Agreement` measures the excess. An algorithm that `carries` a second vector selects by the
residual over the root of a rank's own, and adds second moments up at the entries of the result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from sparse_mpi import arrays, kernels
from sparse_mpi.arrays import Array, like
from sparse_mpi.comm import Comm
from sparse_mpi.feedback.base import check_sizes, fitted
from sparse_mpi.reduction.agreement import EVERY, Agreement
from sparse_mpi.reduction.form import EARLIER
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.states import Range, bounds_of

MEAN, STEPS, BETAS = "second_moment", "second_moment_steps", "second_moment_betas"  # keys in a state
AGREEMENT = "second_moment_agreement"  # a key likewise
# Lists of a number, or two, a tensor, the same on all ranks
RANGES = {STEPS: Range("[0, many)"), BETAS: Range("[0, 1)"), AGREEMENT: Range("[0, inf)")}
LISTS = tuple(RANGES)
UNKNOWN = [0.0, 0.0]  # an agreement


class SecondMoment:
    """The moving mean of this rank's squared gradients, without bias from the start.

    A mean stays infinite once a square overflows, as torch's. A gradient that is not finite is ignored.

    Args:
        beta: weight of the past, as Adam's second beta, in [0, 1).
        layout: shapes of the gradient.

    Attributes:
        betas: beta of each tensor; may change between steps.
        steps: number of gradients of each tensor in the mean.
        sums: sums of all ranks' means at the entries of the last result; ``(n,)`` where that is dense.
    """

    def __init__(self, beta: float, layout: Layout) -> None:
        self._layout = layout
        self.betas = [beta] * len(layout.sizes)
        self.sums: SparseVector | Array | None = None
        self._mean: Array | None = None
        self.steps = [0] * len(layout.sizes)
        self.agreement = Agreement(layout)

    @property
    def mean(self) -> Array:
        return np.zeros(self._layout.size, np.float32) if self._mean is None else self._mean

    def update(self, gradient: Array, absent: Collection[int] = ()) -> None:
        """Add ``gradient`` ``(n,)`` to the mean, without tensors ``absent`` on all ranks."""
        wide = arrays.widened(gradient)
        mean = arrays.namespace(wide).zeros_like(wide) if self._mean is None else fitted(self._mean, wide)
        wide, self._mean = wide.astype(mean.dtype, copy=False), mean
        for number in range(len(self.steps)):
            self.steps[number] += number not in absent
        # Neighbours with the same number of gradients are one stretch; there is one if all have it
        parts, first = self._layout.parts, 0
        ages = [0 if number in absent else steps for number, steps in enumerate(self.steps)]
        for (steps, beta), group in groupby(zip(ages, self.betas, strict=True)):
            last = first + len(list(group)) - 1
            if steps:
                part = slice(parts[first].start, parts[last].stop)
                # The weight of Adam's moment divided by 1 - beta^t, which so needs no correction
                weight = (1 - beta) / (1 - beta**steps)
                kernels.of(mean).follow_squares(mean[part], wide[part], weight)
            first = last + 1
        self.agreement.look(wide if max(self.steps, default=0) % EVERY == 1 else None)

    def retract(self, gradient: Array, absent: Collection[int] = ()) -> None:
        """Undo the last `update`, by the same arguments; to rounding."""
        wide, mean = arrays.widened(gradient).astype(self.mean.dtype, copy=False), self.mean
        for number, (part, beta) in enumerate(zip(self._layout.parts, self.betas, strict=True)):
            if number not in absent:
                weight = (1 - beta) / (1 - beta ** self.steps[number])
                mean[part] = (mean[part] - weight * wide[part] ** 2) / (1 - weight) if weight < 1 else 0
                self.steps[number] -= 1
        # What rounding has left below 0 is a mean of squares
        mean.clip(0, None, out=mean)

    def commit(self, sums: SparseVector | Array) -> None:
        self.sums = sums
        self.agreement.take(1 + max(self.steps, default=0) // EVERY)

    def like(self, acc: Array) -> Array:
        return like(self.mean, acc).astype(acc.dtype, copy=False)

    def state(self) -> dict[str, Any]:
        """Return copies of the mean, on the host, and of each tensor's steps, beta and agreement."""
        lists = {STEPS: list(self.steps), BETAS: list(self.betas), AGREEMENT: self.agreement.norms.tolist()}
        return {MEAN: arrays.to_host(self.mean).copy()} | lists

    def by_tensor(self) -> list[dict[str, Any]]:
        state = self.state()
        rows = zip(self._layout.parts, *(state[key] for key in LISTS), strict=True)
        return [{MEAN: state[MEAN][part]} | {k: [x] for k, x in zip(LISTS, row, strict=True)} for part, *row in rows]

    @staticmethod
    def joined(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        lists = {name: [number for state in states for number in state[name]] for name in LISTS}
        return {MEAN: np.concatenate([state[MEAN] for state in states]), **lists}

    def load(self, state: dict[str, Any]) -> None:
        self._mean, self.steps = np.array(state[MEAN]), list(map(int, state[STEPS]))
        self.betas = list(map(float, state[BETAS]))
        self.agreement.norms = np.array(state[AGREEMENT], np.float64)

    def check_state(self, state: dict[str, Any]) -> None:
        if missing := [key for key in (MEAN, *LISTS) if key not in state]:
            raise ValueError(
                f"state must have {missing[0]!r}, got none; save it from a reducer with a second moment, or load it "
                f"into one without; {EARLIER}"
            )
        check_sizes(state, [MEAN], self._layout.size)
        for key, own in zip(LISTS, (self.steps, self.betas, self.agreement.norms.tolist()), strict=True):
            RANGES[key].checked(f"state[{key!r}]", state[key], own, bounds_of(0, 1, None))

    def deal(self, states: Sequence[dict[str, Any]], ranks: int, comm: Comm) -> None:
        """Load the mean of all states of ``ranks`` ranks; ``states`` are this rank's. Collective."""
        size = self._layout.size
        own = sum((state[MEAN].astype(np.float64) for state in states), np.zeros(size))
        steps = np.max([np.zeros(len(self.steps), np.int64), *(state[STEPS] for state in states)], axis=0)
        total = comm.allreduce(own, control=True) / ranks
        most = comm.allreduce(steps, "max", control=True)
        betas = states[0][BETAS] if states else self.betas
        unknown = [UNKNOWN] * len(self.steps)
        self.load({MEAN: total.astype(np.float32), STEPS: most.tolist(), BETAS: betas, AGREEMENT: unknown})
