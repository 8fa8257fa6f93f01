"""The count of the votes: it decides which entries are elected, for few bytes of control on any number of ranks.

It is Ok-Topk's counting (`oktopk/global_threshold.py`) with fewer bytes where there are many ranks: counts of candidate
thresholds are added up over the ranks, and gathered only at the threshold that was found. And it reads a dense vector
of sums, in one pass: what reaches the lowest candidate is taken out, and the rest is done with these few.
"""

from __future__ import annotations

from math import ceil, log2

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms.base import rounds
from sparse_mpi.algorithms.oktopk.counts import Bracket, RankCounts, bits_end, count_type, gather_counts, result_mask
from sparse_mpi.algorithms.oktopk.global_threshold import Counted, narrowed, search
from sparse_mpi.algorithms.oktopk.predictor import ThresholdPredictor, crossing
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.select.base import all_at_least
from sparse_mpi.sparse import SparseVector, take

MANTISSA = 7  # bits of the mantissa by which sums of votes are told apart: votes have fewer
NEARBY = 4  # thresholds around the predicted one that are counted: sums of votes move little in a step
CANDIDATES = 8  # thresholds that are counted at a time in a search
NOT_ZERO = 1  # magnitude bits that every sum reaches but those of entries without a vote
GATHERED = 8  # ranks up to which counts of candidates are gathered, which saves messages, rather than added up


def cut(
    sums: Array, k: int, predictor: ThresholdPredictor, comm: Comm
) -> tuple[SparseVector, np.ndarray, ThresholdPredictor]:
    """Decide which of this rank's sums of votes are elected; those that are zero are not.

    Where sums tie, those of lower rank and lower position are elected until there are k.

    Args:
        sums: ``(width,)`` float32 or float64, the sums of the entries that this rank owns.
        k: entries wanted over all ranks.
        predictor: the state of the step before, equal on all ranks.
        comm: all ranks.

    Returns:
        The elected sums; how many of every rank are elected, ``(P,)`` int64; and the predictor for the next step.
    """
    octave = 1 << np.finfo(sums.dtype).nmant
    resolution = max(octave >> MANTISSA, 1)
    bracket, near = Bracket(NOT_ZERO, bits_end(sums)), predictor.spacing
    counted: RankCounts | None = None

    # The fast path: candidates around the predicted threshold, counted among the sums that reach the lowest of them.
    if near:
        candidates = np.unique(np.maximum(predictor.candidates(NEARBY, bracket.high), NOT_ZERO))
        reaching = all_at_least(sums, int(candidates[0]))
        totals, by_rank = _counts(reaching.values, candidates, k, comm)
        bracket = narrowed(candidates, totals, k, bracket, NOT_ZERO)
        predictor = predictor.respaced(candidates, totals, k, octave)
        if bracket.settled(resolution) and np.isin(bracket, candidates).all():
            if by_rank is None:
                counted = _rank_counts(reaching.values, k, comm, bracket)
            else:
                columns = by_rank[:, np.searchsorted(candidates, bracket)]
                counted = RankCounts.of(bracket, columns, np.zeros(comm.size, np.int64))
            predictor = predictor.updated(crossing(candidates, totals, 95 * k // 100), octave)

    # The slow path: the first step of all, or the threshold has moved farther than the candidates reach.
    if counted is None:
        bracket = search(sums, k, comm, bracket, near=near, resolution=resolution, number=CANDIDATES, lowest=NOT_ZERO)
        reaching = all_at_least(sums, bracket.low)
        counted = _rank_counts(reaching.values, k, comm, bracket)
        predictor = predictor.updated(bracket.low, octave)

    mask, counts = result_mask(reaching.values, counted, k, comm.rank)
    return take(reaching, mask), counts, predictor


def _counts(values: Array, candidates: np.ndarray, k: int, comm: Comm) -> tuple[np.ndarray, np.ndarray | None]:
    """Return how many sums of all ranks reach each of the candidates ``(m,)``, and of each, ``(P, m)``, if gathered."""
    if comm.size <= GATHERED:
        by_rank, _ = gather_counts(values, candidates, k, comm)
        return by_rank.sum(axis=0), by_rank
    own = np.minimum(kernels.of(values).count(values, candidates), k + 1)
    width = np.min_scalar_type((k + 1) * comm.size)
    return comm.allreduce(own.astype(width), control=True).astype(np.int64), None


def _rank_counts(values: Array, k: int, comm: Comm, bracket: Bracket) -> RankCounts:
    """Return how many entries of each rank lie above and inside a settled bracket."""
    ends = np.unique(bracket)
    counts, none = gather_counts(values, ends, k, comm)
    return RankCounts.of(bracket, counts[:, np.searchsorted(ends, bracket)], none)


def bound(everything: float, k: int, ranks: int) -> tuple[float, float, int, float]:
    """Return the most that a step of this rule may cost one rank; see `Counted.bound`."""
    entries, values, _, gathered = Counted(MANTISSA).bound(everything, k, ranks)
    searches = most_rounds(k)
    counted = 2 * count_type(k).itemsize * (ranks - 1) + 16 * (CANDIDATES + 1) * (searches + 1)
    if ranks > GATHERED:
        return entries, values, (3 + 2 * searches) * rounds(ranks), counted
    return entries, values, (2 + 2 * searches) * rounds(ranks), counted + gathered


def most_rounds(k: int) -> int:
    """Return the rounds that a search may take until all bits are told apart."""
    return 1 + ceil((12 + MANTISSA) / log2(CANDIDATES + 1))
