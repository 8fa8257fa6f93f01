"""The conformance suite: what every algorithm in the registry must do, for any number of ranks and any input.

The bodies run on `World` for P = 1..8 and, unchanged, on real MPI under mpiexec (see conftest.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import sparse_mpi
from sparse_mpi import ALGORITHMS, SparseAllreduce, SparseVector, World, sparse_allreduce, wire
from sparse_mpi.algorithms.base import rounds
from sparse_mpi.sparse import Layout

# every entry of the registry, and options that change how an algorithm communicates
VARIANTS = {name: (name, {}) for name in ALGORITHMS} | {"topkdsa-doubling": ("topkdsa", {"exchange": "doubling"})}
SPARSE = [name for name in ALGORITHMS if name != "dense"]


class Case(NamedTuple):
    """A gradient ``make(rng, rank, ranks)`` ``(n,)`` and how many entries to keep of it."""

    make: object
    n: int = 1000
    k: int = 40


def normal(rng, rank, ranks, n=1000):
    return rng.standard_normal(n)


def same_support(rng, rank, ranks):
    x = np.zeros(1000)
    x[::20] = rng.standard_normal(50)
    return x


def disjoint(rng, rank, ranks):
    x = np.zeros(1000)
    x[rank::ranks] = rng.standard_normal(len(x[rank::ranks]))
    return x


def elsewhere(rng, rank, ranks):
    """Each rank's entries all lie in the region that another rank owns."""
    x = np.zeros(1000)
    start, stop = (ranks - 1 - rank) * 1000 // ranks, (ranks - rank) * 1000 // ranks
    x[start:stop] = rng.standard_normal(stop - start)
    return x


def one_rank_zero(rng, rank, ranks):
    return rng.standard_normal(1000) * (rank > 0)


def skewed(rng, rank, ranks):
    return np.concatenate([rng.standard_normal(800), 1000 * rng.standard_normal(100), rng.standard_normal(100)])


CASES = {
    "random": Case(normal),
    "same-support": Case(same_support),
    "disjoint": Case(disjoint),
    "elsewhere": Case(elsewhere),
    "one-rank-zero": Case(one_rank_zero),
    "all-zero": Case(lambda rng, rank, ranks: np.zeros(1000)),
    "constant": Case(lambda rng, rank, ranks: np.full(1000, -0.5)),
    "ties": Case(lambda rng, rank, ranks: rng.integers(-2, 3, 1000).astype(float)),
    "heavy-tailed": Case(lambda rng, rank, ranks: rng.standard_t(1.5, 1000)),
    "layer-skewed": Case(skewed),
    "k=1": Case(normal, k=1),
    "k=n": Case(normal, k=1000),
    "k>n": Case(normal, k=5000),
    "n<P": Case(lambda rng, rank, ranks: rng.standard_normal(3), n=3, k=2),
    "n=1": Case(lambda rng, rank, ranks: rng.standard_normal(1), n=1, k=1),
    "n-indivisible": Case(lambda rng, rank, ranks: rng.standard_normal(1009), n=1009, k=41),
}


def gradient(case: Case, dtype, seed: int, rank: int, ranks: int) -> np.ndarray:
    return case.make(np.random.default_rng([seed, rank]), rank, ranks).astype(dtype)


class Step(NamedTuple):
    """What one rank saw of one step."""

    total: object
    given: np.ndarray  # what its acc lost
    report: sparse_mpi.StepReport


def train(comm, algorithm, case: Case, dtype, steps: int, **options) -> list[Step]:
    """Steps with error feedback on fresh gradients."""
    reducer = SparseAllreduce(case.n, k=case.k, comm=comm, algorithm=algorithm, **options)
    seen = []
    for step in range(steps):
        g = gradient(case, dtype, step, comm.rank, comm.size)
        acc = reducer.residual.astype(dtype) + g
        total = reducer.step(g)
        seen.append(Step(total, acc - reducer.residual, reducer.report))
    return seen


