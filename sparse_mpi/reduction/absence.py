"""Which tensors have no gradient on any rank in a step, as layers that a step skips: torch leaves them as they are."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sparse_mpi.comm import Comm


class Absence:
    """Finds out which of some tensors have no gradient on any rank.

    The ranks ask each other only where a rank lacks other gradients than all of them lacked in the step before. Whether
    one does they learn from the check of arguments, at no cost: see `same_on_all_ranks`.

    Attributes:
        here: the tensors without a gradient on this rank in the next step, set by whoever has the gradients.
        everywhere: those without a gradient on any rank in the last step.
    """

    def __init__(self, tensors: int) -> None:
        self.here: Iterable[int] = ()
        self.everywhere: list[int] = []
        self._tensors = tensors
        self._comm: Comm | None = None  # the ranks that ``everywhere`` is of

    def news(self, comm: Comm) -> bool:
        """Return True if this rank lacks other gradients than all ranks of ``comm`` lacked in the last step."""
        if self._comm is not comm:  # a rank that has joined does not know
            self._comm, self.everywhere = comm, []
        return sorted(self.here) != self.everywhere

    def agree(self, asked: bool, comm: Comm) -> list[int]:
        """Return the tensors without a gradient on any rank. Collective if ``asked``, which is True if any has `news`.

        Costs a byte a tensor (control) then.
        """
        if asked:
            present = np.ones(self._tensors, np.uint8)
            present[sorted(self.here)] = 0
            somewhere = np.asarray(comm.allreduce(present, "max", control=True))
            self.everywhere = np.flatnonzero(somewhere == 0).tolist()
        return self.everywhere
