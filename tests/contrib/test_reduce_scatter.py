"""`SparseReduceScatter`: each part of the sum stays with its owner, and nothing is lost on the way there."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.algorithms.hybrid import Fused
from sparse_mpi.contrib import SparseReduceScatter
from sparse_mpi.contrib.scatter_algorithms import REDUCE_SCATTERS, OkTopkScatter
from sparse_mpi.feedback import ErrorFeedback
from sparse_mpi.sparse import equal_boundaries
from sparse_mpi.testing import CASES, Case
from sparse_mpi.testing.steps import Step, check_counts, dense_of

from ..algorithms.conformance import assert_same_as_in_world

VARIANTS = {name: (name, {}) for name in REDUCE_SCATTERS} | {
    "oktopk-radix2": ("oktopk", {"radix": 2}),
    "oktopk-packed": ("oktopk", {"wire": "packed"}),
    "oktopk-int8": ("oktopk", {"wire": "packed+int8"}),
    "oktopk-random": ("oktopk", {"selector": "random"}),
    "elect-radix2": ("elect", {"radix": 2}),
    "elect-packed": ("elect", {"wire": "packed"}),
}


def at_random(n, ranks):
    return np.random.default_rng(n + ranks).multinomial(n, np.random.default_rng(ranks).dirichlet([0.3] * ranks))


CUTS = {
    "equal": lambda n, ranks: None,
    "all-on-the-last": lambda n, ranks: [0] * (ranks - 1) + [n],
    "none-on-the-first": lambda n, ranks: np.diff([0, *equal_boundaries(n, max(ranks - 1, 1))])[-ranks:],
    "uneven": at_random,
}


class Keeping(ErrorFeedback):
    """Error feedback that asserts the second law to the bit, and keeps what was sent."""

    exact = True

    def consume(self, sent, total, ranks=0):
        acc, self.sent = self.residual.copy(), dense_of(sent).copy()
        result = super().consume(sent, total, ranks)
        assert self.residual.tobytes() == (acc - self.sent).tobytes()
        if self.exact:  # what is sent is sent whole, and the rest stays as it is
            at = slice(None) if isinstance(sent, np.ndarray) else sent.indices
            assert self.sent[at].tobytes() == acc[at].tobytes()
        return result


def train(comm, algorithm, case, dtype, steps, counts=None, **options) -> list[Step]:
    """Steps with error feedback on fresh gradients; `Step.given` is what this rank sent."""
    reducer = SparseReduceScatter(
        case.layout, k=case.k, comm=comm, algorithm=algorithm, counts=counts, feedback=Keeping(), **options
    )
    seen = []
    for step in range(steps):
        reducer.feedback.exact = algorithm == "oktopk" and reducer.algorithm.wire.lossless
        g = case.gradient(dtype, step, comm.rank, comm.size)
        nonzero = np.count_nonzero(reducer.residual.astype(dtype) + g)
        part = reducer.step(g)
        seen.append(Step(part, reducer.feedback.sent, reducer.report, nonzero))
    return seen


def assert_parts(steps: list[Step], counts) -> None:
    """The form of the parts, and the first law: put together, they are the sum of what was sent."""
    for step, count in zip(steps, counts, strict=True):
        part = step.total
        assert part.size == count and part.indices.dtype == np.int32 and part.values.dtype == step.given.dtype
        assert (np.diff(part.indices) > 0).all() and (part.indices >= 0).all() and (part.indices < count).all()
        assert step.report.total == part.nnz
    whole, given = np.concatenate([dense_of(step.total) for step in steps]), [step.given for step in steps]
    tolerance = 8 * (len(steps) + 2) * np.finfo(whole.dtype).eps * np.sum(np.abs(given), axis=0)
    assert (np.abs(np.sum(given, axis=0) - whole) <= tolerance).all(), "mass was lost"


@pytest.mark.thin(2)
@pytest.mark.ranks(1, 2, 3, 5, 7)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("case", [name for name in CASES if "nonfinite" not in name])
@pytest.mark.parametrize("variant", VARIANTS)
def test_laws_form_and_economy(ranks, variant, case, cut, dtype):
    (name, options), case, P = VARIANTS[variant], CASES[case], ranks.size
    counts = CUTS[cut](case.n, P)
    seen = ranks.run(lambda comm: train(comm, name, case, dtype, 3, counts, **options))
    owned = np.diff(equal_boundaries(case.n, P)) if counts is None else counts
    for steps in zip(*seen, strict=True):
        assert_parts(steps, owned)
    algorithm = World(P).run(
        lambda comm: SparseReduceScatter(case.layout, comm=comm, algorithm=name, counts=counts, **options).algorithm
    )[0]
    fewest, most = algorithm.result_band(case.layout, min(case.k, case.n), P)
    check_counts(seen, algorithm, case, dtype)
    assert all(fewest <= step.report.total <= most for step in chain.from_iterable(seen))


@pytest.mark.ranks(1, 2, 3, 5, 7)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", REDUCE_SCATTERS)
def test_density_one_is_a_dense_reduce_scatter(ranks, name, cut):
    """As are a dense step, whatever the density, and a flush of what is owed."""
    case = CASES["k=n"]
    given = [case.gradient(np.float64, 3, rank, ranks.size) for rank in range(ranks.size)]
    counts, expected = CUTS[cut](1000, ranks.size), np.sum(given, axis=0)

    def body(comm):
        whole = SparseReduceScatter(1000, counts=counts, density=1, comm=comm, algorithm=name)
        some = SparseReduceScatter(1000, counts=counts, density=0.1, comm=comm, algorithm=name)
        one, dense, part = whole.step(given[comm.rank]), some.step(given[comm.rank], dense=True), whole.part
        assert dense.nnz == dense.size == part.stop - part.start and not whole.residual.any()
        first, rest = some.step(given[comm.rank]).to_dense(), some.flush()
        for result in (one.to_dense(), dense.to_dense(), first + rest):
            np.testing.assert_allclose(result, expected[part], rtol=1e-12, atol=1e-12)
        return part

    parts = ranks.run(body)
    assert np.concatenate([np.arange(1000)[part] for part in parts]).tolist() == list(range(1000))


@pytest.mark.against_world
@pytest.mark.parametrize("variant", VARIANTS)
def test_world_equals_mpi_in_bytes_and_traffic(ranks, variant):
    (name, options), case = VARIANTS[variant], CASES["heavy-tailed"]
    counts = at_random(case.n, ranks.size)
    assert_same_as_in_world(ranks, lambda comm: train(comm, name, case, np.float32, 5, counts, **options))


@pytest.mark.ranks(2, 3, 7)
def test_it_costs_at_most_half_of_the_allreduce_and_bounds_are_those_of_the_formula(ranks):
    """On average over the ranks 2k(P-1)/P words of pairs, of gradients whose entries lie anywhere."""
    case, P = Case(lambda rng, rank, ranks: rng.standard_normal(20_000), 20_000, 1000), ranks.size

    def body(comm):
        kinds, sent = (SparseReduceScatter, SparseAllreduce), []
        for reducer in (kind(case.n, k=case.k, comm=comm) for kind in kinds):
            for step in range(4):
                reducer.step(case.gradient(np.float32, step, comm.rank, comm.size))
            sent.append(reducer.report.traffic.sent)
        return sent

    scattered, reduced = np.mean(ranks.run(body), axis=0)
    assert scattered == pytest.approx(8 * case.k * (P - 1) / P, rel=0.05) and scattered < 0.55 * reduced
    assert OkTopkScatter().bound(case.layout, case.k, P).words == 2 * case.k
    assert OkTopkScatter().bound(case.layout, case.n, P).words == 2 * (case.n - case.n // P)
    assert OkTopkScatter().bound(case.layout, case.k, P).messages == P - 1


@pytest.mark.parametrize("cut", ["equal", "uneven"])
@pytest.mark.parametrize("name", REDUCE_SCATTERS)
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 5), (1, 3)])
def test_other_ranks_take_over_all_that_is_owed(name, cut, before, after):
    def reducer(comm):
        return SparseReduceScatter(400, k=20, comm=comm, algorithm=name, counts=CUTS[cut](400, comm.size))

    def save(comm):
        saved = reducer(comm)
        for step in range(3):
            saved.step(np.random.default_rng([step, comm.rank]).standard_normal(400))
        return saved.state_dict()

    states = World(before).run(save)

    def resume(comm):
        resumed = reducer(comm)
        resumed.take_over(states[comm.rank :: comm.size], before)
        return resumed.flush(check=True)

    owed = np.sum([state["residual"] for state in states], axis=0)
    np.testing.assert_allclose(np.concatenate(World(after).run(resume)), owed, rtol=1e-12, atol=1e-12)


def test_an_allreduce_takes_no_algorithm_that_scatters():
    with pytest.raises(ValueError, match="algorithm must leave the sum on every rank, as dense, .*got OkTopkScatter"):
        SparseAllreduce(200, comm=World(1).run(lambda comm: comm)[0], algorithm=OkTopkScatter())
    with pytest.raises(ValueError, match="algorithm must leave the whole sum on every rank, got OkTopkScatter"):
        Fused(OkTopkScatter(), (0,), 0.5)
