"""A user's ``clip_grad_norm_`` between the reduction and Adam's step: `ClipLine`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np

from sparse_mpi.training.adam_vector import AdamVector
from sparse_mpi.training.named_gradients import NamedGradients

LOGGER = logging.getLogger("sparse_mpi")
ALIKE = 1e-5  # relative difference up to which factors are one
MOVED = 1e-3  # relative difference from which on norms have changed, and up to which limits are one
FOUND = (
    "sparse_mpi: gradients are clipped to %.4g behind their reduction, which would cut entries that arrive late, and "
    "not their second moments: that is taken back, and they are clipped before the selection, as clip_norm= does"
)
NONE = (
    "sparse_mpi: gradients are scaled behind their reduction, and not clipped to %.4g: they are not before it, either"
)


class ClipLine:
    """Recognises a clip by the one factor that multiplies all gradients behind their reduction.

    From then on gradients are clipped before the selection, to the norm that the factor tells, unless the next one
    tells another: then it is no clip. In the first step of training the factor also scales residuals and second
    moments; later it is taken back, because Adam's step does not depend on the scale of all gradients.

    Args:
        clips: True where gradients are clipped before the selection already.
        clip: sets the clip norm of the mean, None: no clipping; by default each vector's own.
        over_shards: returns the sum of an array over the processes of all shards; None: no shards.

    Attributes:
        limit: recognised norm; None: none yet.
    """

    def __init__(
        self,
        gradients: NamedGradients,
        clips: bool = False,
        clip: Callable[[float | None], None] | None = None,
        over_shards: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self.limit: float | None = None
        self._gradients, self._looks = gradients, not clips and gradients.settings.clip_norm is None
        self._clip, self._over_shards = gradients.clip if clip is None else clip, over_shards
        self._norm = 0.0  # norm at which the limit was recognised

    def factors(self, vectors: Sequence[AdamVector], divisor: float) -> tuple[float, float]:
        """Return this step's factors of gradients, to be taken back, and of second moments that travelled."""
        found = [own.factor(divisor) for own in vectors if own.moves]
        factors = [one for one in found if one is not None]
        mixed = len(factors) < len(found) or max(factors, default=0.0) > min(factors, default=0.0) * (1 + ALIKE)
        # Here: whether there is no one factor, and if so the factor and that it is one; squared norm of the sum
        numbers = np.array([mixed, min(factors, default=0.0), bool(factors), 0.0])
        if self._looks and (self._over_shards is not None or 0 < numbers[1] < 1 - ALIKE):
            numbers[3] = sum(own.square for own in vectors)
        if self._looks and self._over_shards is not None:
            numbers = self._over_shards(numbers)
        mixed, total, count, square = numbers.tolist()
        factor = total / count if count and not mixed else 1.0
        if not 0 < factor < 1 - ALIKE:
            return 1.0, 1.0
        if self._looks:
            norm = sqrt(square) / self._gradients.comm.size
            before, self._norm = self._norm, norm
            if self.limit is None:
                self._say(FOUND, factor * norm)
                self.begin(factor * norm)
                if all(own.first for own in vectors):
                    for own in vectors:
                        own.scale(factor)
                    return 1.0, factor**2
            elif abs(norm - before) > MOVED * norm:
                self._looks = False
                if abs(factor * norm - self.limit) > MOVED * self.limit:
                    self._say(NONE, self.limit)
                    self.limit = None
                    self._clip(None)
        return factor, 1.0

    def begin(self, limit: float) -> None:
        """Clip before the selection from now on, to the norm ``limit`` of the mean."""
        self.limit = limit
        self._clip(limit)

    def _say(self, text: str, limit: float) -> None:
        if self._gradients.comm.rank == 0:
            LOGGER.warning(text, limit)