def dense_of(total) -> np.ndarray:
    return total.to_dense() if isinstance(total, SparseVector) else total


def same_bytes(a, b) -> bool:
    if isinstance(a, SparseVector):
        return a.size == b.size and same_bytes(a.indices, b.indices) and same_bytes(a.values, b.values)
    return a.tobytes() == b.tobytes()


def assert_laws(steps: list[Step]) -> None:
    """Agreement to the bit and conservation, over one step as all ranks saw it."""
    for other in steps[1:]:
        assert same_bytes(steps[0].total, other.total), "total differs between ranks"
    given = [s.given for s in steps]
    magnitude = np.sum(np.abs(given), axis=0)
    tolerance = 8 * (len(steps) + 2) * np.finfo(given[0].dtype).eps * magnitude
    assert (np.abs(np.sum(given, axis=0) - dense_of(steps[0].total)) <= tolerance).all(), "mass was lost"


def assert_form(total, case: Case, dtype) -> None:
    if not isinstance(total, SparseVector):
        assert total.shape == (case.n,) and total.dtype == dtype
        return
    assert total.size == case.n and total.values.dtype == dtype and total.indices.dtype == np.int32
    assert total.indices.shape == total.values.shape
    assert (np.diff(total.indices) > 0).all() and (total.indices >= 0).all() and (total.indices < case.n).all()


def assert_economy(step: Step, algorithm, case: Case, dtype, ranks: int) -> None:
    k = min(case.k, case.n)
    bound = algorithm.bound(Layout.of(case.n), k, ranks)
    traffic, itemsize = step.report.traffic, np.dtype(dtype).itemsize
    assert traffic.sent <= bound.payload(wire.pair_bytes(case.n, dtype), itemsize)
    handshake = 2 * rounds(ranks), 32  # messages and bytes with which the ranks make sure that they do the same
    assert traffic.messages <= bound.messages + handshake[0]
    assert traffic.control <= bound.control + handshake[1]


