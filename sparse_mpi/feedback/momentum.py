"""Apply momentum correction and masking (Deep Gradient Compression: Lin et al., ICLR'18) instead of SGD's momentum.

SGD with momentum on sparse sums would apply its momentum to late gradients as if they were new. So every rank has the
momentum of its own gradients, ``u = m u + g``, and accumulates it, ``v += u``; entries are selected from v. Sent
entries are subtracted from v, and u becomes zero there (masking): stale momentum is not applied again.

The paper masks a rank's selection. In some collectives a rank rounds its selection, or sends a part: so this masks by
the change of v.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sparse_mpi.arrays import Array, index_dtype, like, namespace, widened
from sparse_mpi.checks import check_range, check_switch, present
from sparse_mpi.feedback.base import ErrorFeedback, FeedbackTraits, add, fitted
from sparse_mpi.feedback.leaky import LeakyFeedback
from sparse_mpi.sparse import Layout, SparseVector, merge

LAST = "last"  # the key, in a state, of the last result


@dataclass(eq=False)
class MomentumCorrection(ErrorFeedback):
    """Error feedback of momentum: v is the residual, u the velocity. The optimizer's own momentum must be 0.

    Args:
        momentum: m, in [0, 1); with 0 this is `ErrorFeedback`.
        nesterov: accumulate ``g + m u`` in place of u.
        masking: set u to zero where more than half of abs(v) was sent. In a tensor that is sent whole momentum
            continues as in SGD.

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
        _check_momentum(self.momentum)
        check_switch("nesterov", self.nesterov)
        check_switch("masking", self.masking)

    @property
    def traits(self) -> FeedbackTraits:
        return FeedbackTraits(momentum=self.momentum)

    def start(self, layout: Layout, ranks: int) -> MomentumCorrection:
        fresh = super().start(layout, ranks)
        fresh._layout = Layout.of(layout)
        return fresh

    @property
    def velocity(self) -> Array:
        """Return u ``(n,)``, this rank's momentum; zeros before the first step."""
        return np.zeros(self.size, np.float32) if self._velocity is None else self._velocity

    def pending(self, without: Array | None = None) -> Array:
        if without is None:
            return super().pending()
        velocity, gradient = self.velocity, widened(without)
        pushed = gradient + self.momentum * velocity if self.nesterov else velocity.copy()
        before = (velocity - gradient) / self.momentum if self.momentum else 0 * velocity
        for part in self._withheld:
            pushed[part], before[part] = 0, velocity[part]
        velocity[:] = before
        return super().pending(pushed)

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        """Update the velocity in place, ``u = m u + g``; return v, and the array to add to it: u, or ``g + m u``."""
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
        self._withheld = parts

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array, ranks: int = 0) -> None:
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
        """Return a mask of the positions ``at`` with stale momentum: most of v, of magnitude ``before``, was sent.

        Entries not sent, and rounding errors, still need their momentum. A tensor without nonzero entries left to send
        has no late ones.
        """
        layout = present(self._layout, "consume must be called on what start returned, not on its template")
        left = self.residual[at]
        gone = (2 * abs(left) < before) | (before == 0)
        xp, ends = namespace(gone), like(np.cumsum(layout.sizes), gone)
        tensors = xp.searchsorted(ends, xp.arange(len(gone)) if isinstance(at, slice) else at, side="right")
        rounded = xp.bincount(tensors[gone & (left != 0)], minlength=len(ends))
        waiting = xp.stack([xp.asarray(xp.count_nonzero(self.residual[part] != 0)) for part in layout.parts])
        return gone & (waiting > rounded)[tensors]

    def state(self, replicated: bool = False) -> dict[str, Array]:
        return {} if replicated else super().state() | {"velocity": self.velocity}

    def load(self, state: Mapping[str, Array], ranks: int = 0) -> None:
        super().load(state)
        self._velocity = state["velocity"].copy()


def _check_momentum(momentum: float, name: str = "momentum") -> None:
    check_range(name, momentum, "[0, 1)", "0.9 is usual")


# Take SGD's momentum from the reduced gradient: global momentum (Zhao, Xie, Gao and Li, arXiv 1905.12948).
#
# An optimizer's own momentum pushes an entry that arrives late as if it were news. Here momentum enters before the
# selection: after every step each rank adds its share of the momentum of the result, ``m / P * total``, to its
# residual. The shares add up to the momentum that SGD has where the result has entries. That costs no byte, and
# momentum that is not selected again waits in the residual with the gradient that it belongs to.


