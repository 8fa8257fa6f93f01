"""Apply momentum correction and masking (Deep Gradient Compression: Lin et al., ICLR'18) instead of SGD's momentum.

SGD with momentum on sparse sums would apply its momentum to late gradients as if they were new. So every rank keeps
the momentum of its own gradients, ``u = m u + g``, and accumulates it, ``v += u``; entries are selected from v. What
is sent is subtracted from v, and u is set to zero there (masking), so that stale momentum is not applied again.

The paper masks what a rank selected. Not all of that leaves a rank in every collective: it may take some back for
safe-keeping, or round it. So this masks by what became of v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sparse_mpi.arrays import Array, like, namespace, widened
from sparse_mpi.checks import check_range, check_switch
from sparse_mpi.feedback.residual import ErrorFeedback, fitted
from sparse_mpi.sparse import Layout, SparseVector


@dataclass(eq=False)
class MomentumCorrection(ErrorFeedback):
    """Error feedback of momentum: v is the residual, u the velocity. The optimizer's own momentum must be 0.

    Args:
        momentum: m, in [0, 1); with 0 this is `ErrorFeedback`.
        nesterov: accumulate ``g + m u`` in place of u.
        masking: set u to zero where more than half of abs(v) was sent. In a tensor that is sent whole nothing is left
            that could be late: there momentum continues as in SGD.

    Raises:
        TypeError, ValueError: momentum is not a number in [0, 1).
    """

    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True
    _velocity: Array | None = field(default=None, init=False, repr=False)
    _layout: Layout | None = field(default=None, init=False, repr=False)
    _withheld: Sequence[slice] = field(default=(), init=False, repr=False)  # parts, in this step

    def __post_init__(self) -> None:
        check_momentum(self.momentum)
        check_switch("nesterov", self.nesterov)
        check_switch("masking", self.masking)

    @property
    def works_in_place(self) -> bool:
        """Return False: the velocity needs the gradient apart from the residual."""
        return False

    def start(self, layout: Layout, in_place: bool, ranks: int) -> ErrorFeedback:
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
        fresh._layout = Layout.of(layout)
        fresh.size = fresh._layout.size
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
        before = [] if self._velocity is None else [self._velocity[part].copy() for part in self._withheld]
        if self._velocity is None:
            self._velocity = gradient.copy()
        else:
            self._velocity = fitted(self._velocity, gradient)
            self._velocity *= self.momentum
            self._velocity += gradient
        pushed = gradient + self.momentum * self._velocity if self.nesterov else self._velocity
        if before:
            pushed = pushed.copy()
            for part, velocity in zip(self._withheld, before, strict=True):
                self._velocity[part], pushed[part] = like(velocity, pushed), 0
        return super().accumulate(pushed)

    def withhold(self, parts: Sequence[slice]) -> None:
        """Leave these parts of velocity and residual as they are in the step that follows."""
        self._withheld = parts

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array) -> None:
        """Subtract ``sent`` from v, and mask; where ``sent`` is not finite, v = u = 0."""
        at = sent.indices if isinstance(sent, SparseVector) else slice(None)
        values = sent.values if isinstance(sent, SparseVector) else sent
        before = abs(self.residual[at])
        bad = ~namespace(values).isfinite(values)
        super().consume(sent, total)
        self._withheld = ()
        stale = bad | self._masked(at, before) if self.masking else bad
        velocity = self.velocity
        velocity[at] = namespace(values).where(stale, 0, velocity[at])

    def _masked(self, at: Array | slice, before: Array) -> Array:
        """Tell at which of the positions ``at``, where abs(v) was ``before``, the momentum is stale, as booleans.

        It is where most of v was sent. What a rank kept for itself, and what rounding left, still needs its momentum.
        A tensor of which nothing waits, all that is not 0 having been sent, has no entry that will arrive late.
        """
        assert self._layout is not None, "consume is for instances that start returned"
        left = self.residual[at]
        gone = (2 * abs(left) < before) | (before == 0)
        xp, ends = namespace(gone), like(np.cumsum(self._layout.sizes), gone)
        tensors = xp.searchsorted(ends, xp.arange(len(gone)) if isinstance(at, slice) else at, side="right")
        rounded = xp.bincount(tensors[gone & (left != 0)], minlength=len(ends))
        waiting = xp.stack([xp.asarray(xp.count_nonzero(self.residual[part] != 0)) for part in self._layout.parts])
        return gone & (waiting > rounded)[tensors]

    def state(self) -> dict[str, Array]:
        """Return residual and velocity."""
        return super().state() | {"velocity": self.velocity}

    def load(self, state: dict[str, Array]) -> None:
        """Restore copies of residual and velocity."""
        super().load(state)
        self._velocity = state["velocity"].copy()


def check_momentum(momentum: float, name: str = "momentum") -> None:
    """Raise TypeError or ValueError unless ``momentum``, the argument ``name``, is a number in [0, 1)."""
    check_range(name, momentum, "[0, 1)", "0.9 is usual")
