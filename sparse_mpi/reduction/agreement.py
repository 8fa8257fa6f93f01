"""The agreement of the ranks' gradients, tensor by tensor: `Agreement`.

The mean of P independent gradients has 1/P of a gradient's squared norm, the mean of equal gradients the same norm. So
the second moment of the mean is 1/P to 1 times the ranks' own. A few random projections of each tensor estimate both
norms: the average square of a projection is the squared norm.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from sparse_mpi import arrays
from sparse_mpi.arrays import Array, index_dtype, like
from sparse_mpi.comm import Comm
from sparse_mpi.sparse import Layout

EVERY = 8  # steps from one look to the next
PROJECTIONS, ENTRIES = 32, 8192  # projections of a tensor; most entries
LOOKS = 7  # number of looks in the norms' moving mean
LEAST = np.int32(-1000)  # stands for the exponent of zeros


class Agreement:
    """The squared norm of each tensor's mean gradient, divided by its value for independent ranks.

    Attributes:
        norms: ``(tensors, 2)`` moving means of the squared norm of the ranks' sum, and of the sum of their squared
            norms; 0 before the first look. The same on all ranks.
    """

    def __init__(self, layout: Layout) -> None:
        self.norms = np.zeros((len(layout.sizes), 2))
        self._layout = layout
        self._own: Array | None = None  # projections of this rank's gradient, of a step in which ranks look
        self._found: np.ndarray | None = None  # norms of that step

    @cached_property
    def _drawn(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the entries of each projection ``(tensors, any, PROJECTIONS)``, and their signs."""
        draw, sizes = np.random.default_rng(0), self._layout.sizes
        width = -(-min(max(sizes, default=0), ENTRIES) // PROJECTIONS)
        places, signs = np.zeros((2, len(sizes), PROJECTIONS * width), np.int64)
        for row, sign, part, size in zip(places, signs, self._layout.parts, sizes, strict=True):
            count = min(size, PROJECTIONS * width)
            row[:count] = part.start + (np.arange(size) if size == count else draw.integers(0, size, count))
            sign[:count] = draw.choice([-1, 1], count)
        shape = len(sizes), width, PROJECTIONS
        return places.astype(index_dtype(self._layout.size)).reshape(shape), signs.astype(np.float32).reshape(shape)

    def look(self, gradient: Array | None) -> None:
        """Project this rank's ``gradient`` ``(n,)``; None: ranks do not look in this step."""
        self._own = None
        if gradient is not None:
            places, signs = (like(drawn, gradient) for drawn in self._drawn)
            self._own = (gradient[places] * signs).sum(axis=1)

    def meet(self, comm: Comm) -> None:
        """Add up the projections of all ranks, if they look in this step. Collective: 136 bytes a tensor."""
        if self._own is None or comm.size == 1:
            return
        own = arrays.to_host(self._own).astype(np.float64)
        own[~np.isfinite(own).all(axis=1)] = 0
        # In whole numbers sums do not depend on their order: ranks agree on an exponent of each tensor
        exponents = np.frexp(np.abs(own).max(axis=1, initial=0))[1].astype(np.int32)
        exponents = comm.allreduce(np.where(own.any(axis=1), exponents, LEAST), "max", control=True)[:, None]
        one = 2.0 ** (30 - comm.size.bit_length())  # the largest projection of all ranks, at most
        own = np.ldexp(own, -exponents)
        numbers = np.concatenate([own, np.square(own).mean(axis=1, keepdims=True)], axis=1)
        sums = comm.allreduce(np.rint(one * numbers).astype(np.int32), control=True).astype(np.float64)
        # Back to one measure, in which steps can be averaged
        norms = np.stack([np.square(sums[:, :-1]).mean(axis=1) / one, sums[:, -1]], axis=1)
        self._found = np.ldexp(norms, 2 * exponents)

    def take(self, looks: int) -> None:
        if self._found is not None:
            seen = self._found[:, 1] > 0
            self.norms[seen] += (self._found - self.norms)[seen] / min(looks, LOOKS)
        self._own = self._found = None

    def of_tensors(self, ranks: int) -> np.ndarray:
        together, apart = self.norms.T
        return np.divide(together, apart, out=np.ones_like(apart), where=apart > 0).clip(1, ranks)
