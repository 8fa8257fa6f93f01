"""Changes of gradients between their passes and the step, in the first steps: `Looks`."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_mpi.training.hooks import bits_of


class Looks:
    """Finds changes of gradients between arrival and step, during the first steps.

    Args:
        steps: number of steps.

    Attributes:
        left: steps still to be looked at.
    """

    def __init__(self, steps: int) -> None:
        self.left = steps
        self._marks: dict[Tensor, Tensor] = {}  # checksum of each gradient on arrival
        self._versions: dict[int, int] = {}  # number of changes of its memory, by address

    def arrived(self, parameter: Tensor) -> None:
        """Take note of the gradient of ``parameter``."""
        gradient = parameter.grad
        if gradient is None:
            return
        self._marks[parameter] = bits_of(gradient)
        if not gradient.is_sparse:
            self._versions[_memory(gradient)] = gradient._version

    def changed(self) -> bool:
        """Return True if a gradient was changed since it arrived; the step has been looked at then."""
        self.left -= 1
        return any(p.grad is None or self._touched(p.grad, mark) for p, mark in self._marks.items())

    def forget(self) -> None:
        self._marks.clear()
        self._versions.clear()

    def _touched(self, gradient: Tensor, mark: Tensor) -> bool:
        # A clip that has not yet bitten leaves the bits; views of a buffer share their number of changes
        if not gradient.is_sparse and self._versions.get(_memory(gradient)) != gradient._version:
            return True
        return not torch.equal(bits_of(gradient), mark)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