def assert_count(step: Step, name: str, algorithm, case: Case, ranks: int) -> None:
    """The selection is in the selector's band, the result as large as the algorithm promises."""
    k = min(case.k, case.n)
    low, high = getattr(algorithm, "selector", None).band if name != "dense" else (1, case.n / k)
    assert np.floor(low * k) <= step.report.selected <= max(k, high * k)
    promised = {
        "dense": (case.n, case.n),
        "gtopk": (k, k),
        "oktopk": (0.9 * k, k),
    }.get(name, (0, high * k * ranks))
    assert promised[0] <= step.report.total <= promised[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_laws_form_economy_and_count(ranks, variant, case, dtype):
    name, options = VARIANTS[variant]
    case, algorithm = CASES[case], ALGORITHMS[name](**options)
    for steps in zip(*ranks.run(lambda comm: train(comm, name, case, dtype, 4, **options)), strict=True):
        assert_laws(steps)
        assert_form(steps[0].total, case, dtype)
        for step in steps:
            assert_economy(step, algorithm, case, dtype, ranks.size)
            assert_count(step, name, algorithm, case, ranks.size)


@pytest.mark.parametrize("case", ["random", "disjoint", "layer-skewed", "heavy-tailed", "ties"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_economy_and_count_hold_over_50_steps(ranks, name, case):
    case, algorithm = CASES[case], ALGORITHMS[name]()
    for seen in ranks.run(lambda comm: train(comm, name, case, np.float32, 50)):
        for step in seen:
            assert_economy(step, algorithm, case, np.float32, ranks.size)
            assert_count(step, name, algorithm, case, ranks.size)


@pytest.mark.parametrize("case", ["random", "layer-skewed", "correlated"])
def test_oktopk_volume_with_control(ranks, case):
    """Payload and control of every step, fresh or refreshing, stay below 6k(P-1)/P words; counts are on target."""
    k = 64 * ranks.size
    scale = np.where(np.arange(100 * k) // (10 * k) == 3, 1000.0 if case == "layer-skewed" else 1.0, 1.0)

    def make(rng, rank, size):
        shared = np.random.default_rng(7).standard_normal(100 * k) if case == "correlated" else 0.0
        return scale * (shared + rng.standard_normal(100 * k))

    seen = ranks.run(lambda comm: train(comm, "oktopk", Case(make, 100 * k, k), np.float32, 70, period=16))
    limit = 4 * 6 * k * (ranks.size - 1) / ranks.size
    for step in [step for steps in seen for step in steps]:
        assert step.report.traffic.sent + step.report.traffic.control <= limit
        assert 0.9 * k <= step.report.selected <= 1.1 * k
        assert 0.9 * k <= step.report.total <= 1.1 * k


@pytest.mark.parametrize("name", ALGORITHMS)
def test_dense_limit(ranks, name):
    """With k = n every algorithm is the dense allreduce."""
    case = Case(normal, k=1000)
    expected = sum(gradient(case, np.float64, 3, rank, ranks.size) for rank in range(ranks.size))

    def body(comm):
        return sparse_allreduce(gradient(case, np.float64, 3, comm.rank, comm.size), k=1000, comm=comm, algorithm=name)

    for reduction in ranks.run(body):
        np.testing.assert_allclose(dense_of(reduction.total), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_resumption_is_bit_exact(ranks, name):
    case = CASES["layer-skewed"]

    def body(comm):
        straight = SparseAllreduce(case.n, k=case.k, comm=comm, algorithm=name)
        for step in range(4):
            straight.step(gradient(case, np.float32, step, comm.rank, comm.size))
        saved = straight.state_dict()
        resumed = SparseAllreduce(case.n, k=case.k, comm=comm, algorithm=name)
        resumed.load_state_dict(saved)
        for step in range(4, 9):
            g = gradient(case, np.float32, step, comm.rank, comm.size)
            a, b = straight.step(g), resumed.step(g)
            assert same_bytes(a, b)
            assert straight.report.traffic.sent == resumed.report.traffic.sent
        assert straight.residual.tobytes() == resumed.residual.tobytes()

    ranks.run(body)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_world_equals_mpi_in_bytes_and_traffic(ranks, name):
    """In the simulator and on MPI, a job gives the same bytes and counts the same traffic."""
    case = CASES["heavy-tailed"]

    def body(comm):
        seen = train(comm, name, case, np.float32, 5)
        return [(s.total, s.given, s.report.traffic) for s in seen]

    def exact(comm):  # sums of these are exact, so that not even MPI_Allreduce's order of adding shows
        dyadic = Case(lambda rng, rank, size: rng.integers(-1000, 1000, 1000) / 64)
        return [(s.total, s.given, s.report.traffic) for s in train(comm, name, dyadic, np.float32, 5)]

    for job in [exact] if name == "dense" else [exact, body]:
        for here, simulated in zip(ranks.run(job), World(ranks.size).run(job), strict=True):
            for (total, given, traffic), (total_w, given_w, traffic_w) in zip(here, simulated, strict=True):
                assert same_bytes(total, total_w) and given.tobytes() == given_w.tobytes()
                counted = ("sent", "received", "messages", "control")
                assert [getattr(traffic, c) for c in counted] == [getattr(traffic_w, c) for c in counted]


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_learns_noisy_least_squares(ranks, name):
    """SGD with 5 % of the gradient finds the solution as plain SGD does."""
    n, rows = 100, 40
    solution = np.random.default_rng(0).standard_normal(n)

    def body(comm):
        rng = np.random.default_rng([1, comm.rank])
        reducer = SparseAllreduce(n, k=5, comm=comm, algorithm=name)
        w = np.zeros(n)
        for _ in range(600):
            a = rng.standard_normal((rows, n))
            g = a.T @ (a @ (w - solution) + 0.1 * rng.standard_normal(rows)) / rows
            w -= 0.05 * dense_of(reducer.step(g)) / comm.size
        return w

    for w in ranks.run(body):
        assert np.linalg.norm(w - solution) < 0.05 * np.linalg.norm(solution)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_nonfinite_shows_in_total_at_once_and_then_is_gone(ranks, name, bad):
    case = CASES["random"]

    def body(comm):
        reducer = SparseAllreduce(case.n, k=case.k, comm=comm, algorithm=name)
        seen = []
        for step in range(3):
            g = gradient(case, np.float32, step, comm.rank, comm.size)
            if step == 1 and comm.rank == comm.size - 1:
                g[123] = bad
            seen.append(dense_of(reducer.step(g)))
        assert np.isfinite(reducer.residual).all()
        return seen

    for before, during, after in ranks.run(body):
        assert np.isfinite(before).all() and np.isfinite(after).all()
        assert not np.isfinite(during[123]) and np.isfinite(np.delete(during, 123)).all()


@pytest.mark.parametrize("name", SPARSE)
def test_all_nan_is_not_swallowed(ranks, name):
    def body(comm):
        with pytest.raises(FloatingPointError, match="NaN or Inf"):
            SparseAllreduce(100, k=3, comm=comm, algorithm=name, nonfinite="raise").step(np.full(100, np.nan))

    ranks.run(body)


def test_doubling_and_split_give_the_same_sum(ranks):
    """To the bit, where sums are exact."""
    dyadic = Case(lambda rng, rank, size: rng.integers(-1000, 1000, 1000) / 64)

    def body(comm, exchange):
        return [step.total for step in train(comm, "topkdsa", dyadic, np.float32, 3, exchange=exchange)]

    split, doubling = (ranks.run(lambda comm, e=exchange: body(comm, e)) for exchange in ("split", "doubling"))
    assert all((dense_of(a) == dense_of(b)).all() for a, b in zip(split[0], doubling[0], strict=True))


def test_gtopk_published_residual_is_exempt_and_loses_mass():
    """The published rule breaks the second law, which is why it is not the default; the check sees it."""

    def body(comm):
        reducer = SparseAllreduce(1000, k=40, comm=comm, algorithm="gtopk", residual="published")
        assert not reducer.algorithm.conserves
        lost = 0.0
        for step in range(10):
            g = gradient(CASES["random"], np.float64, step, comm.rank, comm.size)
            acc = reducer.residual + g
            total = reducer.step(g, check=True)
            given = comm.allreduce(acc - reducer.residual)
            lost = max(lost, np.abs(given - total.to_dense()).max())
        return lost

    assert min(World(8).run(body)) > 0.1


def test_published_threshold_rule_wanders_and_ours_does_not():
    """Counts over 40 steps of error feedback on Gaussian gradients, n large enough for a histogram."""
    from sparse_mpi.select.threshold import Threshold

    case = Case(lambda rng, rank, ranks: rng.standard_normal(30_000), 30_000, 300)

    def body(comm, refresh):
        seen = train(comm, "topka", case, np.float32, 40, selector=Threshold(refresh=refresh))
        return [s.report.selected / case.k for s in seen]

    assert set(World(1).run(lambda comm: body(comm, "histogram"))[0]) == {1.0}
    assert max(World(1).run(lambda comm: body(comm, "exact"))[0]) > 1.5


def test_oktopk_at_1024_ranks():
    """The simulator carries a thousand ranks."""

    def body(comm):
        reducer = SparseAllreduce(100_000, k=1000, comm=comm, algorithm="oktopk")
        total = reducer.step(np.random.default_rng(comm.rank).standard_normal(100_000, np.float32))
        return total.nnz, reducer.report.traffic.sent

    results = World(1024).run(body)
    assert {nnz for nnz, _ in results} == {results[0][0]} and 900 <= results[0][0] <= 1000
