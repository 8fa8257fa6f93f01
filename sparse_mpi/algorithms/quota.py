"""Quota: a step of a shape that follows from n, k and P alone.

Costs 2k(P-1)/P entries, each a value and a place of 2 bytes (4 below a density of 0.2 %), and P - 1 + ceil(log2 P)
messages: an all-to-all and an allgather, both of equal lengths. Returns q entries of each of V parts, V q of k at most,
fewer only where sums are zero.

Runs of 64 neighbouring entries are dealt out to parts, so that each is a fair sample of the vector (`kernels.parts`),
and quotas replace thresholds: a rank sends a part's owner its q largest entries there, and the owner returns the q
largest sums. No rank counts, balances, or waits for a number. Parts have at most 65,536 places, unless q would be below
128.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits
from sparse_mpi.algorithms.oktopk import OkTopk
from sparse_mpi.arrays import Array, like, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.kernels.base import code_places
from sparse_mpi.kernels.parts import RUN, SHORT, EqualParts
from sparse_mpi.select import Selector
from sparse_mpi.select.quotas import PartEntries, Quotas, Shares
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.states import ranged
from sparse_mpi.wire import Coo, Wire
from sparse_mpi.wire.codecs import Codec

FEWEST = 16  # entries for each rank, and runs of a part, below which quotas leave large entries out
LOGGER = logging.getLogger("sparse_mpi")
QUOTA = 128  # entries of a part below which it is rather wide, with places of 4 bytes
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class _QuotaState:
    """The last step's thresholds, which save time and change no result; and Ok-Topk's state for small k."""

    few: Any
    mine: Array = ranged("[0, bits)", make=lambda: _NONE)  # (V + 1,) of this rank's selection, and their margin
    ours: Array = ranged("[0, bits)", make=lambda: _NONE)  # (V / P + 1,) of the sums that this rank owns


class _CodedMessages(NamedTuple):
    """Messages in which values are codes with scales: of one length, too."""

    parts: EqualParts
    codec: Codec
    real: np.dtype
    codes: int  # bytes
    scales: int  # bytes

    @staticmethod
    def of(parts: EqualParts, wire: Wire, real: np.dtype) -> _CodedMessages | None:
        """Return None if values are not rounded."""
        codec = wire.codec
        if codec is None or codec.lossless:
            return None
        edges = _edges(parts.entries, 1, codec.block or parts.entries)
        number = real.itemsize if codec.code_bytes is None else codec.code_bytes
        codes = number * int(code_places(edges, 8 // codec.together)[-1])
        return _CodedMessages(parts, codec, real, codes, 4 * (-(-parts.entries // codec.block) if codec.block else 0))

    @property
    def length(self) -> int:
        return self.codes + self.scales + self.parts.entries * self.parts.place.itemsize

    def write(self, messages: Array) -> tuple[Array, Array, Array, Array]:
        """Return coded ``messages`` ``(m, .)``; places, values, and values as they arrive ``(m, entries)``."""
        places, values = self.parts.opened(messages, self.real)
        number, edges, ends = len(messages), self._edges(len(messages)), self.codes + self.scales
        flat = SparseVector(places.astype(np.int32).reshape(-1), values.reshape(-1), 1 << 31)
        codes, scales = self.codec.encode(flat, edges)
        buffer = namespace(values).empty((number, self.length), np.uint8)
        buffer[:, : self.codes] = codes.view(np.uint8).reshape(number, -1)
        if self.scales:
            buffer[:, self.codes : ends] = scales.view(np.uint8).reshape(number, -1)
        buffer[:, ends:] = places.view(np.uint8)
        arriving = self.codec.decode(codes, scales, edges, self.real).reshape(number, -1)
        return buffer, places, values, arriving

    def read(self, buffer: Array) -> Array:
        """Return messages ``(m, length)``."""
        number, ends, xp = len(buffer), self.codes + self.scales, namespace(buffer)
        codes = xp.ascontiguousarray(buffer[:, : self.codes]).reshape(-1)
        scales = xp.ascontiguousarray(buffer[:, self.codes : ends]).reshape(-1).view(np.float32)
        values = self.codec.decode(codes, scales, self._edges(number), self.real).reshape(number, -1)
        return self.parts.written(xp.ascontiguousarray(buffer[:, ends:]).view(self.parts.place), values)

    def _edges(self, number: int) -> np.ndarray:
        return _edges(self.parts.entries, number, self.codec.block) if self.codec.block else _NONE


@lru_cache(maxsize=64)
def _edges(entries: int, number: int, block: int) -> np.ndarray:
    """Return the edges of blocks of values; each of ``number`` messages begins a new block."""
    starts = np.arange(number)[:, None] * entries + np.arange(0, entries, block)
    return np.append(starts, number * entries)


@dataclass(frozen=True)
class Quota(Algorithm):
    """Sparse allreduce of about k entries, equally many from each part.

    With fewer than 16 entries or 1,024 elements a rank, and alone, it is `OkTopk`: quotas would leave large entries
    out.

    Args:
        wire: the format with the values' codec: coo32 or packed for float32, packed+bf16, packed+int8. Places have 2 or
            4 bytes in each.
    """

    wire: Wire = Coo()
    selector: Selector = field(default=Quotas(), init=False, repr=False)
    few: OkTopk = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "few", OkTopk(wire=self.wire))

    @property
    def traits(self) -> Traits:
        return Traits(lossless=self.wire.lossless, accumulates=True)

    def init(self, layout: Layout, k: int, ranks: int) -> _QuotaState:
        return _QuotaState(self.few.init(layout, k, ranks))

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: _QuotaState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, _QuotaState]:
        """Return the q largest sums of each part; ``sent`` is this rank's share."""
        if few(len(acc), k, comm.size):
            said = comm.attributes.setdefault(few, set())
            if comm.rank == 0 and comm.size > 1 and (len(acc), k) not in said:
                said.add((len(acc), k))
                LOGGER.warning("sparse_mpi: quota reduces by oktopk: %d of %d entries are too few", k, len(acc))
            reduction, of_few = self.few.reduce(acc, k, comm, state.few, layout, add)
            return reduction, _QuotaState(of_few, state.mine, state.ours)
        parts, passes, real = parts_of(len(acc), k, comm.size), kernels.of(acc), acc.dtype
        mine, ours = _thresholds(state.mine, parts.number, acc), _thresholds(state.ours, parts.each, acc)
        coded, owed = _CodedMessages.of(parts, self.wire, real), None

        # Select: the q largest of each part.
        selected, _ = self.selector.select(acc, k, Shares(parts, mine), add)
        messages = cast("PartEntries", selected).rows

        # Reduce-scatter: the owner of a part adds up the messages in the order of ranks.
        leaving = messages
        if coded is not None:
            leaving, places, _, arriving = coded.write(messages)
            messages = parts.written(places, arriving)
        came, _ = comm.alltoallv(leaving)
        sums = passes.add_parts(came if coded is None else coded.read(came), parts, ours, real)

        # Allgather: every rank gets the q largest sums of each part. Rounding errors stay with the owner.
        leaving = sums
        if coded is not None:
            (leaving,), _, exact, arriving = coded.write(sums[None])
            with np.errstate(invalid="ignore"):  # Inf - Inf is NaN, for which the residual becomes 0
                owed = (exact - arriving)[0]
        everything = comm.allgather(leaving)
        everything = everything if coded is None else coded.read(everything)
        indices, total, sent = passes.from_parts(everything, parts, messages, owed, comm.rank, real)
        reduction = Reduction(SparseVector(indices, total, len(acc)), SparseVector(indices, sent, len(acc)))
        return reduction, _QuotaState(state.few, mine, ours)

    def selected_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        if few(layout.size, k, ranks):
            return self.few.selected_band(layout, k, ranks)
        parts = parts_of(layout.size, k, ranks)  # zeros count, too
        return (parts.quota * parts.number,) * 2

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        if few(layout.size, k, ranks):
            return self.few.result_band(layout, k, ranks)
        parts = parts_of(layout.size, k, ranks)
        # Sums may be zero, and beside a much larger neighbour a value may be rounded to zero
        scaled = self.wire.codec is not None and self.wire.codec.block
        return 0 if scaled else 0.9 * min(parts.quota * parts.number, k, layout.size), k

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """Return the exact size of a rank's messages, the same in every step."""
        if few(layout.size, k, ranks):
            return self.few.bound(layout, k, ranks)
        parts, real = parts_of(layout.size, k, ranks), np.dtype(np.float32)
        coded, number = _CodedMessages.of(parts, self.wire, real), 2 * (ranks - 1)
        values = 0 if coded is not None else number * parts.entries
        length = parts.length(real) if coded is None else coded.length
        return Bound(0, values, ranks - 1 + rounds(ranks), 0, number * length - 4 * values)


def few(size: int, k: int, ranks: int) -> bool:
    """Tell if quotas are too small, or parts too short, to find the largest entries; alone there are no parts."""
    return ranks == 1 or k < FEWEST * ranks or size < FEWEST * RUN * ranks


@lru_cache(maxsize=64)
def parts_of(size: int, k: int, ranks: int) -> EqualParts:
    """Return parts with places of 2 bytes, the same number for each owner, with quotas of at least `QUOTA`."""
    each = max(1, min(-(-size // (ranks * SHORT)), k // (ranks * QUOTA), (1 << 16) // ranks))
    number = each * ranks
    width = EqualParts(size, number, 0).width
    return EqualParts(size, number, width if k >= size else min(k // number, width), ranks)


def _thresholds(known: Array, number: int, acc: Array) -> Array:
    fits = len(known) == number + 1
    return like(known, acc) if fits else namespace(acc).zeros(number + 1, np.int64)
