"""Send changes of the gradient instead of the gradient: EF21 with momentum (Fatkhullin et al., NeurIPS'23; 2305.15155).

Every rank tracks a running mean of its gradients, ``v``, and all know how far they have told the others of it: ``h``,
whose sum over the ranks is the model's step ``H``. What is sent is a part of ``v - h``, and where nothing is sent the
step goes on as before: nothing arrives late, and so nothing is owed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from sparse_mpi.arrays import Array, namespace, widened
from sparse_mpi.checks import check_range
from sparse_mpi.feedback.base import Feedback, FeedbackTraits, add, fitted
from sparse_mpi.sparse import Layout, SparseVector


@dataclass(eq=False)
class EF21(Feedback):
    """EF21-SGDM: ``v = (1 - a) v + a g``, ``h += sent`` of ``v - h``, ``H += total``; a step's result is H, dense.

    The first gradient is v itself. v is a mean of gradients and not their sum, as the momentum of torch's SGD is: that
    takes a learning rate of 1 / a times as much. The optimizer's own momentum must be 0.

    Args:
        weight: a, the weight of a new gradient in v, in (0, 1]; with 1 there is no momentum.

    Raises:
        TypeError, ValueError: weight is not a number in (0, 1].
    """

    weight: float = 0.1
    _size: int = field(default=0, init=False, repr=False)
    _velocity: Array | None = field(default=None, init=False, repr=False)  # v
    _told: Array | None = field(default=None, init=False, repr=False)  # h
    _estimate: Array | None = field(default=None, init=False, repr=False)  # H, the same on all ranks

    def __post_init__(self) -> None:
        check_range("weight", self.weight, "(0, 1]", "0.1 goes with a momentum of 0.9")

    def start(self, layout: Layout, in_place: bool, ranks: int) -> EF21:
        """Return an instance with the same weight, to which no gradient has come yet.

        Raises:
            ValueError: ``in_place`` is set, but v needs the gradient apart from what is not sent.
        """
        if in_place:
            raise ValueError(
                "in_place must be False with EF21, which needs the gradient apart from what was not sent, got True; "
                "use in_place=False, or feedback='residual'"
            )
        fresh = replace(self)
        fresh._size = Layout.of(layout).size
        return fresh

    @property
    def traits(self) -> FeedbackTraits:
        """Return that the sum of h over the ranks must stay H, which holds the h of every rank, and nothing is late."""
        return FeedbackTraits(momentum=1 - self.weight, defers=False, needs_conservation=True, shardable=False)

    @property
    def residual(self) -> Array:
        """Return ``v - h``, what the other ranks do not know yet, ``(n,)``."""
        velocity, told = self._velocity, self._told
        if velocity is None or told is None:
            return np.zeros(self._size, np.float32)
        with np.errstate(invalid="ignore"):
            return velocity - told

    def accumulate(self, gradient: Array) -> tuple[Array, None]:
        """Update v in place, and return ``v - h`` as acc and nothing to add."""
        gradient = widened(gradient)
        if self._velocity is None or self._told is None or self._estimate is None:
            self._velocity = gradient.copy()
            self._told, self._estimate = (namespace(gradient).zeros_like(gradient) for _ in range(2))
        else:
            self._velocity, self._told = fitted(self._velocity, gradient), fitted(self._told, gradient)
            self._estimate = fitted(self._estimate, gradient)
            self._velocity *= self._velocity.dtype.type(1 - self.weight)
            self._velocity += gradient * gradient.dtype.type(self.weight)
        return self.residual, None

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array, ranks: int = 0) -> Array:
        """Add ``sent`` to h and ``total`` to H; return a copy of H, ``(n,)``, with what in ``total`` is not finite.

        Where ``total`` is not finite all ranks begin anew: h and H are 0 there, and v is if it is not finite.
        """
        velocity, told, estimate = self._velocity, self._told, self._estimate
        if velocity is None or told is None or estimate is None:
            raise RuntimeError("consume must follow accumulate, which has not been called")
        with np.errstate(invalid="ignore"):
            add(told, sent)
            add(estimate, total)
        bad = nonfinite(total)
        told[bad], estimate[bad] = 0, 0
        values = velocity[bad]
        velocity[bad] = namespace(values).where(namespace(values).isfinite(values), values, 0)
        return self._result(total)

    def _result(self, total: SparseVector | Array) -> Array:
        estimate = self._estimate
        if estimate is None:
            raise RuntimeError("the result must follow consume, which has not been called")
        result, bad = estimate.copy(), nonfinite(total)
        if isinstance(total, SparseVector):
            result[bad] = total.values[~namespace(total.values).isfinite(total.values)]
        else:
            result[bad] = total[bad]
        return result

    def state(self, replicated: bool = False) -> dict[str, Array]:
        """Return v and h, whose sums over the ranks describe all of them, or H."""
        zeros = np.zeros(self._size, np.float32)
        if replicated:
            return {"estimate": _or(self._estimate, zeros)}
        return {"velocity": _or(self._velocity, zeros), "told": _or(self._told, zeros)}

    def load(self, state: Mapping[str, Array], ranks: int = 0) -> None:
        """Restore copies of v, h and H; of nothing but zeros, as before the first gradient, nothing."""
        self._velocity = self._told = self._estimate = None
        if state["velocity"].any() or state["estimate"].any():
            self._velocity, self._told = state["velocity"].copy(), state["told"].copy()
            self._estimate = state["estimate"].copy()


def _or(array: Array | None, zeros: Array) -> Array:
    return zeros if array is None else array


def nonfinite(total: SparseVector | Array) -> Array:
    """Return the positions at which ``total`` is NaN or Inf."""
    if isinstance(total, SparseVector):
        return total.indices[~namespace(total.values).isfinite(total.values)]
    return namespace(total).flatnonzero(~namespace(total).isfinite(total))
