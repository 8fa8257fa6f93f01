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


@pytest.mark.parametrize("shape", [(), (5,), (0, 2), (3, 2)])
def test_down_and_up_again(staging, device, shape):
    x = on_device(np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape))
    host = staging.download(x)
    assert isinstance(host, np.ndarray) and staging.holds(host) and host.tobytes() == x.tobytes()
    out = staging.upload(host, x)
    assert out.shape == shape and out.tobytes() == x.tobytes() and out.data.ptr != x.data.ptr


def test_what_is_not_contiguous(staging):
    x = on_device(np.arange(12).reshape(3, 4))[:, ::2]
    assert (staging.download(x) == [[0, 2], [4, 6], [8, 10]]).all()


def test_a_copy_is_over_before_its_memory_is_used_again(staging, device):
    """Down when the call returns, up before the next one: the fake copies when it is waited for, on the stream that is
    current."""
    x = on_device(np.ones(4))
    device.copies.clear()
    device.synchronised.clear()
    with device.stream(5):
        host = staging.download(x)
        arrived = staging.empty((4,), host.dtype)
        arrived[:] = 2
        out = staging.upload(arrived, x)
        staging.empty((4,), host.dtype)[:] = 9
        assert (host == 1).all() and device.synchronised == [5]
    with device.stream(6):
        staging.download(x)
    arrived[:] = 9
    assert out.tolist() == [2] * 4
    assert [(c.to, c.bytes, c.stream, c.pinned) for c in device.copies[:2]] == [
        ("host", 32, 5, True),
        ("device", 32, 5, True),
    ]
    assert device.synchronised[:3] == [5, 6, 5]


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


def test_memory_that_is_set_aside_stays_as_it_is(staging, device):
    x, y = on_device(np.ones(4)), on_device(np.zeros(4))
    for _ in range(3):
        host = staging.download(x)
        arriving = staging.empty((4,), host.dtype)
        arriving[:] = 5
        take_back = staging.set_aside()
        staging.upload(staging.download(y), y)
        assert (host == 1).all() and (arriving == 5).all() and not staging.holds(host)
        take_back()
        assert staging.holds(host) and staging.upload(arriving, x).tolist() == [5] * 4
    assert len(device.pinned) == 4


def test_other_host_memory_is_told_apart(staging):
    host = staging.download(on_device(np.zeros(4)))
    assert staging.holds(host[2:]) and not staging.holds(np.zeros(4)) and not staging.holds(np.zeros(0))
    assert not Staging().holds(host) and not staging.holds(staging.empty((4,), host.dtype))
