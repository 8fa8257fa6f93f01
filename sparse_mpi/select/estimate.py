"""Selection by an estimate of the k-th magnitude: one pass if good, else exact top-k.

Published estimates miss k by a factor of 5 to 50 on other distributions than theirs. Here a selection is used only if
its count is in the selector's band.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, bits_type, namespace
from sparse_mpi.checks import check_whole
from sparse_mpi.select.base import NOT_ZERO, Selector, accumulate
from sparse_mpi.select.exact import largest
from sparse_mpi.select.random import Drawn, check_seed, generator
from sparse_mpi.sparse import Layout, NoState, SparseVector, at_least, truncate

PIECE = 1 << 22  # elements whose squares are added at once
MIN_ENTRIES_ABOVE = 100  # entries of a sample that should reach its threshold: their number varies by a tenth
MAX_ENLARGED_SAMPLE = 1 << 16  # entries up to which a sample is enlarged for that
RATIOS = (0.8, 0.6, 0.4, 0.2, 0.0)
MAX_SELECTED_PER_K = 1.75  # a pass that finds more entries ends early, so that they never fill memory


class _ThresholdPass(NamedTuple):
    selected: SparseVector | None  # the entries that reach it, if their number is in the band
    reached: int  # number of entries that reach it; one more than the band allows if there are too many


def attempt(x: Array, threshold: float, k: int, band: tuple[float, float]) -> _ThresholdPass:
    """Select the entries of ``x`` ``(n,)`` with magnitudes that reach ``threshold``, in one pass; never zeros.

    If k = n all nonzero entries are selected.
    """
    most = max(k, int(band[1] * k))
    passed = at_least(x, max(bits_of(threshold, x), NOT_ZERO) if k < len(x) else NOT_ZERO, most)
    if passed is None:
        return _ThresholdPass(None, most + 1)
    return _ThresholdPass(passed if passed.nnz >= band[0] * k else None, passed.nnz)


def settle(tried: _ThresholdPass, x: Array, k: int) -> SparseVector:
    return largest(x, k) if tried.selected is None else tried.selected


def bits_of(threshold: float, x: Array) -> int:
    """Return the magnitude bits of a threshold in the dtype of ``x``: 0 if negative, Inf's if too large."""
    kind = np.float64 if x.dtype == np.float64 else np.float32
    with np.errstate(over="ignore"):
        return int(np.abs(kind(max(threshold, 0.0))).view(bits_type(x)))


@dataclass(frozen=True)
class Gaussian(Selector):
    """Gaussian (Shi et al., 2019): magnitudes beyond mean + deviation * Phi^-1(1 - d/2).

    The published corrections (x0.5 and x1.5, at most five) leave it at 0.2 %, not 1 %, on a Laplace distribution; here
    a count outside [2k/3, 4k/3] makes it exact top-k.
    """

    band: ClassVar[tuple[float, float]] = (2 / 3, 4 / 3)

    def select(self, x: Array, k: int, state: NoState, add: Array | None = None) -> tuple[SparseVector, NoState]:
        accumulate(x, add)
        with np.errstate(invalid="ignore", over="ignore"):
            mean, square = float(x.mean()), mean_square(x)
            deviation = sqrt(max(square - mean * mean, 0.0))
        threshold = mean + deviation * NormalDist().inv_cdf(1 - k / len(x) / 2)
        return settle(attempt(x, threshold, k, self.band), x, k), state


def mean_square(x: Array) -> float:
    """Return the mean of the squares of ``x`` ``(n,)``.

    BLAS adds float32 in float32: 10^8 elements at once are off by 3e-3, in pieces by 2e-5.
    """
    return sum(float(piece.dot(piece)) for piece in (x[at : at + PIECE] for at in range(0, len(x), PIECE))) / len(x)


@dataclass(frozen=True)
class DGC(Selector):
    """Deep Gradient Compression (Lin et al., ICLR 2018): magnitudes beyond the top d^2 n of a sample of d n.

    A count outside [0.7k, 1.3k] multiplies the threshold by 0.7 or 1.3, up to ``corrections`` times, and then makes the
    selection exact top-k. The sample is strided, as in the published program, but starts elsewhere in every step, and
    is larger than d n if that is too few.

    Args:
        corrections: most corrections of the threshold in a step.
        seed: seed of the samples' starts, an integer in ``[0, 2**64)``.
    """

    corrections: int = 2
    seed: int = 0

    band: ClassVar[tuple[float, float]] = (0.7, 1.3)

    def __post_init__(self) -> None:
        check_whole("corrections", self.corrections, 0)
        check_seed(self.seed)

    def init(self, layout: Layout, k: int) -> Drawn:
        return Drawn()

    def select(self, x: Array, k: int, state: Drawn, add: Array | None = None) -> tuple[SparseVector, Drawn]:
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
        """Return the magnitude that the share k/n of a strided sample of ``x`` ``(n,)`` reaches."""
        n = len(x)
        wanted = max(k, min(MIN_ENTRIES_ABOVE * n // k, MAX_ENLARGED_SAMPLE))
        stride = (max(1, n // wanted) - 1) | 1  # odd: it hits not the same columns of rows of 2^m elements
        start = int(generator(self.seed, step).integers(stride))
        sample = namespace(x).abs(x[start::stride])
        rank = max(1, round(len(sample) * k / n))
        sample.partition(len(sample) - rank)
        return float(sample[len(sample) - rank])


@dataclass(frozen=True)
class RedSync(Selector):
    """RedSync (Fang et al., JPDC 2019): magnitudes beyond mean + m (max - mean), m by bisection until k to 1.75k are.

    The paper stops below 2k. A pass counts and selects, and ends early at too many. If ``halvings`` of m do not suffice
    (heavy tails, one huge outlier, ties) the selection is exact top-k.

    Args:
        halvings: most bisections of the range of m; 10 resolve a thousandth.
    """

    halvings: int = 10

    band: ClassVar[tuple[float, float]] = (1.0, MAX_SELECTED_PER_K)

    def __post_init__(self) -> None:
        check_whole("halvings", self.halvings, 1)

    def select(self, x: Array, k: int, state: NoState, add: Array | None = None) -> tuple[SparseVector, NoState]:
        accumulate(x, add)
        mean, peak = _mean_and_largest(x)
        low, high, tried = 0.0, 1.0, _ThresholdPass(None, 0)
        for _ in range(self.halvings):
            middle = (low + high) / 2
            tried = attempt(x, mean + middle * (peak - mean), k, self.band)
            if tried.selected is not None:
                break
            if tried.reached > k:
                low = middle
            else:
                high = middle
        return settle(tried, x, k), state


@dataclass(frozen=True)
class RedSyncTrim(Selector):
    """RedSync, trimmed (Fang et al., JPDC 2019): the k largest beyond mean + m (max - mean), m from 0.8 down by 0.2.

    The first m that at least k entries pass decides. If none does, or more than 1.75k pass, the selector ``exact``
    makes the same selection.
    """

    def select(self, x: Array, k: int, state: NoState, add: Array | None = None) -> tuple[SparseVector, NoState]:
        accumulate(x, add)
        mean, peak = _mean_and_largest(x)
        for ratio in RATIOS:
            tried = attempt(x, mean + ratio * (peak - mean), k, band=(1, MAX_SELECTED_PER_K))
            if tried.selected is not None:
                return truncate(tried.selected, k, reuse=True), state
            if tried.reached > k:
                break
        return largest(x, k), state


def _mean_and_largest(x: Array) -> tuple[float, float]:
    moments = kernels.of(x).moments(x, 0)
    return moments.total / moments.entries, moments.largest
