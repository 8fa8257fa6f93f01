"""The published selectors: in their band whatever comes, and by the published estimate where that is good."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from sparse_mpi import SELECTORS, World, sparse_allreduce
from sparse_mpi.select import estimate
from sparse_mpi.select.estimate import DGC
from sparse_mpi.select.exact import largest, top_k
from sparse_mpi.select.random import positions
from sparse_mpi.select.sidco import Sample, exponential, gamma, pareto
from sparse_mpi.sparse import Layout

N, K = 40_000, 400


def outlier(rng, n):
    x = rng.standard_normal(n)
    x[n // 2] = 1e30
    return x


def pareto_like(rng, n, shape=0.2):
    return ((1 - rng.random(n)) ** -shape - 1) / shape


DISTRIBUTIONS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "laplace": lambda rng, n: rng.laplace(size=n),
    "student": lambda rng, n: rng.standard_t(3, n),
    "mostly-zero": lambda rng, n: rng.standard_normal(n) * (rng.random(n) > 0.9),
    "constant": lambda rng, n: np.full(n, -0.25),
    "all-zero": lambda rng, n: np.zeros(n),
    "outlier": outlier,
    "gamma": lambda rng, n: rng.gamma(0.9, size=n),
    "pareto": pareto_like,
}


def draw(name, n=N, seed=0):
    return DISTRIBUTIONS[name](np.random.default_rng(seed), n).astype(np.float32)


def forbid_fallback(monkeypatch):
    def never(x, k):
        raise AssertionError("the estimate was not used")

    monkeypatch.setattr(estimate, "largest", never)


GOOD = [
    ("gaussiank", "normal"),
    *(("dgc", name) for name in ("normal", "laplace", "student", "mostly-zero")),
    *(("redsync", name) for name in ("normal", "laplace")),
    ("sidco-exp", "laplace"),
    *(("sidco-gp", name) for name in ("laplace", "pareto")),
    *(("sidco-gamma", name) for name in ("laplace", "gamma")),
]


@pytest.mark.parametrize(("selector", "name"), GOOD)
def test_the_published_estimate_decides_where_it_is_good(monkeypatch, selector, name):
    forbid_fallback(monkeypatch)
    chosen, n = SELECTORS[selector](), 200_000
    state = chosen.init(Layout.of(n), n // 100)
    for seed in range(6):
        _, state = chosen.select(draw(name, n, seed), n // 100, state)


def test_gaussian_fits_mean_and_deviation(monkeypatch):
    """On numbers whose mean is not 0; Shi et al. (2019) fit a normal distribution with both."""
    forbid_fallback(monkeypatch)
    n, k = 200_000, 2_000
    x = 0.1 + np.random.default_rng(1).standard_normal(n)
    threshold = x.mean() + x.std() * NormalDist().inv_cdf(1 - k / n / 2)
    chosen, _ = SELECTORS["gaussiank"]().select(x, k, None)
    assert chosen.indices.tolist() == np.flatnonzero(np.abs(x) >= threshold).tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_number_serves_as_a_threshold(dtype):
    """Whatever it is, neither zero reaches it."""
    x = np.array([-np.inf, np.nan, 0, -0.0, 1, -3, np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max], dtype)
    reached = {-1.0: 6, -np.inf: 6, -0.0: 6, 1e-320: 5 if dtype == np.float64 else 6, 3.0: 4, 1e300: 2, np.inf: 2}
    if dtype == np.float64:
        reached[1e300] = 3
    for threshold, count in reached.items():
        assert estimate.attempt(x, threshold, 7, (0, 2)).reached == count
    assert estimate.attempt(x, -np.nan, 7, (0, 2)).reached == estimate.attempt(x, np.nan, 7, (0, 2)).reached == 1
    assert estimate.attempt(x[x != 0], 1e300, 6, (1, 1)).selected.nnz == 6  # k = n


@pytest.mark.parametrize("ratio", [0.25, 0.01, 0.001])
def test_fits_give_the_known_quantiles(ratio):
    two = np.float64(2)
    assert exponential(Sample(two, two, two), ratio) == pytest.approx(-2 * math.log(ratio))
    for shape in (-0.5, -0.1, 1e-9, 0.1, 0.3):
        variance = 4 / (1 - 2 * shape)
        known = 2 * (1 - shape) * (ratio**-shape - 1) / shape if abs(shape) > 1e-6 else -2 * math.log(ratio)
        assert pareto(Sample(two, np.float64(variance), two), ratio) == pytest.approx(known, rel=1e-6)
    assert pareto(Sample(two, np.float64(4), two), ratio) == pytest.approx(-2 * math.log(ratio))
    for shape, digamma in ((1, -0.5772156649), (0.5, -1.9635100260)):  # of scale 1
        fitted = gamma(Sample(np.float64(shape), two, np.float64(digamma)), ratio)
        assert fitted == pytest.approx(-math.log(ratio) - math.lgamma(shape), rel=0.02)


def test_a_fit_of_equal_numbers_is_none():
    one, zero = np.float64(1), np.float64(0)
    with np.errstate(all="ignore"):
        assert math.isnan(pareto(Sample(one, zero, zero), 0.01)) and math.isnan(gamma(Sample(one, zero, zero), 0.01))


@pytest.mark.parametrize("selector", ["sidco-exp", "sidco-gp", "sidco-gamma"])
@pytest.mark.parametrize("name", ["normal", "laplace", "student", "mostly-zero", "gamma"])
def test_more_stages_fit_any_tail(selector, name):
    """Within 20 % of k at four stages, where one stage is off by up to a factor of 40."""
    x = draw(name, 1_000_000)
    reached = np.count_nonzero(np.abs(x) >= SELECTORS[selector]().estimate(x, 10_000, stages=4))
    assert 8_000 <= reached <= 12_000


def test_stages_are_added_until_the_estimate_fits(monkeypatch):
    chosen, x = SELECTORS["sidco-exp"](), draw("normal", 200_000)
    state, stages = chosen.init(Layout.of(len(x)), 2000), []
    for _ in range(20):
        _, state = chosen.select(x, 2000, state)
        stages.append(state.stages)
    assert stages == [1] * 4 + [2] * 5 + [3] * 11
    forbid_fallback(monkeypatch)
    chosen.select(x, 2000, state)
    state = chosen.init(Layout.of(100), 40)
    monkeypatch.undo()
    for _ in range(30):  # half of the entries survive a stage: there is no room for a third
        _, state = chosen.select(np.ones(100, np.float32), 40, state)
        assert state.stages <= 2


def test_a_sample_is_drawn_anew_in_every_step_and_tells_the_quantile():
    x = draw("student", 1_000_000)
    thresholds = [DGC().sampled_threshold(x, 10_000, step) for step in range(10)]
    assert len(set(thresholds)) > 5 and thresholds[3] == DGC().sampled_threshold(x, 10_000, 3)
    assert DGC(seed=1).sampled_threshold(x, 10_000, 0) != thresholds[0]
    assert np.quantile(np.abs(x), 0.985) < min(thresholds) < max(thresholds) < np.quantile(np.abs(x), 0.995)


def test_redsync_bisects_between_mean_and_maximum():
    x = draw("laplace")
    magnitudes = np.abs(x)
    mean, largest, low, high = magnitudes.mean(dtype=float), float(magnitudes.max()), 0.0, 1.0
    for _ in range(10):
        middle = (low + high) / 2
        above = np.flatnonzero(magnitudes >= np.float32(mean + middle * (largest - mean)))
        if K <= len(above) <= 1.75 * K:
            break
        low, high = (middle, high) if len(above) > K else (low, middle)
    assert SELECTORS["redsync"]().select(x, K, None)[0].indices.tolist() == above.tolist()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_redsync_trimmed_is_exact(monkeypatch, name):
    x = draw(name)
    magnitudes = np.abs(x)
    beyond = magnitudes.mean() + 0.4 * (magnitudes.max() - magnitudes.mean())
    survivors = np.count_nonzero(magnitudes >= beyond)
    if name in ("normal", "laplace", "gamma"):
        with monkeypatch.context() as patch:  # two thirds of the survivors of 0.4: more than those of 0.6
            forbid_fallback(patch)
            selected, _ = SELECTORS["redsync-trim"]().select(x, 2 * survivors // 3, None)
        assert selected.indices.tolist() == top_k(x, 2 * survivors // 3).indices.tolist()
    selected, _ = SELECTORS["redsync-trim"]().select(x, K, None)
    assert selected.indices.tolist() == largest(x, K).indices.tolist()


@pytest.mark.parametrize(("n", "k"), [(1, 1), (10, 3), (10, 9), (10, 10), (1000, 1), (1009, 40)])
def test_random_positions_are_distinct_ascending_and_equally_likely(n, k):
    steps = 5_000 // k
    drawn = [positions(n, k, seed=3, step=step) for step in range(steps)]
    for chosen in drawn:
        assert len(chosen) == k and chosen[0] >= 0 and chosen[-1] < n and (np.diff(chosen) > 0).all()
    assert len({chosen.tobytes() for chosen in drawn}) > min(2, n - k)
    frequency = np.bincount(np.concatenate(drawn), minlength=n)
    expected = steps * k / n
    assert (np.abs(frequency - expected) <= 6 * math.sqrt(expected)).all()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shared_positions_send_values_only(size):
    def body(comm):
        x = np.arange(1000, dtype=np.float32) + comm.rank
        before = comm.traffic.copy()
        total, sent = sparse_allreduce(x, k=50, comm=comm, algorithm="topka", selector="random")
        assert sent.values.tobytes() == x[sent.indices].tobytes()
        return total, (comm.traffic - before).sent

    for total, sent in World(size).run(body):
        assert total.nnz == 50 and sent == 2 * 4 * 50 * (size - 1) // size
        assert (total.values == size * total.indices + sum(range(size))).all()


def test_the_mean_square_of_a_large_vector_is_not_what_float32_makes_of_it():
    """Of 2^24 elements BLAS, which adds them all in float32, is off by 5e-5."""
    x = draw("normal", 1 << 24)
    exact = sum(float(part @ part) for part in (part.astype(np.float64) for part in np.split(x, 64))) / len(x)
    assert abs(estimate.mean_square(x) / exact - 1) < 3e-5
    assert estimate.mean_square(x[:1000]) == float(x[:1000].dot(x[:1000])) / 1000
