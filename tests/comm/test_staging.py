"""Pinned memory between a device and MPI, on a pretended device whose copies wait for their stream."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from sparse_mpi.comm.staging import CALLS, MIN_BYTES, Staging


@pytest.fixture
def staging(device):
    return Staging()


def on_device(values):
    return sys.modules["cupy"].asarray(np.asarray(values))


def held(staging):
    """The bytes of what is pinned still: no pool keeps what is let go."""
    return sorted(len(piece._memory) for piece in (staging._leaving, staging._arriving))


def test_memory_is_kept_and_grows(staging, device):
    x = on_device(np.zeros(100, np.float32))
    for _ in range(MIN_BYTES // 256):
        staging.upload(staging.download(x), x)
    assert [len(block) for block in device.pinned] == [MIN_BYTES, MIN_BYTES]
    large = on_device(np.zeros(MIN_BYTES, np.float32))
    assert len(staging.download(large)) == MIN_BYTES
    kept = held(staging)
    assert len(device.pinned) == 3 and kept == [MIN_BYTES, 5 * MIN_BYTES], "the memory that was too little is let go"
    staging.download(x)
    assert held(staging) == kept


def test_memory_that_is_not_needed_any_more_is_let_go(staging, device):
    """Not before as many calls as there are between steps that need it, and once for all."""
    large, small, few = (on_device(np.zeros(size, np.float32)) for size in (50 * MIN_BYTES, 100, MIN_BYTES))

    def pinned_after(calls, x):
        for _ in range(calls):
            staging.upload(staging.download(x), x)
        return sum(held(staging))

    most = pinned_after(1, large)
    assert most > 200 * MIN_BYTES and pinned_after(CALLS - 2, small) == most
    assert pinned_after(1, large) == most, "needed once in that many calls"
    assert pinned_after(3 * CALLS, small) <= 4 * MIN_BYTES
    one = pinned_after(1, few)
    assert pinned_after(3 * CALLS, few) == one < 20 * MIN_BYTES, "what is needed stays"


def test_what_arrives_in_parts_stays_whole_while_memory_grows(staging, device):
    x = on_device(np.zeros(1, np.int64))
    staging.download(x)
    parts = [staging.empty((MIN_BYTES // 8,), np.dtype(np.int64)) for _ in range(5)]
    for number, part in enumerate(parts):
        part[:] = number
    assert [set(part.tolist()) for part in parts] == [{number} for number in range(5)]
    assert staging.upload(np.concatenate(parts), x).tolist() == np.repeat(range(5), MIN_BYTES // 8).tolist()


def test_other_host_memory_is_told_apart(staging):
    host = staging.download(on_device(np.zeros(4)))
    assert staging.holds(host[2:]) and not staging.holds(np.zeros(4)) and not staging.holds(np.zeros(0))
    assert not Staging().holds(host) and not staging.holds(staging.empty((4,), host.dtype))
