"""Selectors and the kernels under them: exact where they say so, in their band otherwise, on any input."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SELECTORS, kernels
from sparse_mpi.algorithms.published import StaleSelector, StaleState
from sparse_mpi.arrays import magnitude_bits
from sparse_mpi.kernels import array, threads
from sparse_mpi.select import threshold as thresholds
from sparse_mpi.select.estimate import RedSync
from sparse_mpi.select.exact import largest, top_k
from sparse_mpi.select.threshold import Threshold, ThresholdState
from sparse_mpi.sparse import Layout

from .counts import in_band
from .test_selectors import DISTRIBUTIONS

N = 40_000  # more than kernels.SMALL: histograms are really taken


def inputs(dtype, n=N):
    rng = np.random.default_rng(0)
    made = {name: draw(rng, n) for name, draw in DISTRIBUTIONS.items()}
    made |= {"ties": rng.integers(-3, 4, n) / 4, "nonfinite": rng.standard_normal(n)}
    made["nonfinite"][[3, n // 3]] = np.nan, -np.inf
    made["tiny"] = rng.standard_normal(n) * 1e-42
    return {name: x.astype(dtype) for name, x in made.items()}


NAMES = list(inputs(np.float32, 8))


def reference(x, k):
    """Indices of the k largest magnitudes, lower index first among equal ones."""
    return np.sort(np.lexsort((np.arange(len(x)), -magnitude_bits(x)))[:k])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [5, 1000, N])
def test_top_k_is_exact(name, dtype, n):
    x = inputs(dtype, n)[name]
    for k in {1, max(1, n // 100), n // 3, n - 1, n}:
        selected = top_k(x, k)
        assert selected.indices.tolist() == reference(x, k).tolist()
        assert selected.values.tobytes() == x[selected.indices].tobytes()
        assert selected.indices.dtype == np.int32 and selected.size == n
        assert largest(x, k).indices.tolist() == [index for index in reference(x, k).tolist() if x[index] != 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("selector", SELECTORS)
def test_selectors_survive_the_wildest_jumps(selector, dtype):
    """From zeros to ones to NaN to Inf to denormals and back: no threshold that is carried over leaves its range."""
    chosen, top = SELECTORS[selector](), np.finfo(dtype)
    state = chosen.init(Layout.of(1000), 10)
    for value in (1, np.nan, 1, np.inf, 0, top.max, top.smallest_subnormal, np.nan, np.nan, 0, 1):
        x = np.full(1000, value, dtype)
        selected, state = chosen.select(x, 10, state)
        assert in_band(chosen, selected.nnz, 10, x)


def test_a_reused_threshold_selects_none_of_none():
    state = ThresholdState()
    for _ in range(3):
        selected, state = Threshold().select(inputs(np.float32)["normal"], 0, state)
        assert selected.nnz == 0


def test_a_reused_threshold_takes_one_pass(monkeypatch):
    """In the steady state no histogram is made and nothing of length n is ordered: one selection pass is all."""
    monkeypatch.setattr(kernels, "SMALL_ON_HOST", 0)
    x, calls = inputs(np.float32)["normal"], []
    for name in ("select", "histogram"):
        real = getattr(kernels.of(x), name)
        monkeypatch.setattr(kernels.of(x), name, lambda *args, name=name, real=real: calls.append(name) or real(*args))
    state, rng = ThresholdState(), np.random.default_rng(1)
    for step in range(5):
        y = x + 0.02 * rng.standard_normal(N).astype(np.float32)
        selected, state = Threshold().select(y, 400, state)
        assert selected.indices.tolist() == reference(y, 400).tolist()
        assert calls == (["select", "histogram", "select"] if step == 0 else ["select"])
        calls.clear()


@pytest.mark.parametrize("selector", ["exact", "threshold"])
def test_few_entries_of_many_zeros_are_found_in_one_pass(monkeypatch, selector):
    """By the threshold that every number but zero reaches."""
    chosen, x = SELECTORS[selector](), np.zeros(N, np.float32)
    state, searches = chosen.init(Layout.of(N), 400), []
    real = kernels.search
    monkeypatch.setattr(kernels, "search", lambda *args, **options: searches.append(args) or real(*args, **options))
    for step in range(4):
        x[step :: N // 30] = -1.5 - step
        selected, state = chosen.select(x, 400, state)
        assert selected.indices.tolist() == np.flatnonzero(x).tolist()
    assert len(searches) == (0 if selector == "threshold" else 4)


@pytest.mark.parametrize(
    "scale", [lambda step: 1, lambda step: (step + 1) ** 0.5, lambda step: 1.1**step, lambda step: 0.9**step]
)
def test_a_threshold_follows_magnitudes_that_rise_or_fall(monkeypatch, scale):
    """As what waits does in the first steps: once two steps have told how fast, one pass is enough."""
    seen, selector, x = [], Threshold(), np.random.default_rng(0).standard_normal(N).astype(np.float32)
    state = selector.init(Layout.of(N), 400)
    monkeypatch.setattr(thresholds, "largest", lambda x, k: seen.append(step) or largest(x, k))
    for step in range(12):
        scaled = x * np.float32(scale(step))
        selected, state = selector.select(scaled, 400, state)
        assert selected.indices.tolist() == top_k(scaled, 400).indices.tolist()
    assert all(step < 3 for step in seen)


def test_published_rule_reuses_then_refreshes_exactly():
    selector, state, rng = StaleSelector(3), StaleState(), np.random.default_rng(2)
    counts = []
    for _ in range(6):
        selected, state = selector.select(rng.standard_normal(N).astype(np.float32), 400, state)
        counts.append(selected.nnz)
    assert counts[0] == counts[3] == 400 and len(set(counts)) > 2


@pytest.mark.parametrize(("growth", "raises"), [(1.0, 0), (1.05, 1), (1.1, 3), (1.4, 5)])
def test_published_rule_raises_the_threshold_before_it_selects(growth, raises):
    """By 3 % at a time, until no more than 5k/4 entries reach it, and five times at most."""
    x = np.random.default_rng(3).standard_normal(200_000).astype(np.float32)
    selector = StaleSelector()
    first, state = selector.select(x, 2000, selector.init(Layout.of(len(x)), 2000))
    kth = np.abs(first.values).min()
    selected, _ = selector.select(np.float32(growth) * x, 2000, state)
    reached = [(np.abs(np.float32(growth) * x) >= kth * np.float32(1.03) ** i).sum() for i in range(6)]
    assert selected.nnz == pytest.approx(reached[raises], abs=2)
    assert all(count > 2500 for count in reached[:raises]) and (reached[raises] <= 2500 or raises == 5)


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan, 1e-45, 3e38])
def test_published_rule_takes_any_magnitude(value):
    selector, x = StaleSelector(), np.full(1000, value, np.float32)
    state = selector.init(Layout.of(1000), 10)
    for _ in range(3):
        selected, state = selector.select(x, 10, state)
        assert (value != 0) <= selected.nnz <= 1000 * (value != 0)


def test_strided_input_selects_the_same():
    x = inputs(np.float32)["normal"]
    for part, gradient in ((x[::2], x[1::2]), (x[::-1], x[:])):
        expected, found = array.select(part, 1 << 30, N), kernels.of(part).select(part, 1 << 30, N)
        assert expected is not None and found is not None
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]
        acc, residual = part + gradient, part.copy()
        found = kernels.of(part).accumulate_select(residual, gradient, 1 << 30, N)
        expected = array.select(acc, 1 << 30, N)
        assert expected is not None and found is not None and residual.tobytes() == acc.tobytes()
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


@pytest.mark.parametrize("wanted, most", [("1", 1), ("2,4", 2), ("", 10**6), ("many", 10**6), ("0", 1)])
def test_openmp_variable_limits_the_threads(monkeypatch, wanted, most):
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert 1 <= threads.limit() <= most


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [*NAMES, "in step", "out of step", "sorted"])
def test_a_sample_never_decides_what_is_selected(monkeypatch, name, dtype):
    """It only saves passes: on input that misleads it the histogram settles the same entries."""
    monkeypatch.setattr(kernels, "SMALL_ON_HOST", 0)
    monkeypatch.setattr(kernels, "SAMPLED", 1)
    monkeypatch.setattr(kernels, "STRIDE", 17)  # as good a sample of this short vector
    normal = inputs(dtype)["normal"]
    sampled = np.arange(N) % kernels.STRIDE == kernels.STRIDE // 2
    x = {
        **inputs(dtype),
        "in step": np.where(sampled, 9 + normal, normal / 9),
        "out of step": np.where(sampled, normal / 9, 9 + normal),
        "sorted": np.sort(normal),
    }[name]
    for k in (1, 37, 400, N // 10):
        assert top_k(x, k).indices.tolist() == reference(x, k).tolist()
        bits, kth = magnitude_bits(x), kernels.kth_magnitude(x, k)
        assert (bits >= kth).sum() == (bits >= np.sort(bits)[N - k]).sum()
    monkeypatch.setattr(kernels, "_binned", lambda x, k, most: 0)
    misled = kernels.search(x, 400, most=N)[0] == 0 and name != "all-zero"
    assert misled == (name in {"in step", "out of step"})


@pytest.mark.parametrize("selector", [StaleSelector(1), RedSync(halvings=1)])
def test_the_least_that_options_may_be_is_taken(selector):
    x = inputs(np.float32)["normal"]
    state = selector.init(Layout.of(N), 400)
    for _ in range(3):
        chosen, state = selector.select(x.copy(), 400, state)
        assert in_band(selector, len(chosen.indices), 400, x)
