"""Tell torch's own step from a subclass's, and find weights that move without one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparse_mpi.training.hooks import bits_of

MOVES = 8  # moves of the weights between passes that no step has reduced, before `Unstepped` raises
MOVED = (
    "weights must move in the step() of the optimizer that was given, got {passes} backward passes without one, and "
    "other weights in each, as where SAM's first_step() and second_step() move them; give the optimizer whose step() "
    "they call, of SAM its base_optimizer; {door}"
)


def steps_as(optimizer: object, *kinds: type[Optimizer]) -> bool:
    """Tell if the ``step`` of ``optimizer`` is torch's own of one of ``kinds``; a subclass may have another."""
    step = inspect.unwrap(getattr(optimizer, "step", None) or steps_as)  # schedules wrap that of an instance
    own = getattr(step, "__func__", step)
    return any(isinstance(optimizer, kind) and own is inspect.unwrap(kind.step) for kind in kinds)


class Unstepped:
    """Raises RuntimeError where weights move again and again between passes without a step.

    Optimizers such as SAM move weights by other methods than ``step``: gradients would never be reduced. All ranks
    raise in the same pass. A discriminator's passes for the generator, weights clipped or swapped behind a step, and
    accumulation over any number of passes are no error.

    Args:
        door: remedy of the door.
        passes: backward passes that a step may have.
        steps: returns the number of other optimizers' steps along the same weights, which explain moves.
    """

    def __init__(self, door: str, passes: int = 1, steps: Callable[[Tensor], int] = lambda parameter: 0) -> None:
        self._door, self._least, self._steps = door, MOVES + passes, steps
        self.stepped()

    def stepped(self) -> None:
        self._came: set[Tensor] = set()  # parameters that have had a gradient since the step
        self._witness: Tensor | None = None  # stands for all: the first with a second gradient since the step
        self._seen = 1  # backward passes since the step
        self._known = 0
        self._marks: list[Tensor] = []  # checksum of the witness in each pass behind the first

    def arrived(self, parameter: Tensor) -> None:
        if parameter not in self._came:
            self._came.add(parameter)
            return
        if self._witness is None:
            self._witness = parameter
        if parameter is not self._witness:
            return
        self._seen += 1
        if not self._marks:
            self._known = self._steps(parameter)
        self._marks.append(bits_of(parameter.detach()))
        # A device is waited for once in so many passes
        if len(self._marks) <= MOVES:
            return
        marks, self._marks = torch.stack(self._marks).tolist(), []
        moved = all(before != after for before, after in pairwise(marks))
        if moved and self._seen > self._least and self._steps(parameter) == self._known:
            passes = self._seen
            self.stepped()
            raise RuntimeError(MOVED.format(passes=passes, door=self._door))
