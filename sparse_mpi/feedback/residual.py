"""Add what a step did not send to the next step's gradient: error feedback (Stich et al., NeurIPS'18)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, address, describe, is_device, namespace, widened
from sparse_mpi.feedback.base import Feedback
from sparse_mpi.sparse import Layout, SparseVector


@dataclass(eq=False)
class ErrorFeedback(Feedback):
    """Error feedback with a residual ``(n,)`` of its own: float32, or float64 for float64 gradients.

    The residual is the one large array of the library that changes in place. The first `accumulate` allocates it, in
    the array library of the gradient.
    """

    size: int = field(default=0, init=False, repr=False)
    _residual: Array | None = field(default=None, init=False, repr=False)

    @property
    def works_in_place(self) -> bool:
        """Return True."""
        return True

    def start(self, layout: Layout, in_place: bool, ranks: int) -> ErrorFeedback:
        """Return an instance with a zero residual, or with ``in_place`` an `AdoptedFeedback`."""
        fresh = AdoptedFeedback() if in_place else replace(self)
        fresh.size = Layout.of(layout).size
        return fresh

    @property
    def residual(self) -> Array:
        """Return what has not been sent yet, ``(n,)``; zeros before the first step."""
        return np.zeros(self.size, np.float32) if self._residual is None else self._residual

    def check_gradient(self, gradient: Array) -> None:
        """Raise TypeError if ``gradient`` is in host memory and the residual on a device."""
        if self._residual is not None and is_device(self._residual) and not is_device(gradient):
            raise TypeError(
                f"gradient must be on the device where the residual is, got {describe(gradient)}; pass it from there, "
                "or take the residual to the host first: reducer.load_state_dict(reducer.state_dict())"
            )

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        """Return the residual, and ``gradient``, which must still be added to it in place to make the step's acc."""
        if self._residual is None:
            self._residual = gradient.copy() if gradient.dtype.itemsize > 2 else widened(gradient)
            return self._residual, None
        self._residual = fitted(self._residual, gradient)
        return self._residual, gradient

    def owed(self) -> Array:
        """Return the residual."""
        self._residual = self.residual
        return self._residual

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array) -> None:
        """Subtract ``sent`` from the residual in place.

        Where a sent value is not finite the residual becomes 0: Inf - Inf would poison every later step.
        """
        residual = self.residual
        if isinstance(sent, SparseVector):
            kernels.of(residual).subtract(residual, sent.indices, sent.values)
        else:
            kernels.of(residual).subtract_dense(residual, sent)

    def adopt(self, buffer: Array) -> None:
        """Raise ValueError: this residual has memory of its own."""
        raise ValueError("in_place must be True for a buffer to be adopted; make the reducer with in_place=True")

    def given(self, acc: Array, sent: SparseVector | Array) -> Array:
        """Return ``acc - residual``, ``(n,)``."""
        with np.errstate(invalid="ignore"):
            return acc - self.residual

    def state(self) -> dict[str, Array]:
        """Return the residual."""
        return {"residual": self.residual}

    def check_state(self, state: dict[str, Array]) -> None:
        """Raise ValueError unless ``state`` has every array of `state`, with n elements each."""
        check_sizes(state, self.state(), self.size)

    def load(self, state: dict[str, Array]) -> None:
        """Restore a copy of the residual."""
        self._residual = state["residual"].copy()


