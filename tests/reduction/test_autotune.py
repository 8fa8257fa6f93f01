"""The choice of an algorithm: the same on all ranks, made once, and the one that the network favours."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, sparse_allreduce
from sparse_mpi.comm.network import Network, fit_network
from sparse_mpi.reduction.autotune import candidates, try_all
from sparse_mpi.sparse import Layout


@pytest.mark.ranks(1, 2, 3, 5)
def test_a_job_that_leaves_the_choice_reduces_like_any_other(ranks):
    def body(comm):
        reducer = SparseAllreduce(3000, k=30, comm=comm, algorithm="auto")
        for step in range(3):
            reducer.step(np.random.default_rng([step, comm.rank]).standard_normal(3000), check=True)
        total, _ = sparse_allreduce(np.ones(3000), k=30, comm=comm, algorithm="auto")
        return repr(reducer.algorithm), np.asarray(getattr(total, "values", total)).tobytes()

    assert len(set(ranks.run(body))) == 1


@pytest.mark.ranks(6)
def test_where_bytes_are_dear_fewest_are_sent_where_messages_are_fewest_are(ranks):
    """Both prices far above what computing can take."""
    layout, k = Layout.of(60_000), 600

    def chosen(comm, **price):
        trials = try_all(candidates(), layout, k, comm, Network(**price))
        return trials, min(trials, key=lambda trial: trial.seconds).algorithm

    for price, names in [
        ({"alpha": 0, "beta": 1.0}, {"OkTopk", "SparDL"}),
        ({"alpha": 1e6, "beta": 0}, {"TopkA", "Dense"}),
    ]:
        seen = ranks.run(lambda comm, p=price: chosen(comm, **p))
        trials, best = seen[0]
        assert all(other == seen[0] for other in seen)
        assert type(best).__name__ in names
        assert min(trial.exchange for trial in trials) == [t.exchange for t in trials if t.algorithm == best][0]


@pytest.mark.ranks(2)
def test_a_choice_is_made_once_for_a_communicator_a_layout_and_a_k(ranks):
    def body(comm):
        first = SparseAllreduce(500, k=5, comm=comm, algorithm="auto").algorithm
        before = comm.traffic.copy()
        second = SparseAllreduce(500, k=5, comm=comm, algorithm="auto").algorithm
        return first is second, (comm.traffic - before).sent

    assert ranks.run(body) == [(True, 0)] * ranks.size


def test_a_network_is_fitted_by_its_messages(ranks):
    for fitted in ranks.run(fit_network):
        assert fitted.alpha >= 0 and fitted.beta >= 0
        assert (fitted == Network(0, 0)) == (ranks.size == 1)


@pytest.mark.ranks(1, 3)
def test_options_are_for_a_named_algorithm(ranks):
    def body(comm):
        with pytest.raises(TypeError, match="must not be given with algorithm='auto'"):
            SparseAllreduce(10, k=2, comm=comm, algorithm="auto", period=3)

    ranks.run(body)
