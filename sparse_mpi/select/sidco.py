"""Selection by fitting a distribution to the magnitudes, in stages (SIDCo: Abdelmoniem et al., MLSys 2021).

The first stage fits all magnitudes, each later one what the stage before left, less its threshold: the excess over a
high threshold is about exponential or generalised Pareto, whatever the distribution. A stage is one pass.

Where this departs from the paper: zeros are left out of the fits, because no such distribution has an atom; the share
that a later stage has to keep follows from how many entries really came through the stage before; and there is one
stage more also where the estimates select too many, while the paper takes one away: with one stage left, a heavy tail
has it select 1.5 to 12 times k for good, and with two or three it fits.

The published program besides subtracts the least survivor instead of the threshold, adds an epsilon before it takes
logarithms, keeps its state in global variables, and has modes that change the first ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.kernels.base import Moments
from sparse_mpi.select.estimate import attempt, bits_of, settle
from sparse_mpi.sparse import Layout, SparseVector

TOLERANCE = 0.2  # of the mean count over k, before the number of stages changes


class Sample(NamedTuple):
    """What is fitted: the first moments of positive numbers."""

    mean: np.float64
    variance: np.float64
    mean_log: np.float64  # of the logarithms of the numbers; after a shift, of what they were before it


def exponential(sample: Sample, ratio: float) -> float:
    """What the share ``ratio`` of an exponential distribution exceeds: -mean ln ratio."""
    return -sample.mean * math.log(ratio)


def pareto(sample: Sample, ratio: float) -> float:
    """What the share ``ratio`` of a generalised Pareto distribution from 0 exceeds.

    By the method of moments, with q = mean^2 / variance: scale a = mean (q + 1) / 2, shape -c where c = (q - 1) / 2,
    and a (1 - ratio^c) / c, which goes to the exponential's as c goes to 0. NaN if all numbers are equal.
    """
    quotient = sample.mean**2 / sample.variance
    scale, c = sample.mean * (quotient + 1) / 2, (quotient - 1) / 2
    return -scale * (np.expm1(c * math.log(ratio)) / c if c else math.log(ratio))


def gamma(sample: Sample, ratio: float) -> float:
    """About what the share ``ratio`` of a gamma distribution exceeds: -scale (ln ratio + ln Gamma(shape)).

    The shape is Minka's closed approximation of its maximum likelihood. The quantile leaves out a factor
    x^(shape - 1) of the tail, and so is good for shapes near 1. NaN if all numbers are equal.
    """
    s = np.log(sample.mean) - sample.mean_log
    if not s > 0:
        return math.nan
    shape = (3 - s + np.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    return -sample.mean / shape * (math.log(ratio) + math.lgamma(shape))


@dataclass(frozen=True)
class SIDCoState:
    """How many stages there are, and what says whether to change that."""

    stages: int = 1
    calls: int = 0  # since the number of stages was last looked at
    observed: float = 0.0  # counts of the estimates over k, added up since then


@dataclass(frozen=True)
class _SIDCo:
    """The method; the laws fitted in the first stage and in later ones are its subclasses'.

    Args:
        first_ratio: share of the entries that the first of several stages keeps; the later ones divide the rest.
        period: calls after which there is one stage more if the mean count was off; after the most, one again.
    """

    first_ratio: float = 0.25
    period: int = 5

    first = staticmethod(exponential)
    later = staticmethod(exponential)
    band: ClassVar[tuple[float, float]] = (2 / 3, 4 / 3)
    shared: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.first_ratio < 1:
            raise ValueError(f"first_ratio must be in (0, 1), got {self.first_ratio}")
        if self.period < 1:
            raise ValueError(f"period must be at least 1 call, got {self.period}")

    def init(self, layout: Layout, k: int) -> SIDCoState:
        """One stage."""
        return SIDCoState()

    def select(self, x: Array, k: int, state: SIDCoState) -> tuple[SparseVector, SIDCoState]:
        """Between 2k/3 and 4k/3 entries of ``x`` ``(n,)``, by exact top-k where the estimate does not find them."""
        with np.errstate(all="ignore"):  # what cannot be fitted ends as NaN
            threshold = self.estimate(x, k, state.stages)
        tried = attempt(x, threshold, k, self.band)
        return settle(tried, x, k), self._adapted(state, tried.reached / k, k / len(x))

    def estimate(self, x: Array, k: int, stages: int) -> float:
        """The threshold that k entries should reach, from ``stages`` fits or fewer; NaN where nothing fits."""
        threshold, fit = 0.0, self.first
        survivors = kernels.of(x).moments(x, 1)  # all that are not zero
        if k >= self.first_ratio * survivors.entries:
            stages = 1
        for left in range(stages, 0, -1):
            if survivors.entries <= k:
                break
            ratio = self.first_ratio if left == stages > 1 else (k / survivors.entries) ** (1 / left)
            threshold += fit(_excess(survivors, threshold), ratio)
            fit = self.later
            if left > 1:
                survivors = kernels.of(x).moments(x, bits_of(threshold, x))
        return threshold

    def _adapted(self, state: SIDCoState, observed: float, density: float) -> SIDCoState:
        calls, total = state.calls + 1, state.observed + observed
        if calls < self.period:
            return SIDCoState(state.stages, calls, total)
        if abs(total / calls - 1) <= TOLERANCE:
            return SIDCoState(state.stages)
        most = max(1, math.ceil(-math.log2(density)))  # stages that keep half each
        return SIDCoState(state.stages + 1 if state.stages < most else 1)


def _excess(survivors: Moments, threshold: float) -> Sample:
    """Of the survivors' magnitudes less the threshold that they have passed."""
    entries = np.float64(survivors.entries)
    mean = survivors.total / entries
    return Sample(mean - threshold, survivors.squares / entries - mean**2, survivors.logs / entries)


@dataclass(frozen=True)
class SIDCoExp(_SIDCo):
    """SIDCo-E (Abdelmoniem et al., MLSys 2021): magnitudes beyond the quantile of exponential fits in stages."""


@dataclass(frozen=True)
class SIDCoGP(_SIDCo):
    """SIDCo-P (Abdelmoniem et al., MLSys 2021): magnitudes beyond the quantile of generalised Pareto fits in stages."""

    first = staticmethod(pareto)
    later = staticmethod(pareto)


@dataclass(frozen=True)
class SIDCoGamma(_SIDCo):
    """SIDCo-GP (Abdelmoniem et al., MLSys 2021): magnitudes beyond the quantile of a gamma fit, then Pareto fits."""

    first = staticmethod(gamma)
    later = staticmethod(pareto)
