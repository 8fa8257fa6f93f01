"""Copies of residuals with the next rank, which adds them to its own where their owner is lost.

Any division of what is owed among the ranks is legal, so a copy may simply be added to another residual. A part of the
copy is renewed every few steps, so that all of it is in ``every`` steps. What was copied may be sent before that part's
next turn, and nothing may be sent twice: entries of the result, and those that the owner sends without their being in
the result, are set to 0 in the copy. What is lost with a rank is thus what it added to its residual since the last
renewal, and what it kept back of entries of the results.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms import Reduction
from sparse_mpi.arrays import Array, namespace, widened
from sparse_mpi.comm import Comm
from sparse_mpi.elastic.held import WORD, Held
from sparse_mpi.sparse import SparseVector

ROUNDINGS = ("exact", "bfloat16")
PARTS = 25  # of a copy, at most: a message each. More of them would have ranks wait for each other more often


class _Renewal(NamedTuple):
    """What came from the rank before in a step."""

    owner: int  # by its number at the start
    part: int | None  # of the copy; None is all of it, or nothing
    place: slice  # of the residual
    values: Array  # what is left there after the step
    given: Array  # (m,) int32 or int64, entries that the owner sent and that are not in the result


class _Staged(NamedTuple):
    """What a step that is not complete yet will do to the copy."""

    total: SparseVector | Array  # the result, which leaves it
    renewal: _Renewal | None


class Copies:
    """The copy of the previous rank's residual that this rank holds. It changes only when a step is complete.

    Args:
        every: steps in which a copy is renewed; n / every entries are sent for each.
        rounding: ``"exact"`` copies residuals as they are, ``"bfloat16"`` in two bytes an entry.
    """

    def __init__(self, every: int, rounding: str) -> None:
        self.every, self.rounding = every, rounding
        self.owner: int | None = None  # by its number at the start
        self._held: Held | None = None
        self._parts = min(every, PARTS)
        self._taken = np.zeros(self._parts, np.int64)  # the step before which each part was renewed
        self._steps = 0  # that were completed
        self._since = 0  # likewise, when there was a whole copy
        self._whole = False  # whether only a part need be sent
        self._staged: _Staged | None = None

    def exchange(self, acc: Array, staged: Reduction, gives_away: bool, members: list[int], comm: Comm) -> None:
        """Send a part of what a step will leave in the residual to the next rank, and stage what comes from before.

        In the first step, and in the first that is completed after a loss, all of it is sent; in a step between two
        parts nothing, unless the next rank must know what this one gave away. Collective.

        Args:
            acc: ``(n,)``, with which the step began.
            staged: the step's reduction.
            gives_away: see `Algorithm.gives_away`.
            members: the ranks of ``comm``, by their numbers at the start.
            comm: the ranks that are left.
        """
        part = self._due() if self._whole else None
        self._staged = _Staged(staged.total, None)
        if comm.size == 1 or (self._whole and part is None and not gives_away):
            return
        # Send what will be left, and what was given away.
        place = self._place(part, len(acc)) if self._whole else slice(0, len(acc))
        before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        values, given = self._rounded(_left(acc, staged.sent, place)), _not_in(staged.total, staged.sent)
        xp = namespace(values)
        received = comm.sendrecv(xp.concatenate([values.view(np.uint8), given.view(np.uint8)]), after, before)
        assert received is not None, "a message was expected"
        # Cut what came into the same two arrays.
        cut = values.nbytes
        new = xp.ascontiguousarray(received[:cut]).view(values.dtype)
        lost = xp.ascontiguousarray(received[cut:]).view(given.dtype)
        self._staged = _Staged(staged.total, _Renewal(members[before], part, place, new, lost))

    def commit(self) -> None:
        """Keep what came in this step, which is complete."""
        self._steps += 1
        staged, self._staged = self._staged, None
        assert staged is not None, "only what was exchanged is complete"
        renewal = staged.renewal
        # A whole copy
        if renewal is not None and not self._whole:
            self.owner, self._held, self._whole = renewal.owner, Held(renewal.values.copy()), True
            self._taken[:], self._since = self._steps - 1, self._steps
            return
        if self._held is None:
            return
        # What the owner sent leaves the copy, and a part of it is new.
        total = staged.total
        self._held.drop(total.indices if isinstance(total, SparseVector) else namespace(total).flatnonzero(total))
        if renewal is not None:
            self._held.drop(renewal.given)
            self._held.renew(renewal.place, renewal.values)
            if renewal.part is not None:
                self._taken[renewal.part] = self._steps - 1

    def send_all(self) -> None:
        """Send all of the next copy: the ranks have other neighbours."""
        self._whole, self._staged = False, None

    def inherit(self, lost: Set[int], leak: float) -> tuple[int, Array] | None:
        """Return the owner of the copy, if it is among the ``lost``, and the copy ``(n,)``, which is given away.

        Args:
            lost: ranks, by their numbers at the start.
            leak: the share of a residual that is lost in each step.
        """
        if self.owner is None or self.owner not in lost:
            return None
        owner, held = self.owner, self._held
        self.forget()
        assert held is not None, "an owner has a copy"
        copy = widened(held.values()) if self.rounding == "bfloat16" else held.values()
        for part, taken in enumerate(self._taken.tolist() if leak else ()):
            copy[self._place(part, len(copy))] *= copy.dtype.type((1 - leak) ** (self._steps - taken))
        return owner, copy

    def forget(self) -> None:
        """Hold nothing any more; send all in the next step."""
        self.owner, self._held, self._whole, self._staged = None, None, False, None

    def _due(self) -> int | None:
        """Return the part to renew in the next step, if it is the turn of one."""
        part, since = divmod((self._steps - self._since) * self._parts, self.every)
        return part % self._parts if since < self._parts else None

    def _place(self, part: int | None, size: int) -> slice:
        """Return where a ``part``, of as many as there are, lies in a residual of this ``size``; None lies nowhere."""
        if part is None:
            return slice(0, 0)
        words = -(-size // WORD)
        bounds = [number * words // self._parts * WORD for number in (part, part + 1)]
        return slice(min(bounds[0], size), min(bounds[1], size))

    def _rounded(self, part: Array) -> Array:
        """Return ``part`` of a residual as it is sent."""
        if self.rounding == "exact":
            return part
        return kernels.of(part).to_bfloat16(namespace(part).ascontiguousarray(part, np.float32))


def _left(acc: Array, sent: SparseVector | Array, place: slice) -> Array:
    """Return what is left of acc in a ``place`` when ``sent`` has left it; 0 where that is no number."""
    part = acc[place].copy()
    with np.errstate(invalid="ignore"):
        if isinstance(sent, SparseVector):
            low, high = namespace(sent.indices).searchsorted(sent.indices, np.array([place.start, place.stop])).tolist()
            part[sent.indices[low:high] - place.start] -= sent.values[low:high].astype(part.dtype, copy=False)
        else:
            part -= sent[place]
    part[~namespace(part).isfinite(part)] = 0
    return part


def _not_in(total: SparseVector | Array, sent: SparseVector | Array) -> Array:
    """Return the indices ``(m,)`` of ``sent`` that ``total`` does not have."""
    if not isinstance(sent, SparseVector):
        return namespace(sent).zeros(0, np.int32)
    if not isinstance(total, SparseVector):
        return sent.indices[total[sent.indices] == 0]
    if sent.indices is total.indices:
        return sent.indices[:0]
    return sent.indices[~kernels.of(sent.indices).contains(total.indices, sent.indices)]
