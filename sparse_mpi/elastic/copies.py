"""Copies of residuals with the next rank, which adds them to its own where their owner is lost.

Any division of what is owed among the ranks is legal, so a copy may simply be added to another residual. A part of the
copy is renewed in each step, so that all of it is in ``every`` steps. Between two renewals the owner sends some of what
was copied: where an entry was in a result, its copy is set to 0, for nothing may be sent twice. What is lost with a
rank is thus what it added to its residual since the last renewal, and what it kept back of entries of the results.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, namespace, widened
from sparse_mpi.comm import Comm
from sparse_mpi.sparse import SparseVector

ROUNDINGS = ("exact", "bfloat16")


class Copies:
    """The copy of the previous rank's residual that this rank holds. It changes only when a step is complete.

    Args:
        every: steps in which a copy is renewed; n / every entries are sent in each.
        rounding: ``"exact"`` copies residuals as they are, ``"bfloat16"`` in two bytes an entry.
    """

    def __init__(self, every: int, rounding: str) -> None:
        self.every, self.rounding = every, rounding
        self.owner: int | None = None  # by its number at the start
        self._held: Array | None = None  # (n,)
        self._whole = False  # whether only a part need be sent
        self._staged: tuple[int, slice, Array] | None = None  # owner, place and values of what came in this step

    def exchange(self, residual: Array, step: int, members: list[int], comm: Comm) -> None:
        """Send a part of this rank's ``residual`` ``(n,)`` to the next one, and stage what comes from the one before.

        In the first step, and in the one after a loss, all of it is sent. Collective.
        """
        self._staged = None
        if comm.size == 1:
            return
        n, part = len(residual), step % self.every
        place = slice(part * n // self.every, (part + 1) * n // self.every) if self._whole else slice(0, n)
        before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        received = comm.sendrecv(self._rounded(residual[place]), after, before)
        assert received is not None, "a message was expected"
        self._staged = members[before], place, received

    def commit(self, total: SparseVector | Array) -> None:
        """Keep what came in this step, and set to 0 what the step's result has: its owner may have sent it."""
        if self._staged is not None:
            self.owner, place, received = self._staged
            if self._held is None or not self._whole:
                self._held, self._whole = received.copy(), True
            else:
                self._held[place] = received
            self._staged = None
        if self._held is not None:
            self._held[total.indices if isinstance(total, SparseVector) else slice(None)] = 0

    def inherit(self, lost: set[int]) -> tuple[int, Array] | None:
        """Return the owner of the copy, if it is among the ``lost``, and the copy ``(n,)``, which is given away.

        After any loss a copy is sent whole again: ranks have other neighbours.
        """
        self._whole, self._staged = False, None
        if self.owner is None or self.owner not in lost:
            return None
        owner, held = self.owner, self._held
        self.owner = self._held = None
        assert held is not None, "an owner has a copy"
        return owner, widened(held) if self.rounding == "bfloat16" else held

    def _rounded(self, part: Array) -> Array:
        """Return ``part`` of a residual as it is sent."""
        if self.rounding == "exact":
            return part
        return kernels.of(part).to_bfloat16(namespace(part).ascontiguousarray(part, np.float32))
