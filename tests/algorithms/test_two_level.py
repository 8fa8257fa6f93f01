"""Two levels: what the conformance suite, where all ranks are on one node, does not see."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, sparse_allreduce
from sparse_mpi.algorithms.two_level import TwoLevel
from sparse_mpi.comm.counting import CountingComm
from sparse_mpi.comm.world import World
from sparse_mpi.reduction.arguments import make_algorithm
from sparse_mpi.testing import CASES, Trials, check_algorithm
from sparse_mpi.testing.steps import check_counts

from .conformance import counted, train

RANDOM = CASES["random"]


def bytes_of(steps) -> list:
    return [(s.total.indices.tobytes(), s.total.values.tobytes(), s.given.tobytes()) for s in steps]


@pytest.mark.ranks(3, 4, 8)
@pytest.mark.parametrize("options", [{"radix": 2}, {"selector": "sidco-exp", "period": 2}], ids=str)
def test_settings_of_what_runs_in_the_lanes(ranks, options):
    algorithm = TwoLevel(2, make_algorithm("oktopk", options))
    check_algorithm(algorithm, Trials((ranks,), ("random",), seeds=(0, 1), examples=0))


@pytest.mark.parametrize("per_node", [2, 4, 8])
@pytest.mark.parametrize("kind", ["one layer", "all layers"])
def test_lanes_share_k_by_where_the_large_entries_are(kind, per_node):
    """Of the energy that k entries could remove they do nearly all; nodes of few ranks do not agree on all of them."""
    n, k = 20_000, 400
    scales = {
        "one layer": np.where(np.arange(n) // 2000 == 1, 1000.0, 1.0),
        "all layers": np.random.default_rng(5).lognormal(0, 1.5, 40).repeat(500),
    }

    def body(comm):
        common, own = (np.random.default_rng(seed).standard_normal(n) for seed in (7, [8, comm.rank]))
        x = scales[kind] * (common + own)
        total, _ = sparse_allreduce(x, k=k, comm=comm, algorithm=TwoLevel(per_node))
        whole = comm.allreduce(x)
        return (whole[total.indices] ** 2).sum() / np.sort(whole**2)[-k:].sum()

    assert min(World(8).run(body)) > {2: 0.85, 4: 0.9, 8: 0.97}[per_node]


@pytest.mark.parametrize("per_node", [1, 2, 3, 6])
def test_the_communicator_tells_the_nodes(per_node):
    def body(comm, algorithm):
        steps = train(comm, algorithm, RANDOM, np.float32, 3)
        return bytes_of(steps), [counted(step.report.traffic) for step in steps]

    asked = World(6, per_node).run(lambda comm: body(comm, TwoLevel()))
    assert asked == World(6).run(lambda comm: body(comm, TwoLevel(per_node)))


def test_with_one_rank_a_node_it_is_oktopk(ranks):
    two, one = (
        ranks.run(lambda comm, a=algorithm: train(comm, a, RANDOM, np.float32, 5))
        for algorithm in (TwoLevel(1), "oktopk")
    )
    assert list(map(bytes_of, two)) == list(map(bytes_of, one))
    check_counts(two, TwoLevel(), RANDOM, np.float32)  # the bound of any nodes


def test_what_is_not_sent_is_kept_once_a_node():
    """Nodes of 3, 3 and 2 ranks: the third rank of a node owns nothing, the first two a half each."""

    def body(comm):
        reducer = SparseAllreduce(1000, k=40, comm=comm, algorithm=TwoLevel(3))
        for step in range(3):
            reducer.step(RANDOM.gradient(np.float64, step, comm.rank, comm.size))
        return np.flatnonzero(reducer.residual), reducer.report.selected

    for rank, (kept, selected) in enumerate(World(8).run(body)):
        begin, end = [(0, 500), (500, 1000), (0, 0)][rank % 3]
        assert len(kept) >= 0.9 * (end - begin) and np.all((kept >= begin) & (kept < end))
        assert (0 < selected < 40) if end else selected == 0


@pytest.mark.parametrize("saved", [0, 2])
@pytest.mark.parametrize("inner", ["oktopk", "elect"])
def test_a_selector_that_knows_its_layout_is_resumed_in_its_segment(inner, saved):
    """A rank's segment is its layout after the first step; a state from before it fits a reducer that has run."""
    algorithm = TwoLevel(3, make_algorithm(inner, {"selector": "interleaved"}))

    def body(comm):
        reducer, resumed = (SparseAllreduce(1000, k=40, comm=comm, algorithm=algorithm) for _ in range(2))
        before, after = ([RANDOM.gradient("f4", s, comm.rank, 8) for s in steps] for steps in (range(saved), (7, 8, 9)))
        for x in before:
            reducer.step(x)
        if not saved:
            resumed.step(after[0])
        resumed.load_state_dict(reducer.state_dict())
        for x in after:
            for own, other in zip(reducer.step(x)[:2], resumed.step(x)[:2], strict=True):
                assert own.tobytes() == other.tobytes()

    World(8).run(body)


def test_few_entries_leave_lanes_without_work_and_more_bring_them_back(ranks):
    def body(comm):
        reducer = SparseAllreduce(1000, k=40, comm=comm, algorithm=TwoLevel(4))
        found = []
        for step, k in enumerate([40, 1, 3, 40]):
            total = reducer.step(RANDOM.gradient(np.float64, step, comm.rank, comm.size), check=True, k=k)
            found.append(total.nnz)
        return found

    for found in ranks.run(body):
        assert all(0.9 * k - 1 < nnz <= k for k, nnz in zip([40, 1, 3, 40], found, strict=True))


def test_communicators_are_made_once(ranks, monkeypatch):
    made = []
    monkeypatch.setattr(
        CountingComm, "split", lambda self, color, split=CountingComm.split: made.append(split(self, color)) or made[-1]
    )

    def body(comm):
        comm = comm.duplicate()
        before = len(made)
        for _ in range(2):
            train(comm, TwoLevel(2), RANDOM, np.float32, 2)
        comm.barrier()
        return len(made) - before

    assert ranks.run(body)[-1] <= 2 * ranks.size
    assert len(made) in (2, 2 * ranks.size)  # on one rank of MPI, on all of a world


def test_other_lanes_of_as_many_ranks_begin_anew(monkeypatch):
    """Ranks that are placed block by block, and then in turns: every lane has other members, and all know."""
    saved = {}

    def job(place, resume):
        monkeypatch.setattr("sparse_mpi.algorithms.two_level.host_leader", lambda comm: place(comm.rank))

        def body(comm):
            reducer = SparseAllreduce(4000, k=80, comm=comm, algorithm="oktopk-2level")
            if resume:
                reducer.load_state_dict(saved[comm.rank])
            for step in range(4):
                total = reducer.step(np.random.default_rng([step, comm.rank]).standard_normal(4000), check=True)
            saved[comm.rank] = reducer.state_dict()
            return total.indices.tobytes()

        return set(World(4).run(body))

    assert len(job(lambda rank: rank // 2, False)) == len(job(lambda rank: rank % 2, True)) == 1
