"""The reductions of a step, at every door: `Pass`, and the `Place` where a vector's gradients lie."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from torch import Tensor

from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import together
from sparse_mpi.monitor.tracer import Tracer
from sparse_mpi.reduction.engine import StepRefused
from sparse_mpi.training.named_gradients import GradientVector, Total

T = TypeVar("T")


class Place(Protocol):
    """Where the gradients of a vector lie, and where their mean is to lie.

    Attributes:
        vector: reduces the gradients.
    """

    vector: GradientVector

    def collect(self) -> tuple[Tensor, Collection[int]]:
        """Return the gradients ``(n,)``, and the numbers of parameters without one."""

    def write(self, total: Total, divisor: float) -> None:
        """Set ``.grad`` of the parameters to ``total / divisor``."""

    def fail(self) -> None:
        """Set ``.grad`` of the parameters to NaN: a loss scaler is to see the overflow."""


def finished(steps: Iterable[Callable[[], T]]) -> list[T]:
    """Run all ``steps``, also after an error, which leaves nothing under way; then raise the first."""
    results: list[T] = []
    errors: list[Exception] = []
    for step in steps:
        try:
            results.append(step())
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


class Pass:
    """The reductions of a step: begun one by one, refused by all ranks, or written. The same object for all steps.

    Attributes:
        begun: places that are being reduced, in the order of their begin.
        tracer: records when each vector is reduced; None: nobody asks.
    """

    def __init__(self) -> None:
        self.begun: list[Place] = []
        self.tracer: Tracer | None = None
        self._comm: Comm | None = None  # ranks of the reductions

    def open(self, comm: Comm) -> None:
        """Have a first difference between the ranks of ``comm`` end the whole step, see `together`."""
        if self._comm is None:
            self._comm = comm
            together(comm, True)

    def begin(self, place: Place, **options: Any) -> None:
        """Begin to reduce the gradients of a ``place``; ``options`` are as for `GradientVector.start`."""
        gradient, absent = place.collect()
        if self.tracer is not None:
            self.tracer.begin(anew=not self.begun)
        self.open(place.vector.reducer.comm)
        self.begun.append(place)
        handle = place.vector.start(gradient, absent, **options)
        if self.tracer is not None:
            self.tracer.watch(handle, lambda: place.vector.reducer.selections)

    def refused(self, beside: StepRefused | None = None) -> StepRefused | None:
        """Wait for all reductions; if one, or sums ``beside`` them, was refused, withdraw all and return the refusal.

        All ranks refuse alike. The first other error is raised then; else `write` raises it.
        """
        refused: list[StepRefused] = [] if beside is None else [beside]
        errors: list[Exception] = []
        made: list[GradientVector] = []
        for vector in (place.vector for place in self.begun):
            try:
                if vector.handle is not None:
                    vector.handle.wait()
                    made.append(vector)
            except StepRefused as one:
                vector.handle = None
                refused.append(one)
            except Exception as error:
                errors.append(error)
        if not refused:
            return None
        for vector in made:
            vector.handle = None
            vector.reducer.withdraw()
        if errors:
            self.end()
            raise errors[0]
        return max(refused, key=lambda one: one.revised)

    def write(self, divisor: Callable[[GradientVector], float]) -> list[Total]:
        """Wait for all sums, write each over its vector's ``divisor`` to its place, and return the sums.

        Raises:
            Exception: the first error of a reduction, with nothing under way any more.
        """
        try:
            return finished(partial(self._written, place, divisor) for place in self.begun)
        finally:
            self.end()

    def abandon(self) -> None:
        """Wait for all reductions, and withdraw them, on all ranks alike."""
        for vector in (place.vector for place in self.begun):
            handle, vector.handle = vector.handle, None
            if handle is not None:
                with suppress(Exception):
                    handle.wait()
                    vector.reducer.withdraw()
        self.end()

    def end(self) -> None:
        if self.begun and self.tracer is not None:
            self.tracer.end()
        if self._comm is not None:
            together(self._comm, False)
        self.begun, self._comm = [], None

    def _written(self, place: Place, divisor: Callable[[GradientVector], float]) -> Total:
        total = place.vector.wait()
        place.write(total, divisor(place.vector))  # asked for after the sum, in which ranks may be lost
        return total
