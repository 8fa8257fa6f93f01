"""Selection by fitting a distribution to the magnitudes, in stages (SIDCo: Abdelmoniem et al., MLSys 2021).

The first stage fits all magnitudes. Later ones fit the excess of magnitudes over the last threshold, which is about
exponential or generalised Pareto for any distribution. A stage is one pass.

Departs from the paper in three points. Fits omit zeros, because no fitted distribution has an atom at zero. A later
stage's ratio follows from the number of entries that really passed the last one. A stage is added also if the estimates
select too many, while the paper removes one: with a single stage, a heavy tail makes it select 1.5 to 12 times k for
good, and with two or three stages it fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_range, check_whole
from sparse_mpi.kernels.base import Moments
from sparse_mpi.select.base import Selector, accumulate
from sparse_mpi.select.estimate import attempt, bits_of, settle
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.states import ranged

TOLERANCE = 0.2  # least distance of the mean count over k from 1 that changes the number of stages


class Sample(NamedTuple):
    """First moments of the positive numbers to fit."""

    mean: np.float64
    variance: np.float64
    mean_log: np.float64  # mean logarithm of the numbers as they were before a threshold was subtracted


def exponential(sample: Sample, ratio: float) -> float:
    """Return the number that the share ``ratio`` of an exponential distribution exceeds: -mean ln ratio."""
    return -sample.mean * math.log(ratio)


def pareto(sample: Sample, ratio: float) -> float:
    """Return the number that the share ``ratio`` of a generalised Pareto distribution from 0 exceeds; or NaN.

    The fit is by the method of moments, with q = mean^2 / variance: the scale is a = mean (q + 1) / 2, the shape -c
    with c = (q - 1) / 2, and the result a (1 - ratio^c) / c, which tends to `exponential` as c tends to 0.
    """
    quotient = sample.mean**2 / sample.variance
    scale, c = sample.mean * (quotient + 1) / 2, (quotient - 1) / 2
    return -scale * (np.expm1(c * math.log(ratio)) / c if c else math.log(ratio))


def gamma(sample: Sample, ratio: float) -> float:
    """Return about the number that the share ``ratio`` of a gamma distribution exceeds; NaN if all are equal.

    It is -scale (ln ratio + ln Gamma(shape)), with Minka's closed approximation of the maximum-likelihood shape. The
    quantile omits a factor x^(shape - 1) of the tail, and so is good for shapes near 1.
    """
    s = np.log(sample.mean) - sample.mean_log
    if not s > 0:
        return math.nan
    shape = (3 - s + np.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    return -sample.mean / shape * (math.log(ratio) + math.lgamma(shape))


@dataclass(frozen=True)
class _SIDCoState:
    """The number of stages, and the record of counts that changes it."""

    stages: int = ranged("[1, 64]", 1)
    calls: int = ranged("[0, many)", 0)  # selections since the number of stages was last reviewed
    observed: float = ranged("[0, inf)", 0.0)  # sum over these of the count that the estimate reached, over k


@dataclass(frozen=True)
class _SIDCo(Selector):
    """The common method; subclasses choose the distributions of the first and later stages.

    Args:
        first_ratio: share of entries that pass the first of several stages; later ones divide the rest.
        period: selections after which a stage is added if their mean count was off; after the most stages there is one
            again.
    """

    first_ratio: float = 0.25
    period: int = 5

    first = staticmethod(exponential)
    later = staticmethod(exponential)
    band: ClassVar[tuple[float, float]] = (2 / 3, 4 / 3)

    def __post_init__(self) -> None:
        check_range("first_ratio", self.first_ratio, "(0, 1)", "0.25 is usual")
        check_whole("period", self.period, 1, "call")

    def init(self, layout: Layout, k: int) -> _SIDCoState:
        return _SIDCoState()

    def select(
        self, x: Array, k: int, state: _SIDCoState, add: Array | None = None
    ) -> tuple[SparseVector, _SIDCoState]:
        accumulate(x, add)
        with np.errstate(all="ignore"):  # A failed fit gives NaN, which selects nothing.
            threshold = self.estimate(x, k, state.stages)
        tried = attempt(x, threshold, k, self.band)
        return settle(tried, x, k), self._adapted(state, tried.reached / k, k / len(x))

    def estimate(self, x: Array, k: int, stages: int) -> float:
        threshold, fit = 0.0, self.first
        survivors = kernels.of(x).moments(x, 1)  # all entries that are not zero
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

    def _adapted(self, state: _SIDCoState, observed: float, density: float) -> _SIDCoState:
        calls, total = state.calls + 1, state.observed + observed
        if calls < self.period:
            return _SIDCoState(state.stages, calls, total)
        if abs(total / calls - 1) <= TOLERANCE:
            return _SIDCoState(state.stages)
        most = max(1, math.ceil(-math.log2(density)))  # stages that let half of the entries pass each
        return _SIDCoState(state.stages + 1 if state.stages < most else 1)


def _excess(survivors: Moments, threshold: float) -> Sample:
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
