"""Where tensors of torch are reduced, long arrays of CuPy are in torch's memory, on a device that meters both."""

from __future__ import annotations

import gc
import sys
from time import sleep

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.arrays import on_stream_of
from sparse_mpi.comm import NullComm

from ..fakes.fake_array import to_torch
from ..fakes.fake_device import TORCH_MEMORY, TORCH_STREAM
from .test_background import Threaded

SHARED_BYTES = 1 << 15  # here: the law is the same of longer arrays
N = SHARED_BYTES  # entries, of four bytes each
KEPT = {"oktopk": 1, "elect": 2.5, "topka": 1, "dense": 1}  # vectors between steps


@pytest.fixture(autouse=True)
def lower(monkeypatch):
    monkeypatch.setattr("sparse_mpi.arrays.SHARED_BYTES", SHARED_BYTES)


@pytest.fixture(autouse=True)
def young():
    """Have `live` look through what the test makes alone, not through all that was imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def tensor(step: int = 0):
    made = sys.modules["cupy"].asarray(np.random.default_rng(step).standard_normal(N).astype(np.float32))
    sys.modules["cupy"].cuda.get_current_stream().synchronize()
    return to_torch(made)


def live() -> int:
    """The bytes that torch has given to CuPy, and not got back."""
    sys.modules["cupy"].cuda.Device().synchronize()  # the record holds what is being written
    gc.collect()
    return sum(TORCH_MEMORY.live.values())


def comes_to(bytes_: float) -> bool:
    """Return whether so much is left once the thread beside, if there is one, has let go of its last work."""
    for _ in range(10_000):
        if live() == bytes_:
            return True
        sleep(0.01)
    return False


@pytest.mark.parametrize("algorithm", KEPT)
@pytest.mark.parametrize("comm", [NullComm, Threaded])
def test_what_dense_steps_take_goes_back_to_torch(device, algorithm, comm):
    """In the foreground, and on the stream of a thread beside."""
    reducer, before = SparseAllreduce(N, density=0.01, comm=comm(2), algorithm=algorithm), live()
    gradients = [tensor(step) for step in range(4)]
    device.log.longest = 0
    for step, gradient in enumerate(gradients):
        reducer.start(gradient, dense=step < 2).wait() if comm is Threaded else reducer.step(gradient, dense=step < 2)
    assert device.log.longest < SHARED_BYTES, "long arrays come from CuPy's pool, which keeps them"
    lent = comm is Threaded and algorithm == "dense"  # the last result, of which the caller has a copy
    kept = (KEPT[algorithm] + lent) * 4 * N
    assert comes_to(before + kept) and kept < TORCH_MEMORY.most - before
    del reducer, gradient
    gradients.clear()
    assert comes_to(before), "torch does not get back what a reducer had"
    assert not device.races


def test_short_arrays_and_those_of_cupys_callers_stay_with_cupy(device):
    cupy, before, x = sys.modules["cupy"], live(), tensor()
    with on_stream_of(x):
        short, long = (cupy.empty(size, np.uint8) for size in (SHARED_BYTES - 1, SHARED_BYTES))
    assert live() == before + SHARED_BYTES
    reducer = SparseAllreduce(N, density=0.01, comm=NullComm(2))
    reducer.step(cupy.zeros(N, np.float32))
    assert live() == before + SHARED_BYTES
    del short, long  # out of the context in which they were made
    assert live() == before


def test_memory_is_of_the_stream_that_is_current(device):
    """Which the pretended torch asserts: memory that is given back is used again there first."""
    cupy, x = sys.modules["cupy"], tensor()
    with on_stream_of(x):
        assert cupy.cuda.get_current_stream().ptr == TORCH_STREAM
        with device.stream(9):
            cupy.empty(SHARED_BYTES, np.uint8)
