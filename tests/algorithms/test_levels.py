"""Two levels by default: which ranks have them, what goes between hosts, and what else a job does with them."""

from __future__ import annotations

import logging
from copy import deepcopy

import numpy as np
import pytest

from sparse_mpi import FEEDBACKS, GlobalMomentum, SparseAllreduce, World, sparse_allreduce
from sparse_mpi.algorithms import Elect, OkTopk
from sparse_mpi.algorithms.hybrid import Fused, Hybrid
from sparse_mpi.algorithms.topka import TopkA
from sparse_mpi.algorithms.two_level import TwoLevel
from sparse_mpi.fault_tolerance import ElasticAllreduce
from sparse_mpi.testing import CASES, Trials, check_algorithm
from sparse_mpi_bench.analysis import gradients
from sparse_mpi_bench.analysis.recording import RecordingComm

from ..gradients import gradient
from .conformance import assert_same_as_in_world, train

ABLE = ("oktopk", "elect")
NODES = ((4, 2), (6, 3), (6, 2), (8, 4))  # ranks, and how many of them a host has
N, K = 4000, 80
MATRIX = ((40, 50), (2000,))


def totals(comm, steps: int = 3, n: int = N, reducer=SparseAllreduce, **options) -> list[bytes]:
    made = reducer(n, **{"k": K, "comm": comm} | options)
    results = [made.step(gradient(comm.rank, step, n)) for step in range(steps)]
    return [part.tobytes() for total in results for part in total[:2]]


def runs(comm, algorithm, **options):
    return SparseAllreduce(N, k=K, comm=comm, algorithm=algorithm, **options).engine.exchange.placed


@pytest.mark.thin(1, nodes=((4, 2),))
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("nodes", NODES, ids=str)
@pytest.mark.parametrize("algorithm", [OkTopk(), Elect()], ids=lambda x: type(x).__name__)
def test_all_laws(algorithm, nodes, case):
    assert isinstance(World(*nodes).run(lambda comm: runs(comm, algorithm))[0], TwoLevel)
    check_algorithm(algorithm, Trials((World(*nodes),), (case,), examples=0))


def between_hosts(ranks: int, per_node: int, n: int, kind: str, **options) -> float:
    """Return the bytes that ranks send to other hosts in eight steps, control included."""
    made, hosts = gradients.make(kind, n, 0, ranks), np.arange(ranks) // per_node

    def body(comm):
        recording, sent = RecordingComm(comm), np.zeros(ranks)
        reducer = SparseAllreduce(n, comm=recording, **options)
        for step in range(12):
            recording.restart()
            reducer.step(made.at(step, comm.rank))
            for call in recording.record if step >= 4 else ():
                to = call.to or {member: 1 for member in call.members if member != comm.rank}
                shares = np.bincount(list(to), list(to.values()), ranks)
                sent += (call.counted.sent + call.counted.control) * shares / max(shares.sum(), 1)
        return sent

    pairs = np.array(World(ranks, per_node).run(body))  # (P, P) bytes from rank to rank
    return float(pairs[hosts[:, None] != hosts].sum())


@pytest.mark.parametrize("wire", [None, "packed"])
@pytest.mark.parametrize("kind", ["independent", "layer-skewed", "correlated"])
@pytest.mark.parametrize("name", ABLE)
@pytest.mark.thin(1)
def test_hosts_of_four_ranks_send_a_quarter(name, kind, wire):
    one, two = (
        between_hosts(8, 4, 200_000, kind, density=0.01, algorithm=name, wire=wire, levels=levels)
        for levels in (1, None)
    )
    assert 0 < two <= 1.15 / 4 * one


@pytest.mark.parametrize("nodes", NODES, ids=str)
@pytest.mark.parametrize("name", ABLE)
def test_at_a_density_of_1_sums_are_those_of_dense(name, nodes):
    ranks, x = nodes[0], [np.random.default_rng(rank).integers(-999, 999, 997) / 64 for rank in range(nodes[0])]

    def body(comm):
        return SparseAllreduce(997, density=1.0, comm=comm, algorithm=name).step(x[comm.rank]).to_dense()

    for found in World(*nodes).run(body):
        np.testing.assert_array_equal(found, sum(x[rank] for rank in range(ranks)))


