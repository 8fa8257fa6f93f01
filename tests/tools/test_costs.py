"""The alpha-beta model."""

from __future__ import annotations

import pytest

from sparse_mpi.comm import Traffic
from sparse_mpi.network.model import Network


def test_seconds_are_latency_and_bandwidth():
    network = Network.of(gigabits=8, microseconds=2)
    assert network.seconds(Traffic(sent=10**9, received=5, messages=3, control=10)) == pytest.approx(1 + 6e-6 + 1e-8)
    assert network.seconds(Traffic(sent=1, received=10**9)) == pytest.approx(1)


@pytest.mark.parametrize(("gigabits", "microseconds"), [(0, 1), (-1, 1), (1, -1)])
def test_impossible_networks(gigabits, microseconds):
    with pytest.raises(ValueError, match="gigabits > 0"):
        Network.of(gigabits, microseconds)
