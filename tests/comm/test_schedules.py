"""Schedules of `World`: whoever goes on first, and whenever messages come, the bytes are those of the fixed order.

A seed that finds another result is in the assertion. What it drew is drawn again by ``World(ranks, schedule=seed)``.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from sparse_mpi import ALGORITHMS, SparseAllreduce, SparseReduceScatter, World, collectives
from sparse_mpi.algorithms import topkdsa
from sparse_mpi.algorithms.exchange import concatenate, unpack
from sparse_mpi.algorithms.scatter import REDUCE_SCATTERS
from sparse_mpi.collectives.algorithms import ALGORITHMS as WAYS
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.comm.world import DeadlockError, MismatchError, _WorldComm
from sparse_mpi.optim import DistributedOptimizer

from ..fault_tolerance import survivors
from ..gradients import gradient

SHAPES = [(12, 10), (10,), (7, 5, 3), (7,)]
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
SEEDS = {"fast": 6, "wide": 60, "all": 1000}  # schedules of a law; of runs that take long a fourth
ONE = np.ones(1)


@pytest.fixture
def seeds(request):
    return range(SEEDS[request.config.getoption("--tier")])


def assert_same_in_every_order(body, ranks, seeds, **options):
    """Assert that ``body`` returns on all ranks what it returns in the fixed order, under each of these schedules."""
    expected = World(ranks, **options).run(body)
    for seed in seeds:
        replay = f"replay: World({ranks}, schedule={seed}, **{options})"
        try:
            found = World(ranks, **options, schedule=seed).run(body)
        except Exception as error:
            raise AssertionError(f"schedule {seed} ends in {error!r}; {replay}") from error
        others = [rank for rank in range(ranks) if found[rank] != expected[rank]]
        assert not others, f"schedule {seed} has another result on ranks {others}; {replay}"


def bytes_of(total):
    return total.tobytes() if isinstance(total, np.ndarray) else total.indices.tobytes() + total.values.tobytes()


def counted(comm):
    """What a rank has sent and received."""
    traffic = comm.traffic
    return traffic.sent, traffic.received, traffic.messages, traffic.control


def reduced(comm, make=SparseAllreduce, steps=3, **options):
    """Totals, residual and traffic of a reducer's steps."""
    reducer = make(SHAPES, density=0.1, comm=comm, **options)
    totals = [bytes_of(reducer.step(gradient(comm.rank, step, SIZE))) for step in range(steps)]
    return totals, reducer.residual.tobytes(), counted(comm)


def lost(comm, algorithm, traffic=False):
    """Totals, residual and departures of an elastic reducer, which may lose ranks."""
    found = survivors.facts(survivors.trained(comm, algorithm, copy_every=2))
    return found, counted(comm) if traffic else None


