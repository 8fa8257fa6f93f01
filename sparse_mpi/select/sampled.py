"""Selection by the threshold of a sample (DGC: Lin et al., ICLR 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.checks import check_whole
from sparse_mpi.select.base import Selector, accumulate
from sparse_mpi.select.estimate import attempt, settle
from sparse_mpi.select.random import Drawn, check_seed, generator
from sparse_mpi.sparse import Layout, SparseVector

MIN_ENTRIES_ABOVE = 100  # entries of a sample that should reach its threshold: their number varies by a tenth
MAX_ENLARGED_SAMPLE = 1 << 16  # entries up to which a sample is enlarged for that


@dataclass(frozen=True)
class DGC(Selector):
    """Deep Gradient Compression (Lin et al., ICLR 2018): magnitudes beyond the top d^2 n of a sample of d n.

    A count outside [0.7k, 1.3k] multiplies the threshold by 0.7 or 1.3, up to ``corrections`` times; if that does not
    help, the selection is exact top-k. The sample is strided, as in the published program, but starts elsewhere in
    every step; and it is larger than d n where so few numbers would not tell the threshold.

    Args:
        corrections: the most corrections of the threshold in a step.
        seed: seed of the positions at which the samples start, an integer in ``[0, 2**64)``.
    """

    corrections: int = 2
    seed: int = 0

    band: ClassVar[tuple[float, float]] = (0.7, 1.3)

    def __post_init__(self) -> None:
        check_whole("corrections", self.corrections, 0)
        check_seed(self.seed)

    def init(self, layout: Layout, k: int) -> Drawn:
        """Return the state before the first step, in which no sample has been drawn."""
        return Drawn()

    def select(self, x: Array, k: int, state: Drawn, add: Array | None = None) -> tuple[SparseVector, Drawn]:
        """Select between 0.7k and 1.3k entries of ``x`` ``(n,)``."""
        accumulate(x, add)
        threshold = self.sampled_threshold(x, k, state.step)
        tried = attempt(x, threshold, k, self.band)
        for _ in range(self.corrections):
            if tried.selected is not None:
                break
            threshold *= 1.3 if tried.reached > k else 0.7
            tried = attempt(x, threshold, k, self.band)
        return settle(tried, x, k), state.next()

    def sampled_threshold(self, x: Array, k: int, step: int) -> float:
        """Return the magnitude that the share k/n of a strided sample of ``x`` ``(n,)`` reaches.

        Strides are odd, so that they do not hit the same columns of every row where the length of the rows is a power
        of two.
        """
        n = len(x)
        wanted = max(k, min(MIN_ENTRIES_ABOVE * n // k, MAX_ENLARGED_SAMPLE))
        stride = (max(1, n // wanted) - 1) | 1
        start = int(generator(self.seed, step).integers(stride))
        sample = namespace(x).abs(x[start::stride])
        rank = max(1, round(len(sample) * k / n))
        sample.partition(len(sample) - rank)
        return float(sample[len(sample) - rank])
