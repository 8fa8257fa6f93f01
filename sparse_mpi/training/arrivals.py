"""Gradients that have come since the last reduction, and whether they are final then: `Arrivals`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident

from torch import Tensor

from sparse_mpi.training.bucket import Bucket
from sparse_mpi.training.grammar import CHANGED
from sparse_mpi.training.hooks import Hooks
from sparse_mpi.training.optimizer_steps import LOGGER, steps_along
from sparse_mpi.training.own_step import Unstepped

LOOKS = 2  # steps that show whether gradients are final when they come: reductions begin in `synchronize`
DOOR = "or call synchronize() behind each pass, and reduction.stepped() behind each move"


class Arrivals:
    """Takes note of gradients as autograd has them, and says whether reductions may begin as they come.

    Args:
        arrived: called with the parameter of each gradient that comes.
        passes: backward passes that a step sums.
        overlap: True lets reductions begin as gradients come.
        threaded: True where reductions have a thread of their own.

    Attributes:
        came: number of backward passes since the last reduction, by parameter.
        early: False once something has spoken against reductions before the step.
        grown: True if a gradient that came was added to the update of the last step.
        overlaps: ``overlap`` as given.
        open: True while note is taken.
        looks: steps to come in which nothing begins early, to see whether gradients change.
    """

    def __init__(self, arrived: Callable[[Tensor], None], passes: int, overlap: bool, threaded: bool) -> None:
        self.came: Counter[Tensor] = Counter()
        self.overlaps = self.early = overlap
        self.grown, self.open = False, True
        self._hooks, self._passes = Hooks(arrived), passes
        self.looks = LOOKS if overlap else 0
        self._unstepped = Unstepped(DOOR, passes, steps_along)
        # Work at once, on autograd's thread of a device, would keep the other ranks of this process from going through
        # their passes, and it from going on: it is left to the step.
        self._thread = None if threaded else get_ident()

    def follow(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters if self.open else ():
            if parameter.requires_grad:
                self._hooks.add(parameter)

    def close(self) -> None:
        self.open = False
        self._hooks.remove()

    def count(self, parameter: Tensor) -> bool:
        """Take note of a gradient; return True for the last one before the step."""
        self.came[parameter] += 1
        self._unstepped.arrived(parameter)
        return self.came[parameter] == self._passes

    @property
    def may_begin(self) -> bool:
        """Tell if reductions may begin now, on this thread."""
        return self.early and not (self.looks or self.grown) and (self._thread is None or self._thread == get_ident())

    def complete(self, bucket: Bucket) -> bool:
        # A parameter that was frozen meanwhile gets no gradient any more
        return all(self.came[p] == self._passes or not p.requires_grad for p in bucket.parameters)

    def changed(self, buckets: Sequence[Bucket]) -> bool:
        """Tell if gradients have changed since they came; asked once in each step that looks."""
        if not self.looks:
            return False
        self.looks -= 1
        # More backward passes than were awaited add to gradients, too
        return max(self.came.values(), default=0) > self._passes or any(bucket.touched for bucket in buckets)

    def begin_late(self, tells: bool) -> None:
        """Have later reductions begin in the step, and log that once if this rank ``tells``."""
        if self.early and tells:
            LOGGER.warning(CHANGED)
        self.early = False

    def forget(self) -> None:
        self.grown = False
        self.came.clear()
        self._unstepped.stepped()
