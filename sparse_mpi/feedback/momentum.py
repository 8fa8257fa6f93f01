"""Apply momentum correction and masking (Deep Gradient Compression: Lin et al., ICLR'18) instead of SGD's momentum.

SGD with momentum on sparse sums would apply its momentum to late gradients as if they were new. So every rank keeps
the momentum of its own gradients, ``u = m u + g``, and accumulates it, ``v += u``; entries are selected from v. What
is sent is subtracted from v, and u is set to zero there (masking), so that stale momentum is not applied again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from sparse_mpi.arrays import Array, namespace, widened
from sparse_mpi.feedback.residual import ErrorFeedback, fitted
from sparse_mpi.sparse import SparseVector


@dataclass(eq=False)
class MomentumCorrection(ErrorFeedback):
    """Error feedback of momentum: v is the residual, u the velocity. The optimizer's own momentum must be 0.

    Args:
        momentum: m, in [0, 1); with 0 this is `ErrorFeedback`.
        nesterov: accumulate ``g + m u`` in place of u.
        masking: set u to zero where something was sent. A dense algorithm sends everything, which leaves nothing
            stale: there momentum continues as in SGD.

    Raises:
        TypeError, ValueError: momentum is not a number in [0, 1).
    """

    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True
    _velocity: Array | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_momentum(self.momentum)

    def start(self, size: int, in_place: bool, ranks: int) -> ErrorFeedback:
        """Return an instance with the same hyperparameters, with zero velocity and residual.

        Raises:
            ValueError: ``in_place`` is set, but the velocity needs the gradient apart from the residual.
        """
        if in_place:
            raise ValueError(
                "in_place must be False with MomentumCorrection, which needs the gradient apart from the residual, "
                "got True; use in_place=False, or feedback='residual' and the optimizer's momentum"
            )
        fresh = replace(self)
        fresh.size = size
        return fresh

    @property
    def velocity(self) -> Array:
        """Return u ``(n,)``, the momentum of this rank's gradients; zeros before the first step."""
        return np.zeros(self.size, np.float32) if self._velocity is None else self._velocity

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        """Update the velocity in place, ``u = m u + g``, and return v and what must still be added to it.

        That is u, or with ``nesterov`` ``g + m u``.
        """
        gradient = widened(gradient)
        if self._velocity is None:
            self._velocity = gradient.copy()
        else:
            self._velocity = fitted(self._velocity, gradient)
            self._velocity *= self.momentum
            self._velocity += gradient
        return super().accumulate(gradient + self.momentum * self._velocity if self.nesterov else self._velocity)

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array) -> None:
        """Subtract ``sent`` from v and set u to zero where something was sent; where that is not finite, v = u = 0."""
        velocity = self.velocity
        isfinite = namespace(velocity).isfinite
        if not isinstance(sent, SparseVector):
            velocity[~isfinite(sent)] = 0
        elif self.masking:
            velocity[sent.indices] = 0
        else:
            velocity[sent.indices[~isfinite(sent.values)]] = 0
        super().consume(sent, total)

    def state(self) -> dict[str, Array]:
        """Return residual and velocity."""
        return super().state() | {"velocity": self.velocity}

    def load(self, state: dict[str, Array]) -> None:
        """Restore copies of residual and velocity."""
        super().load(state)
        self._velocity = state["velocity"].copy()


def check_momentum(momentum: float) -> None:
    """Raise TypeError or ValueError unless ``momentum`` is a number in [0, 1)."""
    if isinstance(momentum, bool) or not isinstance(momentum, (int, float, np.number)):
        raise TypeError(f"momentum must be a number in [0, 1), got {momentum!r}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), got {momentum}; 0.9 is usual")
