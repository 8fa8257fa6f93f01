"""The alpha-beta model: what messages take, what is measured between ranks, and lines through measurements."""

from __future__ import annotations

import pytest

from sparse_mpi.collectives import network as network_fit
from sparse_mpi.collectives.network import Network
from sparse_mpi.comm import NullComm, Traffic

TRUTH = Network(3e-5, 2e-9)
SIZES = (1, 1000, 100_000, 4_000_000)
SECONDS = [TRUTH.alpha + TRUTH.beta * size for size in SIZES]


def test_all_ranks_know_how_long_a_message_takes(ranks):
    def run(comm):
        try:
            return network_fit.measure(comm, (1, 64), repeats=3)
        except ValueError as error:
            return str(error)

    seen = ranks.run(run)
    for found in seen:
        if ranks.size == 1:
            assert found == "ranks must be at least 2 to measure a network, got 1; run under mpiexec"
        else:
            assert found == seen[0] and len(found) == 2 and min(found) > 0


def test_a_straight_line_is_found_again():
    found = network_fit.nearest([1] * 4, SIZES, SECONDS)
    assert (found.alpha, found.beta) == pytest.approx((TRUTH.alpha, TRUTH.beta))


def test_nothing_is_below_zero_where_short_messages_took_longer_than_long_ones():
    found = network_fit.nearest([1] * 3, (1, 1000, 100_000), (3e-3, 2e-3, 1e-3))
    assert found.beta == 0 and 1e-3 < found.alpha < 3e-3


@pytest.mark.parametrize(("disturbed", "seconds"), [(0, 1), (2, 1), (3, 50)])
def test_less_than_half_of_the_messages_may_be_disturbed(monkeypatch, disturbed, seconds):
    """The first takes 100 s and does not count; of the five others so many take 50 s, the rest 1 s."""
    ticks = iter([tick for taken in [100] + [50] * disturbed + [1] * (5 - disturbed) for tick in (0, taken)])
    monkeypatch.setattr(network_fit, "perf_counter", lambda: next(ticks))
    assert network_fit.measure(NullComm(2), (8,), repeats=5) == [seconds]


def test_a_few_that_something_else_held_up_do_not_move_the_fit():
    """Least squares in relative error would follow them."""
    messages, lengths = [10, 20, 30, 40, 50, 60, 70], [1e6, 5e5, 3e6, 1e5, 2e6, 8e6, 4e6]
    seconds = [1e-4 * m + 1e-8 * n for m, n in zip(messages, lengths, strict=True)]
    seconds[2], seconds[5] = 9 * seconds[2], 5 * seconds[5]
    network = network_fit.nearest(messages, lengths, seconds)
    assert (network.alpha, network.beta) == pytest.approx((1e-4, 1e-8), rel=1e-6)


def test_seconds_are_latency_and_bandwidth():
    network = Network.of(gigabits=8, microseconds=2)
    assert network.seconds(Traffic(sent=10**9, received=5, messages=3, control=10)) == pytest.approx(1 + 6e-6 + 1e-8)
    assert network.seconds(Traffic(sent=1, received=10**9)) == pytest.approx(1)


@pytest.mark.parametrize(("gigabits", "microseconds"), [(0, 1), (-1, 1), (1, -1)])
def test_impossible_networks(gigabits, microseconds):
    with pytest.raises(ValueError, match="gigabits > 0"):
        Network.of(gigabits, microseconds)
