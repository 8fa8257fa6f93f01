"""The conformance suite: what every algorithm in the registry must do, for any number of ranks and any input.

The bodies run on `World` for P = 1..8 and, unchanged, on real MPI under mpiexec (see conftest.py).
"""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SELECTORS, SparseAllreduce, World, sparse_allreduce
from sparse_mpi.algorithms import Algorithm
from sparse_mpi.reduction.arguments import make_algorithm, takes
from sparse_mpi.select.alldim import AllDim
from sparse_mpi.select.interleaved import Interleaved
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.testing import CASES, Case, Trials, check_algorithm
from sparse_mpi.testing.steps import check_counts, dense_of, taken

from ..reduction.rules import KINDS
from .conformance import assert_same_as_in_world, train

# every entry of the registry, and options that change how an algorithm communicates
SPARSE = [name for name in ALGORITHMS if takes(name, "selector")]
VARIANTS = {name: (name, {}) for name in ALGORITHMS} | {
    "spardl-block": ("spardl", {"prune": "block"}),
    "oktopk-radix2": ("oktopk", {"radix": 2}),
    "oktopk-exact": ("oktopk", {"published": "vgg", "selector": Threshold(), "trigger": 1.5}),
    "adtopk-alldim": ("adtopk", {"selector": AllDim()}),
    "adtopk-axis1": ("adtopk", {"selector": Interleaved(rows="axis1")}),
    "oktopk-2level-of-2": ("oktopk-2level", {"ranks_per_node": 2}),
    "oktopk-2level-of-3": ("oktopk-2level", {"ranks_per_node": 3}),
}

DYADIC = Case(lambda rng, rank, ranks: rng.integers(-1000, 1000, 1000) / 64)


def refused(name: str, selector: str) -> bool:
    """Tell if the algorithm relies on equal counts of every row on all ranks, and the selector has none."""
    return ALGORITHMS[name]().selector.patterned and not SELECTORS[selector]().patterned


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.thin(1, ranks=(3,), dtype=("float32",), variant=tuple(ALGORITHMS))
def test_all_laws(ranks, variant, case, dtype):
    check_algorithm(make_algorithm(*VARIANTS[variant]), Trials((ranks,), (case,), (dtype,), examples=0))


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_laws_on_other_numbers_of_ranks_and_on_drawn_gradients(variant):
    """And each declares its bound, without which a check has nothing to compare with."""
    algorithm = make_algorithm(*VARIANTS[variant])
    assert type(algorithm).bound is not Algorithm.bound
    check_algorithm(algorithm, Trials((1, 4, 7), ("layers",), examples=2))


@pytest.mark.thin(1)  # every algorithm and every selector once
@pytest.mark.ranks(3)
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if takes(name, "selector")])
def test_every_algorithm_works_with_every_selector(ranks, name, selector):
    assert takes(name, "selector", selector) == (not refused(name, selector))
    if refused(name, selector):
        with pytest.raises(TypeError, match=f"selector must be .* in {name}, .* or use algorithm='topka'"):
            make_algorithm(name, {"selector": selector})
        return
    algorithm = make_algorithm(name, {"selector": selector})
    assert isinstance(algorithm.selector, SELECTORS[selector])
    cases = "one-rank-zero", "constant", "k=n", "n=1", "layers"
    check_algorithm(algorithm, Trials((ranks,), cases, examples=0))


@pytest.mark.thin(1)  # 50 steps each
@pytest.mark.ranks(1, 2, 3, 5, 8)
@pytest.mark.parametrize("case", ["random", "disjoint", "layer-skewed", "heavy-tailed", "ties"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_bounds_and_counts_hold_over_50_steps(ranks, name, case):
    case, algorithm = CASES[case], ALGORITHMS[name]()
    seen = ranks.run(lambda comm: train(comm, name, case, np.float32, 50))
    check_counts(seen, algorithm, case, np.float32)


@pytest.mark.parametrize("name", SPARSE)
def test_what_was_sent_ascends_at_a_low_density(name):
    """Pairs that lie far apart are merged two by two, which relies on ascending ones."""

    def sent(comm):
        x = np.random.default_rng(comm.rank).standard_normal(1_000_000, np.float32)
        return sparse_allreduce(x, k=600, comm=comm, algorithm=name).sent.indices

    assert all((np.diff(indices) > 0).all() for indices in World(5).run(sent))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_dense_limit(ranks, name):
    case = CASES["k=n"]
    given = [case.gradient(np.float64, 3, rank, ranks.size) for rank in range(ranks.size)]
    tolerance = (1e-12 if ALGORITHMS[name]().traits.lossless else 2**-7) * (1 + np.sum(np.abs(given), axis=0))

    def body(comm):
        return sparse_allreduce(given[comm.rank], k=1000, comm=comm, algorithm=name)

    for reduction in ranks.run(body):
        assert (np.abs(dense_of(reduction.total) - np.sum(given, axis=0)) <= tolerance).all()


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.against_world
def test_world_equals_mpi_in_bytes_and_traffic(ranks, name):
    case = CASES["heavy-tailed"]

    def body(comm):
        return train(comm, name, case, np.float32, 5)

    def exact(comm):  # sums of these are exact, so that not even MPI_Allreduce's order of adding shows
        return train(comm, name, DYADIC, np.float32, 5)

    assert_same_as_in_world(ranks, exact, *([body] if ALGORITHMS[name]().exact_order(case.layout, case.k) else []))


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("kind", [*KINDS, "second moment"])
@pytest.mark.against_world
def test_world_equals_mpi_with_any_memory(ranks, kind):
    name, options = ("oktopk", {"feedback": KINDS[kind]}) if kind in KINDS else ("elect", {"second_moment": 0.9})
    case = CASES["heavy-tailed"]

    def body(comm):
        made = SparseAllreduce(case.layout, k=case.k, comm=comm, algorithm=name, **options)
        return taken(made, case, np.float32, range(4), check=False)  # whose laws are of residuals alone

    assert_same_as_in_world(ranks, body)
