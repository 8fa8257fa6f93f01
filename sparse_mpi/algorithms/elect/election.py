"""The count of the votes: which entries are elected, for few bytes of control on any number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms.base import rounds
from sparse_mpi.algorithms.oktopk.global_threshold import (
    Bracket,
    Counted,
    RankCounts,
    bits_end,
    count_type,
    gather_counts,
    narrowed,
    search,
    taken,
)
from sparse_mpi.algorithms.oktopk.predictor import ThresholdPredictor, crossing
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm

MANTISSA = 7  # bits of the mantissa by which sums of votes are told apart: votes have fewer
NEARBY = 4  # thresholds around the predicted one that are counted: remembered sums of votes move little in a step
CANDIDATES = 8  # thresholds that are counted at a time in a search
NOT_ZERO = 1  # magnitude bits that all sums reach but those of entries that nobody has news of
GATHERED = 8  # ranks up to which counts of candidates are gathered, which saves messages, rather than added up


@dataclass(frozen=True)
class Election(Counted):
    """Ok-Topk's rule of counting, but with fewer bytes of control where there are many ranks.

    Counts of candidate thresholds are added up over the ranks; only at the threshold that was found are they gathered.
    """

    mantissa: int = MANTISSA

    def cut(
        self, values: Array, k: int, predictor: ThresholdPredictor, comm: Comm
    ) -> tuple[Array, np.ndarray, ThresholdPredictor]:
        """Decide which of this rank's sums of votes are elected; see `Counted.cut` for arguments and results.

        Sums that are zero are not.
        """
        octave = 1 << np.finfo(values.dtype).nmant
        resolution = max(octave >> self.mantissa, 1)
        bracket, near = Bracket(NOT_ZERO, bits_end(values)), predictor.spacing
        found: RankCounts | None = None

        # The fast path: candidates around the predicted threshold; and the lowest, if there are no more than k sums.
        if near:
            gathered = comm.size <= GATHERED
            nearby = np.unique(np.maximum(predictor.candidates(NEARBY, bracket.high), NOT_ZERO))
            candidates = np.union1d([NOT_ZERO], nearby)
            if gathered:
                counts = gather_counts(values, candidates, k, comm)
                totals = counts.sum(axis=0)
            else:
                own = np.minimum(kernels.of(values).count(values, candidates), k + 1)
                width = np.min_scalar_type((k + 1) * comm.size)
                totals = comm.allreduce(own.astype(width), control=True).astype(np.int64)
            bracket = narrowed(candidates, totals, k, bracket, NOT_ZERO)
            reached = totals[np.searchsorted(candidates, nearby)]
            predictor = predictor.respaced(nearby, reached, k, octave)
            if bracket.settled(resolution):
                if gathered and np.isin(bracket, candidates).all():
                    found = RankCounts.of(bracket, counts[:, np.searchsorted(candidates, bracket)])
                else:
                    found = self._gathered(values, k, comm, bracket)
                predictor = predictor.updated(crossing(nearby, reached, 95 * k // 100), octave)

        # The slow path: the first step of all, or the threshold has moved farther than the candidates reach.
        if found is None:
            bracket = search(values, k, comm, bracket, near, resolution, CANDIDATES, NOT_ZERO)
            found = self._gathered(values, k, comm, bracket)
            predictor = predictor.updated(bracket.low, octave)

        return *taken(values, found, k, comm.rank), predictor

    def _gathered(self, values: Array, k: int, comm: Comm, bracket: Bracket) -> RankCounts:
        """Return how many entries of each rank lie above and inside a settled bracket."""
        ends = np.unique(bracket)
        counts = gather_counts(values, ends, k, comm)
        return RankCounts.of(bracket, counts[:, np.searchsorted(ends, bracket)])

    def bound(self, everything: float, k: int, ranks: int) -> tuple[float, float, int, float]:
        """Return the most that a step of this rule may cost one rank; see `Counted.bound`."""
        entries, values, _, gathered = super().bound(everything, k, ranks)
        searches = self.most_rounds(k)
        counted = 2 * count_type(k).itemsize * (ranks - 1) + 16 * (CANDIDATES + 1) * (searches + 1)
        if ranks > GATHERED:
            return entries, values, (3 + 2 * searches) * rounds(ranks), counted
        return entries, values, (2 + 2 * searches) * rounds(ranks), counted + gathered

    def most_rounds(self, k: int) -> int:
        """Return the rounds that a search may take until all bits are told apart."""
        return 1 + ceil((12 + self.mantissa) / log2(CANDIDATES + 1))
