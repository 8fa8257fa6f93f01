"""Pinned memory between a device and MPI, on a pretended device whose copies wait for their stream."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from sparse_mpi.comm.staging import MIN_BYTES, Staging


@pytest.fixture
def staging(device):
    return Staging()


def on_device(values):
    return sys.modules["cupy"].asarray(np.asarray(values))


def test_memory_is_kept_and_grows(staging, device):
    x = on_device(np.zeros(100, np.float32))
    for _ in range(MIN_BYTES // 256):
        staging.upload(staging.download(x), x)
    assert [len(block) for block in device.pinned] == [MIN_BYTES, MIN_BYTES]
    large = on_device(np.zeros(MIN_BYTES, np.float32))
    assert len(staging.download(large)) == MIN_BYTES and len(device.pinned) == 3
    staging.download(x)
    assert len(device.pinned) == 3


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