@pytest.mark.parametrize("nodes", [(4, 4), (4, 1), (5, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("name", ABLE)
def test_one_host_one_rank_a_host_and_unequal_hosts_have_one_level(name, nodes):
    same = World(*nodes).run(lambda comm: runs(comm, name))
    assert all(type(algorithm) is not TwoLevel for algorithm in same)
    assert World(*nodes).run(lambda comm: totals(comm, algorithm=name)) == World(nodes[0]).run(
        lambda comm: totals(comm, algorithm=name)
    )


@pytest.mark.parametrize(
    ("nodes", "options", "text"),
    [
        ((4, 2), {}, "OkTopk has two levels: dense sums of 2 ranks a host, sparse ones of 2 hosts"),
        ((4, 2), {"algorithm": "elect"}, "Elect has two levels: dense sums of 2 ranks a host, sparse ones of 2 hosts"),
        ((4, 2), {"algorithm": "topka"}, "TopkA has one level on 2 hosts; elect and oktopk can have two"),
        ((5, 2), {}, "OkTopk has one level, as hosts have 1 to 2 ranks; have as many on each"),
        ((4, 2), {"levels": 1}, None),
        ((4, 2), {"levels": 2}, None),
        ((4, 2), {"algorithm": "dense"}, None),
        ((4, 4), {}, None),
        ((4, 1), {}, None),
    ],
    ids=str,
)
def test_rank_0_says_it_once(caplog, nodes, options, text):
    with caplog.at_level(logging.INFO, "sparse_mpi"):
        World(*nodes).run(lambda comm: [SparseAllreduce(N, k=K, comm=comm, **options) for _ in range(2)])
    assert [record.getMessage() for record in caplog.records] == ([f"sparse_mpi: {text}"] if text else [])


def test_levels_are_checked_and_agreed():
    def refused(comm, match, **options):
        with pytest.raises((ValueError, TypeError), match=match):
            SparseAllreduce(N, k=K, comm=comm, **options)

    def body(comm):
        refused(comm, r"levels must be in \[1, 2\], got 3; None goes by the ranks of each node", levels=3)
        refused(comm, "topka has no option levels", algorithm="topka", levels=2)
        refused(comm, "all ranks must call with the same arguments", levels=1 + comm.rank % 2)
        with pytest.raises(ValueError, match="inner must be an algorithm that has levels, .* got TopkA"):
            TwoLevel(inner=TopkA())

    World(4, 2).run(body)


def test_one_sum_alone_has_two_levels_where_it_is_asked_for(caplog):
    def body(comm, **options):
        return sparse_allreduce(gradient(comm.rank, 0, N), k=K, comm=comm, **options)

    algorithms = Hybrid((Fused(OkTopk(), (0,), 1.0),)), "topka", "oktopk-2level"
    alone, flat, two, part, _, same = (
        World(4, 2).run(lambda comm, o=options: body(comm, **o))[0]
        for options in ({}, {"levels": 1}, {"levels": 2}, *({"algorithm": each} for each in algorithms))
    )
    assert alone.total.indices.tobytes() == flat.total.indices.tobytes() != two.total.indices.tobytes()
    assert part.total.indices.tobytes() == flat.total.indices.tobytes() and not caplog.records
    assert two.total.values.tobytes() == same.total.values.tobytes()


@pytest.mark.parametrize("feedback", FEEDBACKS)
@pytest.mark.parametrize("name", ABLE)
def test_feedback_rules_keep_both_laws(name, feedback):
    def body(comm):
        reducer = SparseAllreduce(((50, 60), (1000,)), k=K, comm=comm, algorithm=name, feedback=feedback)
        for step in range(4):
            reducer.step(gradient(comm.rank, step, N), check=True, dense=step == 2)
        if reducer.feedback.traits.defers:
            reducer.flush(check=True)

    World(4, 2).run(body)


@pytest.mark.parametrize("nodes", NODES, ids=str)
def test_second_moments_of_all_ranks_arrive_with_the_entries(nodes):
    """As many bits as without levels: within a factor of 2 for each time that they are rounded."""
    scale = np.exp(2 * np.random.default_rng(1).standard_normal(N)).astype(np.float32)

    def body(comm):
        reducer, found = SparseAllreduce(N, k=K, comm=comm, algorithm="elect", second_moment=0.9), []
        for step in range(4):
            total = reducer.step(scale * gradient(comm.rank, step, N), check=True)
            found.append((total.indices, reducer.second_moment.sums, comm.allreduce(reducer.second_moment.mean)))
        return found

    results = World(*nodes).run(body)
    for step, (indices, sums, exact) in enumerate(results[0]):
        assert all(other[step][1].values.tobytes() == sums.values.tobytes() for other in results)
        np.testing.assert_array_equal(indices, sums.indices)
        assert len(indices) > K / 2
        # The least that arrives is 2^-30 of the largest neighbour
        found, there, floor = sums.values, exact[indices], sums.values.max() * nodes[0] * 2.0**-30
        assert (found <= 4.01 * there.clip(floor)).all() and (there <= 4.01 * found).all()


@pytest.mark.parametrize("name", [*ABLE, "adtopk", "dense", "powersgd"])
@pytest.mark.parametrize(("before", "after"), [((4, 2), (4, 4)), ((4, 4), (4, 2)), ((4, 2), (6, 3)), ((6, 3), (4, 1))])
def test_nothing_is_lost_where_ranks_are_placed_otherwise(name, before, after):
    """Levels are no part of what a state must share: residuals go on, and the algorithm begins anew."""
    states = {}

    def first(comm):
        reducer = SparseAllreduce(MATRIX, k=K, comm=comm, algorithm=name)
        for step in range(3):
            reducer.step(gradient(comm.rank, step, N))
        states[comm.rank] = reducer.state_dict()
        return reducer.residual.astype(np.float64)

    def second(comm):
        reducer, ranks = SparseAllreduce(MATRIX, k=K, comm=comm, algorithm=name), before[0]
        reducer.take_over([states[rank] for rank in range(comm.rank, ranks, comm.size)], ranks)
        owed = reducer.residual.astype(np.float64)
        for step in range(2):
            reducer.step(gradient(comm.rank, step, N), check=True)
        return owed

    np.testing.assert_allclose(sum(World(*before).run(first)), sum(World(*after).run(second)), atol=1e-4)


@pytest.mark.parametrize("name", ABLE)
@pytest.mark.parametrize("leave", [{1: (3, -1)}, {1: (2, 4), 3: (4, 2)}, {4: (3, 9), 5: (3, 9)}], ids=str)
def test_survivors_agree(name, leave):
    """Hosts then have unequal numbers of ranks."""
    reducer = {"reducer": ElasticAllreduce, "algorithm": name, "copy_every": 2}
    left = [found for found in World(6, 2, leave=leave).run(lambda comm: totals(comm, 7, **reducer)) if found]
    assert len(left) == 6 - len(leave) and all(found == left[0] for found in left)


@pytest.mark.parametrize("name", ABLE)
def test_a_copy_does_not_keep_what_a_rank_has_given_to_its_node(name):
    """Momentum is in all of a residual; an entry of the copy that its owner has given away would come twice."""

    def body(comm):
        made = {"feedback": GlobalMomentum(0.9), "copy_every": 200, "copy": "exact"}
        reducer = ElasticAllreduce(400, k=8, comm=comm, algorithm=name, **made)
        kept = []
        for step in range(20):
            reducer.step(gradient(comm.rank, step, 400))
            residual = np.asarray(reducer.residual)
            owner = comm.sendrecv(residual, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
            held = reducer.execution._copies._held
            kept.append(int(np.count_nonzero(deepcopy(held).values()[owner == 0])) if held else 0)
        assert reducer.engine.exchange.placed != reducer.engine.exchange.algorithm
        return kept

    assert not np.any(World(4, 2).run(body))


def test_parts_of_a_hybrid_have_levels_of_their_own():
    parts = (Fused(Elect(), (0, 2), 0.5), Fused(TopkA(), (1,), 0.3), Fused(OkTopk(levels=1), (3,), 0.2))
    layout = ((30, 20), (400,), (50, 10), (900,))

    def body(comm):
        reducer = SparseAllreduce(layout, k=K, comm=comm, algorithm=Hybrid(parts))
        for step in range(3):
            reducer.step(gradient(comm.rank, step, 2400), check=True)
        return [type(part.algorithm) for part in reducer.engine.exchange.placed.parts]

    assert World(4, 2).run(body)[0] == [TwoLevel, TopkA, OkTopk]


def test_arrays_on_a_device_that_pass_through_host_memory_are_not_summed_there(device):
    """They are reduced as in one level, to the bit; ranks with and without a device are an error on all."""
    import cupy

    def body(comm, put):
        reducer = SparseAllreduce(N, k=K, comm=comm)
        return [reducer.step(put(gradient(comm.rank, step, N))).values.tobytes() for step in range(2)]

    def mixed(comm):
        with pytest.raises(ValueError, match="all ranks must call with the same arguments"):
            body(comm, cupy.asarray if comm.rank else np.asarray)

    there, flat, here = World(4, 2).run(lambda c: body(c, cupy.asarray)), World(4), World(4, 2)
    assert there == flat.run(lambda c: body(c, cupy.asarray)) != here.run(lambda c: body(c, np.asarray))
    World(4, 2).run(mixed)


@pytest.mark.against_world
@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", ABLE)
def test_world_equals_mpi_in_bytes_and_traffic(ranks, name, monkeypatch):
    for module in ("comm.base", "algorithms.two_level"):
        monkeypatch.setattr(f"sparse_mpi.{module}.hosts_of", lambda comm: np.arange(comm.size) // 2)

    def body(comm):
        comm = comm.duplicate()  # that no other test has asked for its hosts
        assert isinstance(runs(comm, name), TwoLevel)
        return train(comm, name, CASES["heavy-tailed"], np.float32, 4)

    assert_same_as_in_world(ranks, body)
