"""What the conformance suite puts into an algorithm, and what it demands of what comes out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi import SparseAllreduce, SparseVector, StepReport, World, wire
from sparse_mpi.comm.base import rounds
from sparse_mpi.reduction.report import unselected
from sparse_mpi.sparse import Layout


class Case(NamedTuple):
    """A gradient ``make(rng, rank, ranks)`` ``(n,)``, how many entries to keep of it, and the shapes of its tensors."""

    make: Callable[..., np.ndarray]
    n: int = 1000
    k: int = 40
    shapes: tuple[tuple[int, ...], ...] | None = None  # None: one flat tensor

    @property
    def layout(self) -> Layout:
        return Layout.of(self.n if self.shapes is None else self.shapes)


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


def model(rng, rank, ranks):
    return rng.standard_normal(sum(LAYERS.sizes)) * np.repeat(rng.lognormal(size=len(LAYERS.sizes)), LAYERS.sizes)


# matrices, biases and a scalar, empty tensors and one-row ones, as models have them
LAYERS = Layout.of([(12, 30), (30,), (7, 5, 3, 3), (7,), (), (0, 4), (1, 50), (40, 1), (5, 60), (60,), (6, 4, 1, 1)])

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
    "layers": Case(model, LAYERS.size, 250, LAYERS.shapes),
    "layers, k=1": Case(model, LAYERS.size, 1, LAYERS.shapes),
    "layers, k=n": Case(model, LAYERS.size, LAYERS.size, LAYERS.shapes),
}


def gradient(case: Case, dtype, seed: int, rank: int, ranks: int) -> np.ndarray:
    return case.make(np.random.default_rng([seed, rank]), rank, ranks).astype(dtype)


class Step(NamedTuple):
    """What one rank saw of one step."""

    total: Any
    given: np.ndarray  # what its acc lost
    report: StepReport
    nonzero: int  # entries of its acc


def train(comm, algorithm, case: Case, dtype, steps: int, **options) -> list[Step]:
    """Steps with error feedback on fresh gradients."""
    reducer = SparseAllreduce(case.layout, k=case.k, comm=comm, algorithm=algorithm, **options)
    seen = []
    for step in range(steps):
        g = gradient(case, dtype, step, comm.rank, comm.size)
        acc = reducer.residual.astype(dtype) + g
        total = reducer.step(g)
        seen.append(Step(total, acc - reducer.residual, reducer.report, np.count_nonzero(acc)))
    return seen


def dense_of(total) -> np.ndarray:
    return total.to_dense() if isinstance(total, SparseVector) else total


def same_bytes(a, b) -> bool:
    if isinstance(a, SparseVector):
        return a.size == b.size and same_bytes(a.indices, b.indices) and same_bytes(a.values, b.values)
    return a.tobytes() == b.tobytes()


def assert_laws(steps: list[Step], algorithm=None) -> None:
    """Agreement to the bit and conservation, over one step of ``algorithm`` as all ranks saw it."""
    for other in steps[1:]:
        assert same_bytes(steps[0].total, other.total), "total differs between ranks"
    given = [s.given for s in steps]
    magnitude = np.sum(np.abs(given), axis=0)
    if algorithm is not None and algorithm.traits.rounds_relative_to_norm:
        magnitude = magnitude + np.linalg.norm(magnitude)
    tolerance = 8 * (len(steps) + 2) * np.finfo(given[0].dtype).eps * magnitude
    assert (np.abs(np.sum(given, axis=0) - dense_of(steps[0].total)) <= tolerance).all(), "mass was lost"


def assert_form(total, case: Case, dtype) -> None:
    if not isinstance(total, SparseVector):
        assert total.shape == (case.n,) and total.dtype == dtype
        return
    assert total.size == case.n and total.values.dtype == dtype and total.indices.dtype == np.int32
    assert total.indices.shape == total.values.shape
    assert (np.diff(total.indices) > 0).all() and (total.indices >= 0).all() and (total.indices < case.n).all()


def assert_all(seen: list[list[Step]], algorithm, case: Case, dtype) -> None:
    """Laws, form, economy and count, over what each rank saw of some steps of ``algorithm``."""
    for steps in zip(*seen, strict=True):
        assert_laws(list(steps), algorithm)
        assert_form(steps[0].total, case, dtype)
    assert_economy_and_count(seen, algorithm, case, dtype)


def assert_economy_and_count(seen: list[list[Step]], algorithm, case: Case, dtype) -> None:
    for step in chain.from_iterable(seen):
        assert_economy(step, algorithm, case, dtype, len(seen))
        assert_count(step, algorithm, case, len(seen))


def assert_same_as_in_world(ranks, *jobs) -> None:
    """On MPI each of the ``jobs(comm)``, which return steps, gives the bytes of a World, and counts as much traffic."""
    for job in jobs:
        for here, simulated in zip(ranks.run(job), World(ranks.size).run(job), strict=True):
            for one, other in zip(here, simulated, strict=True):
                assert same_bytes(one.total, other.total) and one.given.tobytes() == other.given.tobytes()
                assert counted(one.report.traffic) == counted(other.report.traffic)


def counted(traffic) -> list[int]:
    return [getattr(traffic, each) for each in ("sent", "received", "messages", "control")]


def assert_economy(step: Step, algorithm, case: Case, dtype, ranks: int) -> None:
    k = min(case.k, case.n)
    bound = algorithm.bound(case.layout, k, ranks)
    traffic, itemsize = step.report.traffic, np.dtype(dtype).itemsize
    assert traffic.sent <= bound.payload(wire.pair_bytes(case.n, dtype), itemsize)
    handshake = (2 * rounds(ranks), 32)  # messages and bytes with which the ranks make sure that they do the same
    assert traffic.messages <= bound.messages + handshake[0]
    assert traffic.control <= bound.control + handshake[1]


def assert_count(step: Step, algorithm, case: Case, ranks: int) -> None:
    """The selection is in the selector's band, the result as large as the algorithm promises; zeros need not be in."""
    k = min(case.k, case.n)
    fewest, most = algorithm.result_band(case.layout, k, ranks)
    assert min(fewest, step.nonzero) <= step.report.total <= most
    if unselected(algorithm, case.layout) == case.n:  # everything is summed, or ranks choose on their own
        assert step.report.selected == step.report.total
        return
    least, most = algorithm.selected_band(case.layout, k, ranks)
    assert min(least, step.nonzero) <= step.report.selected <= most


def assert_resumes(comm, case: Case, algorithm, **options) -> None:
    """Assert that steps after a restart are those without one, to the bit, and that what was loaded is left alone."""

    def made():
        return SparseAllreduce(case.layout, k=case.k, comm=comm, algorithm=algorithm, **options)

    straight, resumed, again = made(), made(), made()
    for step in range(4):
        straight.step(gradient(case, np.float32, step, comm.rank, comm.size))
    saved = straight.state_dict()
    resumed.load_state_dict(saved)
    for step in range(4, 9):
        g = gradient(case, np.float32, step, comm.rank, comm.size)
        a, b = straight.step(g), resumed.step(g)
        assert same_bytes(a, b)
        assert straight.report.traffic.sent == resumed.report.traffic.sent
    assert straight.residual.tobytes() == resumed.residual.tobytes()
    again.load_state_dict(saved)
    for step in range(4, 9):
        again.step(gradient(case, np.float32, step, comm.rank, comm.size))
    assert again.residual.tobytes() == resumed.residual.tobytes()