@dataclass(eq=False)
class GlobalMomentum(LeakyFeedback):
    """Error feedback with global momentum. The optimizer's own momentum must be 0.

    Between two steps the residual holds the entries not sent, and this rank's share of the momentum. With everything
    sent, as in dense first steps, this is SGD with momentum, to rounding.

    Args:
        momentum: m, in [0, 1); with 0 this is `LeakyFeedback`.
        late: momentum of sparse results, in which entries have waited; None: the same. Checkpoints do not depend on it.
        keep: remaining share of entries not sent, see `LeakyFeedback`; 1 loses nothing.

    Raises:
        TypeError, ValueError: momentum or late is no number in [0, 1), or keep none in (0, 1].
    """

    keep: float = field(default=1.0, kw_only=True)
    momentum: float = 0.9
    late: float | None = field(default=None, kw_only=True, repr=False)
    _last: SparseVector | Array | None = field(default=None, init=False, repr=False)  # the momentum added, over _share
    _share: float = field(default=0.0, init=False, repr=False)  # m / P of that step
    _withheld: SparseVector | None = field(default=None, init=False, repr=False)  # part of ``_last``, in this step
    _sharers: int = field(default=1, init=False, repr=False)  # P

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_momentum(self.momentum)
        if self.late is not None:
            _check_momentum(self.late, "late")

    @property
    def traits(self) -> FeedbackTraits:
        return replace(super().traits, momentum=self.momentum)

    def start(self, layout: Layout, ranks: int) -> GlobalMomentum:
        fresh = super().start(layout, ranks)
        fresh._sharers = ranks
        return fresh

    def withhold(self, parts: Sequence[slice]) -> None:
        """Take the momentum of these parts out of the residual until `consume` puts it back."""
        if self._withheld is not None:
            add(self.residual, _times(self._withheld, self._share))
        self._withheld = None
        if parts and self._last is not None:
            if not isinstance(self._last, SparseVector):
                self._last = like(self._last, self.residual)
            held = _within(self._last, parts)
            if len(held.indices):
                self._withheld = held
                add(self.residual, _times(held, -self._share))

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array, ranks: int = 0) -> None:
        """Subtract ``sent``, let the rest leak, and add this rank's share of ``total``'s momentum where finite."""
        super().consume(sent, total)
        self._sharers = ranks or self._sharers
        self._last, self._share = _finite(total, self.residual.dtype), self.momentum / self._sharers
        if isinstance(self._last, SparseVector) and self.late is not None and self.momentum:
            self._last = _times(self._last, self.late / self.momentum)
        held, self._withheld = self._withheld, None
        if held is not None and isinstance(self._last, SparseVector):
            both = [namespace(held.values).concatenate(pair) for pair in zip(self._last[:2], held[:2], strict=True)]
            self._last = merge(SparseVector(both[0], both[1], held.size))
        elif held is not None and not isinstance(self._last, SparseVector):
            add(self._last, held)
        add(self.residual, _times(self._last, self._share))

    def contribution(self, acc: Array, sent: SparseVector | Array) -> Array:
        """Return the part of acc ``(n,)`` lost before the leak and the momentum."""
        lost = super().contribution(acc, sent)
        if self._last is not None:
            add(lost, _times(self._last, self._share / self.keep))
        return lost

    def state(self, replicated: bool = False) -> dict[str, Array]:
        """Return the residual, or with ``replicated`` the finite last result, which gave the momentum.

        A tensor without a gradient has the result of its last step with one; late entries are scaled down.
        """
        if not replicated:
            return super().state()
        last = np.zeros(len(self.residual), np.float32) if self._last is None else self._last
        return {LAST: last.to_dense() if isinstance(last, SparseVector) else last}

    def load(self, state: Mapping[str, Array], ranks: int = 0) -> None:
        super().load(state)
        self._sharers = ranks or self._sharers
        self._last, self._share = state[LAST].copy(), self.momentum / self._sharers


def _finite(total: SparseVector | Array, dtype: object) -> SparseVector | Array:
    values = total.values if isinstance(total, SparseVector) else total
    xp = namespace(values)
    finite = xp.where(xp.isfinite(values), values, 0).astype(dtype, copy=False)
    return SparseVector(total.indices.copy(), finite, total.size) if isinstance(total, SparseVector) else finite


def _within(x: SparseVector | Array, parts: Sequence[slice]) -> SparseVector:
    if not isinstance(x, SparseVector):
        found = namespace(x).flatnonzero(x).astype(index_dtype(len(x)))
        x = SparseVector(found, x[found], len(x))
    # What is inside of a part lies behind an odd number of bounds
    bounds = np.sort(np.array([(part.start, part.stop) for part in parts], x.indices.dtype), axis=None)
    at = namespace(x.indices).searchsorted(like(bounds, x.indices), x.indices, side="right") % 2 == 1
    return SparseVector(x.indices[at], x.values[at], x.size)


def _times(x: SparseVector | Array, factor: float) -> SparseVector | Array:
    factor = float(factor)  # a number of NumPy would widen
    return x._replace(values=factor * x.values) if isinstance(x, SparseVector) else factor * x
