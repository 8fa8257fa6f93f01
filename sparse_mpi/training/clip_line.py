"""A user's `clip_grad_norm_` between the reduction and Adam's step: `ClipLine`."""

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
    "not their second moments: that is taken back, and they are clipped before the selection, as by clip_norm=%.4g"
)


class ClipLine:
    """Recognises a clip by the one factor that multiplies all gradients behind their reduction.

    Adam's step does not depend on the scale of all gradients, so that the factor is taken back. A second one shows
    whether it follows from a largest norm: gradients are then clipped to that before the selection.

    Args:
        gradients: vectors of the gradients.
        clips: True where they are clipped before the selection already.
        clip: clips them to a norm of their mean from now on; None: each vector by itself.
        over_shards: returns the sum of an array over the processes that have a shard each; None: there are no others.

    Attributes:
        limit: norm that was recognised; None: there was none yet.
    """

    def __init__(
        self,
        gradients: NamedGradients,
        clips: bool = False,
        clip: Callable[[float], None] | None = None,
        over_shards: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self.limit: float | None = None
        self._gradients, self._clips = gradients, clips or gradients.settings.clip_norm is not None
        self._clip, self._over_shards = clip, over_shards
        self._seen: tuple[float, float] | None = None  # limit and norm of the last clip

    def factor(self, vectors: Sequence[AdamVector], divisor: float) -> float:
        """Return the factor by which gradients of this step were multiplied; 1 where it is none of a clip."""
        found = [own.factor(divisor) for own in vectors if own.moves]
        factors = [one for one in found if one is not None]
        mixed = len(factors) < len(found) or (factors and max(factors) > min(factors) * (1 + ALIKE))
        # Here: squared norm of the sum, whether there is no one factor, and if so the factor and that it is one
        numbers = np.array([0.0, mixed, min(factors, default=0.0), bool(factors)])
        if not self._clips:
            numbers[0] = sum(own.square for own in vectors)
            numbers = numbers if self._over_shards is None else self._over_shards(numbers)
        square, mixed, total, count = numbers.tolist()
        factor = total / count if count and not mixed else 1.0
        if not 0 < factor < 1 - ALIKE:
            return 1.0
        if not self._clips:
            norm = sqrt(square) / self._gradients.comm.size
            limit, before = factor * norm, self._seen
            self._seen = limit, norm
            if before is not None and abs(limit - before[0]) < MOVED * limit and abs(norm - before[1]) > MOVED * norm:
                if self._gradients.comm.rank == 0:
                    LOGGER.warning(FOUND, limit, limit)
                self.begin(limit)
        return factor

    def begin(self, limit: float) -> None:
        """Clip before the selection from now on, to the norm ``limit`` of the mean."""
        self.limit, self._clips = limit, True
        (self._clip or self._gradients.clip)(limit)
