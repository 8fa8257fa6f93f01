"""Copies of residuals on the next rank, which adds them to its own when the owner is lost.

The copy is renewed part by part in ``every`` steps. Entries sent before a part's next turn must not be sent twice:
those in the result, and others that the owner sends, become 0 in the copy. So a lost rank loses its additions to the
residual since the last renewal, and the held-back part of results' entries.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms import Reduction
from sparse_mpi.arrays import Array, is_device, namespace, widened
from sparse_mpi.checks import present
from sparse_mpi.comm import Comm
from sparse_mpi.comm.counting import received
from sparse_mpi.sparse import SparseVector

WORD = 8  # bits in an entry of the notes of a `_HeldCopy`
ROUNDINGS = ("exact", "bfloat16")
PARTS = 25  # most parts of a copy, a message each; 50 to 200 took as long


class _HeldCopy:
    """A copy of a residual ``(n,)``, without entries that have left the owner since.

    In host memory these are noted in a bit each: n / 8 bytes stay in a cache, unlike the copy.
    """

    def __init__(self, values: Array) -> None:
        self._values = values
        self._dropped = None if is_device(values) else np.zeros(-(-len(values) // WORD), np.uint8)

    def drop(self, indices: Array) -> None:
        if self._dropped is None:
            kernels.of(self._values).clear(self._values, indices)
        else:
            kernels.of(self._values).mark(self._dropped, indices)

    def renew(self, place: slice, values: Array) -> None:
        """Replace entries of a ``place``, from one multiple of `WORD` to another or n."""
        self._values[place] = values
        if self._dropped is not None:
            self._dropped[place.start // WORD : -(-place.stop // WORD)] = 0

    def values(self) -> Array:
        """Return the copy ``(n,)``, and give it away."""
        if self._dropped is not None:
            dropped = np.unpackbits(self._dropped, count=len(self._values), bitorder="little")
            self._values[dropped.view(bool)] = 0
        return self._values


class _Part(NamedTuple):
    number: int
    place: slice  # slice of the residual
    values: Array  # values before the step


class _Staged(NamedTuple):
    """A running step's changes of the copy."""

    total: SparseVector | Array  # the result, which leaves it
    given: Array | None = None  # (m,) int32 or int64, entries that the owner sent and that are not in the result
    whole: tuple[int, Array] | None = None  # its owner, by its number at the start, and a whole copy after the step


