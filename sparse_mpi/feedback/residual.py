"""Error feedback: what a step did not send is added to the next step's gradient (Stich et al., NeurIPS'18)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, address, describe, is_device, namespace, widened
from sparse_mpi.feedback.base import Memory
from sparse_mpi.sparse import SparseVector


@dataclass(eq=False)
class ErrorFeedback(Memory):
    """Keeps a residual ``(n,)`` float32 (float64 for float64 gradients), the one big thing that changes in place.

    It is allocated, in the library of the gradient, by the first `accumulate`.
    """

    size: int = field(default=0, init=False, repr=False)
    _residual: Array | None = field(default=None, init=False, repr=False)

    def start(self, size: int, in_place: bool) -> Memory:
        """An empty residual, or with ``in_place`` none of its own: see `AdoptedFeedback`."""
        fresh = AdoptedFeedback() if in_place else replace(self)
        fresh.size = size
        return fresh

    @property
    def residual(self) -> Array:
        """What has not been sent yet; zeros before the first step."""
        return np.zeros(self.size, np.float32) if self._residual is None else self._residual

    def check_gradient(self, gradient: Array) -> None:
        """Raise TypeError if ``gradient`` is in host memory and the residual on a device."""
        if self._residual is not None and is_device(self._residual) and not is_device(gradient):
            raise TypeError(
                f"gradient must be on the device where the residual is, got {describe(gradient)}; pass it from there, "
                "or take the residual to the host first: reducer.load_state_dict(reducer.state_dict())"
            )

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        """The residual, which becomes the step's acc once ``gradient`` is added to it."""
        if self._residual is None:
            self._residual = gradient.copy() if gradient.dtype.itemsize > 2 else widened(gradient)
            return self._residual, None
        self._residual = fitted(self._residual, gradient)
        return self._residual, gradient

    def consume(self, sent: SparseVector | Array) -> None:
        """``residual -= sent`` in place. Where a value that was sent is not finite, nothing of it is kept: Inf - Inf
        would poison every later step."""
        assert self._residual is not None, "consume follows accumulate"
        if isinstance(sent, SparseVector):
            kernels.of(self._residual).subtract(self._residual, sent.indices, sent.values)
        else:
            with np.errstate(invalid="ignore"):
                self._residual -= sent
            self._residual[~namespace(sent).isfinite(sent)] = 0

    def adopt(self, buffer: Array) -> None:
        """Not of this kind."""
        raise ValueError("in_place must be True for a buffer to be adopted; make the reducer with in_place=True")

    def given(self, acc: Array, sent: SparseVector | Array) -> Array:
        """What acc has lost."""
        with np.errstate(invalid="ignore"):
            return acc - self.residual

    def state(self) -> dict[str, Array]:
        """The residual."""
        return {"residual": self.residual}

    def check_state(self, state: dict[str, Array]) -> None:
        """Raise ValueError unless every array of `state` is there, with n elements."""
        for name in self.state():
            if len(state.get(name, ())) != self.size:
                raise ValueError(
                    f"state must have a {name!r} of {self.size} elements, got {sorted(state)}; "
                    "load what state_dict() returned, whole"
                )

    def load(self, state: dict[str, Array]) -> None:
        """Take up a copy of the residual."""
        self._residual = state["residual"].copy()


@dataclass(eq=False)
class AdoptedFeedback(ErrorFeedback):
    """Error feedback without an addition: the residual is the very buffer that gradients are accumulated into.

    The buffer of the first step is adopted, and every step must bring it again: it comes in as residual + gradient,
    because whoever wrote the gradient added it, and is left as the new residual.
    """

    _owed: Array | None = field(default=None, init=False, repr=False)  # loaded before there was a buffer

    @property
    def residual(self) -> Array:
        """The adopted buffer; before there is one, what was loaded, or zeros."""
        return super().residual if self._owed is None else self._owed

    def check_gradient(self, gradient: Array) -> None:
        """Raise ValueError unless ``gradient`` is the adopted buffer, or the first one and as precise as what it is to
        hold."""
        owed = self._owed
        if owed is not None and owed.dtype.itemsize > gradient.dtype.itemsize:
            raise ValueError(
                f"gradient must be {owed.dtype} to take up the {owed.dtype} residual that was loaded, "
                f"got {gradient.dtype}; accumulate gradients into a {owed.dtype} buffer"
            )
        kept = self._residual
        if kept is not None and (address(kept) != address(gradient) or kept.dtype != gradient.dtype):
            raise ValueError(
                f"gradient must be the {kept.dtype} buffer of the first step, which holds the residual (in_place=True),"
                f" got a {gradient.dtype} array elsewhere in memory; accumulate into that buffer and do not replace it "
                "(zero_grad(set_to_none=True) does), or use in_place=False"
            )

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        """``gradient`` itself: it holds the sum already. What was loaded before the first step has yet to be added."""
        self._residual = gradient
        owed, self._owed = self._owed, None
        return gradient, None if owed is None else fitted(owed, gradient)

    def adopt(self, buffer: Array) -> None:
        """Make ``buffer``, which holds nothing, the residual."""
        buffer[...] = namespace(buffer).asarray(self.residual)
        self._residual, self._owed = buffer, None

    def check_state(self, state: dict[str, Array]) -> None:
        """Raise ValueError unless it has the residual, with no more precision than the adopted buffer has."""
        super().check_state(state)
        kept, saved = self._residual, state["residual"]
        if kept is not None and kept.dtype.itemsize < saved.dtype.itemsize:
            raise ValueError(
                f"state['residual'] must be {kept.dtype} as the adopted buffer is, got {describe(saved)}; "
                f"accumulate gradients into a {saved.dtype} buffer"
            )

    def load(self, state: dict[str, Array]) -> None:
        """Overwrite the adopted buffer with the residual; before there is one, keep it for the first step."""
        if self._residual is None:
            self._owed = state["residual"].copy()
        else:
            self._residual[...] = namespace(self._residual).asarray(state["residual"])


def fitted(buffer: Array, gradient: Array) -> Array:
    """``buffer`` in the library of ``gradient`` and at least as precise; itself where it already is.

    It never becomes less precise: that would lose bits.
    """
    if isinstance(buffer, np.ndarray) and namespace(gradient) is not np:  # restored on the host
        buffer = namespace(gradient).asarray(buffer)
    return buffer.astype(gradient.dtype) if buffer.dtype.itemsize < gradient.dtype.itemsize else buffer