def trained(comm, **options):
    """The parameters of a small model after some steps of an optimizer, and its traffic."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
    plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = DistributedOptimizer(
        plain, model.named_parameters(), comm=comm, density=0.2, bucket_cap_mb=2e-4, **options
    )
    for step in range(3):
        optimizer.zero_grad()
        model(torch.from_numpy(gradient(comm.rank, step, 32).reshape(4, 8))).pow(2).sum().backward()
        optimizer.step()
    return [p.detach().numpy().tobytes() for p in model.parameters()], counted(comm)


def summed(comm, way):
    """The sum of sparse data with some keys in common."""
    rng = np.random.default_rng(comm.rank)
    keys = rng.choice(300, 40 + 7 * comm.rank, replace=False)
    found = collectives.allreduce((keys, rng.standard_normal(len(keys))), comm=comm, algorithm=way)
    return [part.tobytes() for part in found], counted(comm)


def overlapped(comm, caller=lambda comm, own: comm):
    """Totals, residuals and traffic of reducers that work in the background while their caller makes calls."""
    comms = [comm.duplicate() for _ in range(2)]
    reducers = [
        SparseAllreduce(SHAPES, density=0.1, comm=own, algorithm=algorithm)
        for own, algorithm in zip(comms, ("oktopk", "gtopk"), strict=True)
    ]
    totals = []
    for step in range(3):
        handles = [reducer.start(gradient(comm.rank, step, SIZE)) for reducer in reducers]
        totals.append(caller(comm, comms[0]).allreduce(ONE)[0])
        totals += [bytes_of(handle.wait()) for handle in handles]
    return totals, [reducer.residual.tobytes() for reducer in reducers], [*map(counted, (comm, *comms))]


# The laws


@pytest.mark.parametrize("ranks", [3, 5])
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_reducers_have_the_same_bytes(seeds, ranks, algorithm):
    assert_same_in_every_order(partial(reduced, algorithm=algorithm), ranks, seeds)


@pytest.mark.parametrize("algorithm", sorted(REDUCE_SCATTERS))
def test_parts_of_sums_have_the_same_bytes(seeds, algorithm):
    assert_same_in_every_order(partial(reduced, make=SparseReduceScatter, algorithm=algorithm), 5, seeds)


@pytest.mark.parametrize("way", sorted(WAYS))
def test_sparse_collectives_have_the_same_bytes(seeds, way):
    assert_same_in_every_order(partial(summed, way=way), 5, seeds)


@pytest.mark.parametrize("algorithm", ["oktopk", "elect"])
def test_optimizers_have_the_same_bytes(seeds, algorithm):
    assert_same_in_every_order(partial(trained, algorithm=algorithm), 3, seeds[::4])


def test_work_in_the_background_has_the_same_bytes(seeds):
    assert_same_in_every_order(overlapped, 3, seeds)


def test_work_in_the_background_takes_turns():
    def body(comm):
        handles = [progress_thread_of(own).start(own.barrier) for own in (comm.duplicate(), comm.duplicate())]
        done = [handle.done() for handle in handles]
        return done, [handle.wait() for handle in handles]

    assert World(3).run(body) == [([True, True], [None, None])] * 3
    assert World(3, schedule=1).run(body) == [([False, False], [None, None])] * 3


@pytest.mark.parametrize("when", [3, (3, 0), (3, 2)], ids=str)
@pytest.mark.parametrize("algorithm", ["oktopk", "elect", "gtopk"])
def test_a_loss_leaves_the_same_bytes(seeds, algorithm, when):
    """But what ranks have sent in a step before they learn that one was lost within it depends on the order."""
    body = partial(lost, algorithm=algorithm, traffic=when == 3)
    assert_same_in_every_order(body, survivors.RANKS, seeds[::4], leave={2: when})


# What a schedule is


def order_of(**options):
    """The ranks in the order in which they passed three calls."""
    seen = []

    def body(comm):
        for _ in range(3):
            seen.append(comm.rank)
            comm.barrier()

    World(4, **options).run(body)
    return seen


def test_a_seed_draws_the_same_order_again_and_others_draw_others():
    orders = [order_of(schedule=seed) for seed in range(20)]
    assert orders == [order_of(schedule=seed) for seed in range(20)]
    assert len({*map(tuple, orders)}) == 20
    assert order_of() == order_of(schedule=None) == [0, 1, 2, 3, 3, 0, 1, 2, 2, 0, 1, 3]


@pytest.mark.parametrize("seed", range(5))
def test_deadlocks_and_mismatches_are_named(seed):
    def absent(comm):
        if comm.rank != 1:
            comm.allreduce(ONE)

    def other(comm):
        return comm.barrier() if comm.rank == 1 else comm.allreduce(ONE)

    def behind(comm):
        return progress_thread_of(comm).start(comm.barrier).wait() if comm.rank != 1 else None

    with pytest.raises(DeadlockError, match=r"ranks 0, 2 waiting for rank 1 in allreduce.*rank 1 returned"):
        World(3, schedule=seed).run(absent)
    with pytest.raises(DeadlockError, match=r"rank 0 waiting for a message from rank 2"):
        World(3, schedule=seed).run(lambda comm: comm.sendrecv(ONE, None, 2) if comm.rank == 0 else None)
    with pytest.raises(MismatchError, match="called barrier"):
        World(3, schedule=seed).run(other)
    with pytest.raises(
        DeadlockError, match=r"ranks 0, 2 waiting for work in the.*ranks 0, 2 waiting for rank 1 in bar"
    ):
        World(3, schedule=seed).run(behind)


@pytest.mark.parametrize(("seed", "error"), [(-1, ValueError), (0.5, TypeError), (True, TypeError)])
def test_a_schedule_is_a_seed(seed, error):
    with pytest.raises(error, match=r"schedule must be .*None is the fixed order"):
        World(2, schedule=seed)


# Planted defects: the fixed order shows none of them, or only as a deadlock


def assert_only_schedules_find(monkeypatch, defect, body, ranks, **options):
    """Assert that a run with the defect is as without in the fixed order, and that some seed finds it, and replays."""
    sound = World(ranks, **options).run(body)
    assert_same_in_every_order(body, ranks, range(3), **options)
    with monkeypatch.context() as patch:
        defect(patch)
        assert World(ranks, **options).run(body) == sound
        replay = rf"(?s)^schedule (\d+) .*; replay: World\({ranks}, schedule=\1, "
        with pytest.raises(AssertionError, match=replay) as found:
            assert_same_in_every_order(body, ranks, range(100), **options)
        # What was printed is replayed, to the same words.
        seed = int(str(found.value).split()[1])
        with pytest.raises(AssertionError) as again:
            assert_same_in_every_order(body, ranks, [seed], **options)
        assert str(again.value) == str(found.value)


def test_a_buffer_that_is_used_again_before_it_was_sent(monkeypatch):
    start = _WorldComm.start_sendrecv

    def used_again(comm, send, dest, source):
        end = start(comm, send, dest, source)
        send[...] = 0
        return end

    assert_only_schedules_find(
        monkeypatch,
        lambda patch: patch.setattr(_WorldComm, "start_sendrecv", used_again),
        partial(lost, algorithm="oktopk"),
        survivors.RANKS,
        leave={2: 5},
    )


def test_a_receive_from_whichever_rank_sent_first(monkeypatch):
    exchange = _WorldComm._sendrecv

    def from_any(comm, send, dest, source):
        there = [key[0] for key, queue in comm.group.messages.items() if key[1] == comm.rank and queue]
        return exchange(comm, send, dest, source if source is None else [*there, source][0])

    assert_only_schedules_find(
        monkeypatch,
        lambda patch: patch.setattr(_WorldComm, "_sendrecv", from_any),
        partial(reduced, algorithm="gtopk"),
        5,
    )


def test_entries_that_are_summed_as_they_come(monkeypatch):
    """A float32 sum has the bits of its order."""

    def as_they_come(packed, region, wire, comm):
        parts = []

        def take(first, messages, lengths):
            parts.append(unpack(messages, lengths, region, wire, packed.vector))

        comm.streamed_alltoallv(packed.buffer, packed.lengths, take)
        return concatenate(parts)

    body = partial(reduced, algorithm="topkdsa")
    assert_only_schedules_find(monkeypatch, lambda patch: patch.setattr(topkdsa, "exchange", as_they_come), body, 5)


def test_an_order_of_two_reducers_that_no_message_tells(monkeypatch):
    """Rank 0 writes it down where others look: who looks too early starts them in another order."""

    def by_message(comm):
        return comm.bcast(np.array([-1 if comm.rank == 0 else 1]))[0]

    def written_down(comm):
        run = vars(comm.group.run)
        if comm.rank == 0:
            run["turn"] = -1
        return run.get("turn", 1)

    ways = {"turn": by_message}

    def body(comm):
        turn = ways["turn"](comm)
        reducers = [SparseAllreduce(SIZE, k=k, comm=comm, algorithm="topka") for k in (5, 9)]
        return [bytes_of(reducer.step(gradient(comm.rank, 0, SIZE))) for reducer in reducers[::turn]]

    assert_only_schedules_find(monkeypatch, lambda patch: patch.setitem(ways, "turn", written_down), body, 3)


def test_a_call_beside_work_on_the_same_communicator(monkeypatch):
    """What is done at once in the fixed order is under way under a schedule."""
    whose = {"comm": lambda comm, own: comm}
    body = partial(overlapped, caller=lambda comm, own: whose["comm"](comm, own))
    sound = [result[:2] for result in World(3).run(body)]
    monkeypatch.setitem(whose, "comm", lambda comm, own: own)
    assert [result[:2] for result in World(3).run(body)] == sound
    with pytest.raises(AssertionError, match=r"^schedule \d+ ends in MismatchError\(.*replay: "):
        assert_same_in_every_order(body, 3, range(100))


def test_a_rank_that_returns_early_and_leaves_a_message_to_the_next_step(monkeypatch):
    """The fixed order names a deadlock. Where the sender does not wait, the message is taken in the next step."""
    sendrecv = _WorldComm._sendrecv

    def early(comm, send, dest, source):
        if comm.rank == 0 and comm.attributes.setdefault("early", source is not None):
            comm.attributes["early"] = False
            return send[:0]
        return sendrecv(comm, send, dest, source)

    body = partial(reduced, algorithm="gtopk", steps=2)
    sound = World(3).run(body)
    monkeypatch.setattr(_WorldComm, "_sendrecv", early)
    with pytest.raises(DeadlockError, match="rank 1 waiting for rank 0 to take its message"):
        World(3).run(body)
    ends = set()
    for seed in range(20):
        try:
            assert World(3, schedule=seed).run(body) != sound
            ends.add("another result")
        except (DeadlockError, MismatchError) as error:
            ends.add(type(error).__name__)
    assert ends == {"another result", "DeadlockError"}