class Copies:
    """The copy of the previous rank's residual here, renewed in ``every`` steps."""

    def __init__(self, every: int, rounding: str) -> None:
        self.every, self.rounding = every, rounding
        self.owner: int | None = None  # the owner's number at the start
        self._held: _HeldCopy | None = None
        self._parts = min(every, PARTS)
        self._taken = np.zeros(self._parts, np.int64)  # the step before which each part was renewed
        self._steps = 0  # number of completed steps
        self._since = 0  # likewise, when there was a whole copy
        self._whole = False  # only a part need be sent; never where each step has all of it
        self._part: _Part | None = None  # part of the running step
        self._owing: Array | None = None  # (m,) entries of the residual before the step, where some may be given away
        self._staged: _Staged | None = None

    def begin(self, residual: Array, comm: Comm, gives_away: bool = False) -> None:
        """Send a part of the residual ``(n,)`` to the next rank before the step, if it is due. Collective.

        For ``gives_away`` see `exchange`.
        """
        self._part, self._owing = None, residual.nonzero()[0] if gives_away and self._whole else None
        number = self._due() if self._whole else None
        if number is not None and comm.size > 1:
            place = self._place(number, len(residual))
            before, after = _neighbours(comm)
            came = comm.sendrecv(self._rounded(residual[place].copy()), after, before)
            self._part = _Part(number, place, received(came))

    def exchange(self, acc: Array, staged: Reduction, gives_away: bool, members: list[int], comm: Comm) -> None:
        """Stage the effect on the copy of a step with ``acc`` ``(n,)`` and reduction ``staged``. Collective.

        In the first step, and the first completed after a loss, the next rank gets the whole new residual, else the
        entries that this one ``gives_away``, see `Traits.delegates_residual`. ``members`` are the ranks of ``comm``, by
        their numbers at the start.
        """
        given, whole = None, None
        before, after = _neighbours(comm)
        if comm.size > 1 and not self._whole:
            came = comm.sendrecv(self._rounded(_left(acc, staged.sent)), after, before)
            whole = members[before], received(came)
        elif comm.size > 1 and gives_away:
            given = comm.sendrecv(_not_in(staged.total, self._given(acc, staged.sent)), after, before)
        self._staged = _Staged(staged.total, given, whole)

    def _given(self, acc: Array, sent: SparseVector | Array) -> Array:
        if isinstance(sent, SparseVector):
            return sent.indices
        owing, self._owing = sent.nonzero()[0] if self._owing is None else self._owing, None
        return owing[_left(acc, sent)[owing] == 0]

    def commit(self) -> None:
        self._steps += 1
        staged = present(self._staged, "commit must follow exchange, which has not been called in this step")
        part, self._staged, self._part = self._part, None, None
        if staged.whole is not None:
            self.owner, values = staged.whole
            self._held, self._whole = _HeldCopy(values), self.every > 1
            self._taken[:], self._since = self._steps - 1, self._steps
        elif self._held is not None:
            # A part is from before the step: entries that the owner sent in it leave the copy after that.
            if part is not None:
                self._held.renew(part.place, part.values)
                self._taken[part.number] = self._steps - 1
            total = staged.total
            self._held.drop(total.indices if isinstance(total, SparseVector) else namespace(total).flatnonzero(total))
            if staged.given is not None:
                self._held.drop(staged.given)

    def send_all(self) -> None:
        """Send the next copy whole: the ranks have other neighbours."""
        self._whole, self._staged, self._part = False, None, None

    def inherit(self, lost: Set[int], leak: float) -> tuple[int, Array] | None:
        """Return the copy's owner, if it is ``lost``, and the copy ``(n,)``, which is given away.

        ``leak`` is the share of a residual that fades in a step.
        """
        if self.owner is None or self.owner not in lost:
            return None
        owner, held = self.owner, present(self._held, "an owner must have a copy, and this one has none")
        self.forget()
        copy = widened(held.values()) if self.rounding == "bfloat16" else held.values()
        for part, taken in enumerate(self._taken.tolist() if leak else ()):
            copy[self._place(part, len(copy))] *= copy.dtype.type((1 - leak) ** (self._steps - taken))
        return owner, copy

    def forget(self) -> None:
        """Hold nothing, and send all in the next step."""
        self.owner, self._held = None, None
        self.send_all()

    def _due(self) -> int | None:
        part, since = divmod((self._steps - self._since) * self._parts, self.every)
        return part % self._parts if since < self._parts else None

    def _place(self, part: int, size: int) -> slice:
        words = -(-size // WORD)
        bounds = [number * words // self._parts * WORD for number in (part, part + 1)]
        return slice(min(bounds[0], size), min(bounds[1], size))

    def _rounded(self, part: Array) -> Array:
        part[~namespace(part).isfinite(part)] = 0
        if self.rounding == "exact":
            return part
        return kernels.of(part).to_bfloat16(namespace(part).ascontiguousarray(part, np.float32))


def _neighbours(comm: Comm) -> tuple[int, int]:
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def _left(acc: Array, sent: SparseVector | Array) -> Array:
    left = acc.copy()
    with np.errstate(invalid="ignore"):
        if isinstance(sent, SparseVector):
            kernels.of(left).subtract(left, sent.indices, sent.values)
        else:
            left -= sent
    return left


def _not_in(total: SparseVector | Array, indices: Array) -> Array:
    if not isinstance(total, SparseVector):
        return indices[total[indices] == 0]
    if indices is total.indices:
        return indices[:0]
    indices = indices.astype(total.indices.dtype, copy=False)
    return indices[~kernels.of(indices).contains(total.indices, indices)]
