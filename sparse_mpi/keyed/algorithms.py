"""The allreduce of entries, in three ways; each gives the same bytes on every rank.

====================  =================================================  ==========================
algorithm             words of a rank, m entries each, u in the result   messages of a rank
====================  =================================================  ==========================
`split`               m (P-1)/P to owners, u (P-1)/P gathered            P - 1 + ceil(log2 P)
`doubling`            the entries of 1, 2, 4, ... ranks merged           log2 P, 2 more if P is none
`gather`              m (P - 1)                                          ceil(log2 P)
====================  =================================================  ==========================

`split` and `gather` combine in the order of the ranks, `doubling` in that of a binary tree.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.comm.quantiles import Pool
from sparse_mpi.keyed.entries import Entries, joined, merged
from sparse_mpi.keyed.messages import Format
from sparse_mpi.keyed.ownership import dealt, everything, regions_of


def split(entries: Entries, op: np.ufunc, pool: Pool, form: Format, comm: Comm) -> Entries:
    """Combine each key at the rank that owns it, and gather what all have."""
    regions = regions_of(pool, comm.size)
    own = owned(entries, op, regions, form, comm)
    message, _ = form.pack(own, np.array([len(own.keys)]), regions[comm.rank : comm.rank + 1])
    gathered, lengths = comm.allgatherv(message)
    return joined(form.unpack(gathered, lengths, regions))


def owned(entries: Entries, op: np.ufunc, regions: np.ndarray, form: Format, comm: Comm) -> Entries:
    """Return what all ranks have of the keys in this rank's region, combined in rank order."""
    message, lengths = form.pack(entries, dealt(entries, regions), regions)
    received, lengths = comm.alltoallv(message, lengths)
    own = np.tile(regions[comm.rank], (comm.size, 1))
    return merged(form.unpack(received, lengths, own), op)


def doubling(entries: Entries, op: np.ufunc, pool: Pool, form: Format, comm: Comm) -> Entries:
    """Combine with one other rank, then as two with two, and so on; ranks beyond a power of two join in by another."""
    rank, size = comm.rank, comm.size
    core = 1 << (size.bit_length() - 1)  # the ranks that double
    extra = size - core  # the first of them act for one more rank each, number core + their own
    if rank >= core:
        _exchanged(entries, rank - core, None, pool, form, comm)
        return _exchanged(entries, None, rank - core, pool, form, comm)
    if rank < extra:
        entries = merged([entries, _exchanged(entries, None, core + rank, pool, form, comm)], op)
    apart = 1
    while apart < core:
        other = rank ^ apart
        came = _exchanged(entries, other, other, pool, form, comm)
        entries = merged([entries, came] if rank < other else [came, entries], op)
        apart *= 2
    if rank < extra:
        _exchanged(entries, core + rank, None, pool, form, comm)
    return entries


def _exchanged(entries: Entries, dest: int | None, source: int | None, pool: Pool, form: Format, comm: Comm) -> Entries:
    """Send all entries to ``dest`` and return those of ``source``; None sends or returns none."""
    message, _ = form.pack(entries, np.array([len(entries.keys)]), everything(pool))
    came = comm.sendrecv(message, dest, source)
    return entries if came is None else form.unpack(came, np.array([len(came)]), everything(pool))[0]


def gather(entries: Entries, op: np.ufunc, pool: Pool, form: Format, comm: Comm) -> Entries:
    """Have every rank get all entries, and combine them itself."""
    return merged(gathered(entries, pool, form, comm), op)


def gathered(entries: Entries, pool: Pool, form: Format, comm: Comm) -> list[Entries]:
    """Return the entries of every rank."""
    message, _ = form.pack(entries, np.array([len(entries.keys)]), everything(pool))
    all_of_them, lengths = comm.allgatherv(message)
    return form.unpack(all_of_them, lengths, np.tile(everything(pool), (comm.size, 1)))


ALGORITHMS = {"split": split, "doubling": doubling, "gather": gather}
