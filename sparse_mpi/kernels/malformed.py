"""Messages that are not as they were sent: what would make kernels write outside of a vector is found before that."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels.base import Kernels

MISCOUNTED = "it does not have as many indices as entries"


class MalformedMessage(ValueError):
    """Raised for a message that no rank can have sent: memory or a link is at fault, or ranks run different releases.

    Args:
        number: of the message, among those that were read at once.
        messages: read at once.
        problem: what is wrong with it.
    """

    def __init__(self, number: int, messages: int, problem: str) -> None:
        sender = f", of rank {number} where each rank sent one" if messages > 1 else ""
        super().__init__(
            f"message {number} of {messages}{sender}, must be as it was packed, but {problem}; check that all ranks "
            "run the same release, and their memory and network"
        )


class HostKernels(Kernels, Protocol):
    """A kernel set for host memory, where the host can look at what came without waiting for it.

    Its `read_messages` raises `MalformedMessage` for a message that does not have as many indices as entries.
    """

    def misplaced(self, indices: Array, counts: np.ndarray, low: int, high: int) -> int:
        """Return the number of the first message whose indices do not ascend from ``low`` to ``high``; -1 if none.

        Args:
            indices: ``(nnz,)`` of all messages.
            counts: ``(m,)`` int64, the indices of each, which add up to nnz.
            low: the least that an index may be.
            high: the greatest.
        """