@dataclass(eq=False)
class AdoptedFeedback(ErrorFeedback):
    """Error feedback in place: the residual is the very buffer into which autograd accumulates gradients.

    The first step's buffer is adopted, and every later step must pass the same one. It arrives holding
    residual + gradient, because autograd has added the gradient to it, and is left holding the new residual.
    """

    _loaded: Array | None = field(default=None, init=False, repr=False)  # restored before a buffer was adopted

    @property
    def residual(self) -> Array:
        """Return the adopted buffer; before there is one, what was loaded, or zeros."""
        return super().residual if self._loaded is None else self._loaded

    def check_gradient(self, gradient: Array) -> None:
        """Raise ValueError unless ``gradient`` is the adopted buffer, or may become it.

        The first buffer must be at least as precise as a residual that was loaded before it.
        """
        loaded = self._loaded
        if loaded is not None and loaded.dtype.itemsize > gradient.dtype.itemsize:
            raise ValueError(
                f"gradient must be {loaded.dtype} to take up the {loaded.dtype} residual that was loaded, "
                f"got {gradient.dtype}; accumulate gradients into a {loaded.dtype} buffer"
            )
        buffer = self._residual
        if buffer is not None and (address(buffer) != address(gradient) or buffer.dtype != gradient.dtype):
            raise ValueError(
                f"gradient must be the {buffer.dtype} buffer of the first step, which holds the residual "
                f"(in_place=True), got a {gradient.dtype} array elsewhere in memory; accumulate into that buffer and "
                "do not replace it (zero_grad(set_to_none=True) does), or use in_place=False"
            )

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        """Return ``gradient`` itself, which holds the sum already, and a residual that was loaded before, if any."""
        self._residual = gradient
        loaded, self._loaded = self._loaded, None
        return gradient, None if loaded is None else fitted(loaded, gradient)

    def owed(self) -> Array:
        """Return the adopted buffer; before there is one, what was loaded, which waits for it."""
        if self._residual is None:
            self._loaded = self.residual
        return self.residual

    def adopt(self, buffer: Array) -> None:
        """Make ``buffer`` ``(n,)`` the residual: it gets the values of the present one."""
        buffer[...] = namespace(buffer).asarray(self.residual)
        self._residual, self._loaded = buffer, None

    def check_state(self, state: dict[str, Array]) -> None:
        """Raise ValueError unless ``state`` has a residual, of no more precision than the adopted buffer."""
        super().check_state(state)
        buffer, saved = self._residual, state["residual"]
        if buffer is not None and buffer.dtype.itemsize < saved.dtype.itemsize:
            raise ValueError(
                f"state['residual'] must be {buffer.dtype} as the adopted buffer is, got {describe(saved)}; "
                f"accumulate gradients into a {saved.dtype} buffer"
            )

    def load(self, state: dict[str, Array]) -> None:
        """Write the residual to the adopted buffer; before there is one, keep it for the first step."""
        if self._residual is None:
            self._loaded = state["residual"].copy()
        else:
            self._residual[...] = namespace(self._residual).asarray(state["residual"])


def check_sizes(state: Mapping[str, Array], names: Iterable[str], size: int) -> None:
    """Raise ValueError unless ``state`` has the arrays ``names`` with ``size`` numbers each."""
    for name in names:
        found = state.get(name)
        if not isinstance(found, np.ndarray) or found.shape != (size,) or found.dtype not in (np.float32, np.float64):
            raise ValueError(
                f"state[{name!r}] must be an array of {size} numbers, float32 or float64, got {describe(found)}; "
                "load what state_dict() returned, whole"
            )


def add(x: Array, addend: SparseVector | Array) -> None:
    """Add ``addend`` to ``x`` ``(n,)``, in place."""
    if isinstance(addend, SparseVector):
        kernels.of(x).add(x, addend.indices, addend.values.astype(x.dtype, copy=False))
    else:
        x += addend


def fitted(buffer: Array, gradient: Array) -> Array:
    """Return ``buffer`` in the array library of ``gradient``, at least as precise; itself if it already is.

    The result is never less precise than ``buffer``: that would lose bits.
    """
    if isinstance(buffer, np.ndarray) and namespace(gradient) is not np:  # restored on the host
        buffer = namespace(gradient).asarray(buffer)
    return buffer.astype(gradient.dtype) if buffer.dtype.itemsize < gradient.dtype.itemsize else buffer
