"""Allreduce of entries, in four ways, with the same bytes on every rank.

====================  =================================================  ==========================
algorithm             words of a rank, m entries each, u in the result   messages of a rank
====================  =================================================  ==========================
`split`               m (P-1)/P to owners, u (P-1)/P gathered            2 (P - 1), or P - 1 + 2 ceil(log2 P)
`butterfly`           in stages of d, e, ... groups: m (d-1)/d, then     2 (d - 1 + e - 1 + ...)
                      v/d (e-1)/e, v of d ranks merged, ...; u (P-1)/P
`doubling`            the entries of 1, 2, 4, ... ranks merged           log2 P, 2 more if P is none
`gather`              m (P - 1)                                          ceil(log2 P)
====================  =================================================  ==========================

`split` and `gather` combine in rank order, `butterfly` and `doubling` in a binary tree's.
"""

from __future__ import annotations

from itertools import pairwise, zip_longest
from operator import itemgetter

import numpy as np

from sparse_mpi.algorithms.exchange import divided, doubled, partners
from sparse_mpi.algorithms.quantiles import Pool
from sparse_mpi.arrays import Array
from sparse_mpi.collectives.entries import Entries, joined, merged, merged_runs
from sparse_mpi.collectives.messages import Format
from sparse_mpi.collectives.ownership import counts_by_region, degrees, regions_of
from sparse_mpi.comm import Comm

DIRECT = 8  # ranks up to which results are sent to each of the others: lengths, too, would take log2 P messages


def split(entries: Entries, op: np.ufunc, pool: Pool, form: Format, comm: Comm) -> Entries:
    regions = regions_of(pool, comm.size)
    return _everywhere(owned(entries, op, regions, form, comm), regions, form, comm)


def _everywhere(own: Entries, regions: np.ndarray, form: Format, comm: Comm) -> Entries:
    message, _ = form.pack(own, np.array([len(own.keys)]), regions[comm.rank : comm.rank + 1])
    if comm.size <= DIRECT:
        came, lengths = comm.alltoallv(np.tile(message, comm.size), np.full(comm.size, len(message)))
    else:
        came, lengths = comm.allgatherv(message)
    return form.unpacked(came, lengths, regions)[0]


def owned(entries: Entries, op: np.ufunc, regions: np.ndarray, form: Format, comm: Comm) -> Entries:
    rows, lengths = comm.alltoallv(*form.pack(entries, counts_by_region(entries, regions), regions))
    parts = form.unpack(rows, lengths, np.tile(regions[comm.rank], (comm.size, 1)))
    return merged(parts, op)


def butterfly(entries: Entries, op: np.ufunc, pool: Pool, form: Format, comm: Comm) -> Entries:
    """Narrow a rank's range of keys, stage by stage, to its own region; gather results on the way back.

    Zhao and Canny's Kylix (ICPP'14), on any number of ranks; in stages of two groups, Rabenseifner's allreduce.
    """
    regions, first, last = regions_of(pool, comm.size), 0, comm.size  # the ranks that share the range of this one
    stages: list[tuple[np.ndarray, int, np.ndarray]] = []
    for degree in degrees(pool, form.bytes_each):
        if last - first == 1:  # a group of fewer ranks is done before the others
            break
        # Cut the range, and send each other group its part.
        groups = divided(first, last, degree)
        own = int(np.searchsorted(groups, comm.rank, side="right")) - 1
        ranges = np.stack([regions[groups[:-1], 0], regions[groups[1:] - 1, 1]], axis=1)
        cuts = [0, *np.searchsorted(entries.keys, ranges[1:, 0]).tolist(), len(entries.keys)]
        parts = [entries.part(slice(*ends)) for ends in pairwise(cuts)]
        here = [(comm.rank, parts[own])]
        for there, dest, sources in partners(groups, comm.rank):
            _, came = _exchanged(parts[there], [dest], sources, ranges[[there, own]], form, comm)
            here += zip(sources, came, strict=True)
        # Combine in the order of the ranks, and go on within the own group.
        entries = merged([part for _, part in sorted(here, key=itemgetter(0))], op)
        stages.append((groups, own, ranges))
        first, last = int(groups[own]), int(groups[own + 1])
    if not form.codec.lossless:  # then results are rounded once, by their owner
        return _everywhere(entries, regions, form, comm)
    # The way back: send results to the ranks whose entries were received, and get the other groups' results.
    for groups, own, ranges in reversed(stages):
        found = {own: entries}
        for there, dest, sources in partners(groups, comm.rank):
            _, (found[there],) = _exchanged(entries, sources, [dest], ranges[[own, there]], form, comm)
        entries = joined([found[group] for group in sorted(found)])
    return entries


def doubling(entries: Entries, op: np.ufunc, pool: Pool, form: Format, comm: Comm) -> Entries:
    ranges = np.tile(pool.range, (2, 1))

    def swap(entries: Entries, dest: int | None, source: int | None) -> tuple[Entries, Entries]:
        dests, sources = ([] if rank is None else [rank] for rank in (dest, source))
        mine, came = _exchanged(entries, dests, sources, ranges, form, comm)
        return mine, came[0] if came else mine

    return doubled(entries, swap, lambda first, second: merged([first, second], op), comm)


def _exchanged(
    entries: Entries, dests: list[int], sources: list[int], ranges: np.ndarray, form: Format, comm: Comm
) -> tuple[Entries, list[Entries]]:
    """Send entries to each of ``dests``; return them as received there, and the entries of ``sources``.

    ``ranges`` ``(2, 2)`` int64 are the smallest and largest keys sent and received.
    """
    message: Array = np.empty(0, np.uint8)
    if dests or not form.codec.lossless:
        message, _ = form.pack(entries, np.array([len(entries.keys)]), ranges[:1])
    came = [comm.sendrecv(message, dest, source) for dest, source in zip_longest(dests, sources)]
    parts = [form.unpack(part, np.array([len(part)]), ranges[1:])[0] for part in came if part is not None]
    return form.seen(entries, message, ranges[:1]), parts


def gather(entries: Entries, op: np.ufunc, pool: Pool, form: Format, comm: Comm) -> Entries:
    return merged_runs(gathered(entries, pool, form, comm)[0], op)


def gathered(entries: Entries, pool: Pool, form: Format, comm: Comm) -> tuple[Entries, np.ndarray]:
    message, _ = form.pack(entries, np.array([len(entries.keys)]), pool.range[None])
    all_of_them, lengths = comm.allgatherv(message)
    return form.unpacked(all_of_them, lengths, np.tile(pool.range, (comm.size, 1)))


ALGORITHMS = {"split": split, "butterfly": butterfly, "doubling": doubling, "gather": gather}
