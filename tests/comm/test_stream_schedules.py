"""Streams of a pretended device that go on when a seed says so, and the ranks of a `World` with them.

Bytes are those of a device on which all is done at once. A seed draws which stream goes on and when, which rank, and
which messages are sent before they are received; see `fakes.schedule`.
"""

from __future__ import annotations

import struct
import sys
from functools import partial

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, FEEDBACKS, SparseAllreduce
from sparse_mpi.comm.background import ProgressThread
from sparse_mpi.comm.nccl import NcclComm
from sparse_mpi.comm.staging import Staging, _Pinned
from sparse_mpi.comm.streams import Branch, Side
from sparse_mpi.fault_tolerance import ElasticAllreduce

from ..fakes import fake_cuda, fake_nccl, fake_torch
from ..fakes.schedule import scheduled
from ..gradients import gradient
from ..schedules import Schedules
from .test_schedules import SHAPES, SIZE, counted, hooked, trained
from .test_schedules import assert_same_in_every_order as assert_ranks_have_the_same

HERE = 7  # the caller's stream


def on_device(values):
    return sys.modules["cupy"].asarray(values)


def fetched(*totals):
    arrays = [part for total in totals for part in (total[:2] if isinstance(total, tuple) else [total])]
    return [part.get().tobytes() for part in arrays if isinstance(part, sys.modules["cupy"].ndarray)]


def assert_same_in_every_order(body, ranks, schedules, **options):
    assert_ranks_have_the_same(body, ranks, schedules, scheduled, **options)


# What ranks do. Each of them drops what it does not need any more, and asks for memory as it goes.


def reduced(comm, device, steps=3, **options):
    with device.stream(HERE):
        reducer = SparseAllreduce(SHAPES, density=0.1, comm=comm, **options)
        totals = [reducer.step(on_device(gradient(comm.rank, step, SIZE))) for step in range(steps)]
        return fetched(*totals, reducer.residual), counted(comm)


def buffered(comm, device, **options):
    """Totals of a reducer in the background, whose gradients the caller writes into the same memory."""
    cupy, totals = sys.modules["cupy"], []
    with device.stream(HERE):
        reducer = SparseAllreduce(SHAPES, density=0.1, comm=comm.duplicate(), **options)
        buffer = cupy.zeros(SIZE, np.float32)
        for step in range(3):
            buffer += on_device(gradient(comm.rank, step, SIZE))
            totals.append(reducer.start(buffer).wait())
            buffer.fill(np.nan)
            buffer[...] = 0
        return fetched(*totals)


def branched(comm, device):
    """What a progress thread makes of arrays that its caller drops, and of results that are dropped when copied."""
    cupy, worker, kept = sys.modules["cupy"], ProgressThread(comm.duplicate()), []
    with device.stream(HERE):
        # Not waited for: the thread is done with each, its stream maybe not.
        for step in range(3):
            x = cupy.full(SIZE, 1 + step, np.float32)
            worker.start(partial(double, x, kept), x)
            worker.start(lambda: None).wait()
            x = cupy.full(SIZE, np.nan, np.float32)
        # Waited for, one after the other, while work is under way that was begun before.
        handles = [
            worker.start(partial(double, x, []), x) for x in [cupy.full(SIZE, step, np.float32) for step in (4, 5, 6)]
        ]
        results = [handles.pop(0).wait() for _ in range(3)]
        results.append(worker.start(lambda: cupy.concatenate(kept), x).wait())
        return fetched(*results)


def double(x, kept):
    kept.append(x * 2)
    return kept[-1]


def exchanged(comm, device):
    """What is gathered on two streams in turn, each of which comes to its results later."""
    with device.stream(HERE) as one, device.stream(HERE + 1) as other:
        results = []
        for step, stream in enumerate([one, other] * 3):
            with stream:
                results.append(comm.allgather(on_device(gradient(comm.rank, step, SIZE))))
        device.log.stream(HERE).synchronize()
        return fetched(*results)


def over_nccl(comm, device, nccl, **options):
    nccl.over(comm.duplicate())
    return reduced(NcclComm(comm), device, **options)


def lost(comm, device, algorithm):
    """Totals and departures of an elastic reducer, some ranks of which fail."""
    with device.stream(HERE):
        reducer = ElasticAllreduce(SIZE, density=0.1, comm=comm, algorithm=algorithm, copy_every=2)
        totals = [reducer.step(on_device(gradient(comm.rank, step, SIZE))) for step in range(6)]
        return fetched(*totals), [departure[:3] for departure in reducer.departures], reducer.ranks


# The laws


@pytest.mark.parametrize("body", [branched, exchanged])
def test_work_and_calls_on_streams(device, schedules, body):
    assert_same_in_every_order(partial(body, device=device), 2, schedules.few)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_reducers_have_the_same_bytes(device, schedules, algorithm):
    assert_same_in_every_order(partial(reduced, device=device, algorithm=algorithm), 3, schedules.few)


@pytest.mark.parametrize("feedback", sorted(FEEDBACKS))
def test_memories_have_the_same_bytes(device, schedules, feedback):
    assert_same_in_every_order(partial(reduced, device=device, algorithm="oktopk", feedback=feedback), 3, schedules.few)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_memory_that_the_caller_writes_again(device, schedules, algorithm):
    assert_same_in_every_order(partial(buffered, device=device, algorithm=algorithm), 2, schedules.few)


@pytest.mark.parametrize("algorithm", ["oktopk", "elect", "dense"])
@pytest.mark.parametrize("body", [trained, hooked])
def test_optimizers_and_ddps_hook_have_the_same_bytes(device, schedules, body, algorithm, monkeypatch):
    fake_torch.install_torch(monkeypatch)
    assert_same_in_every_order(partial(body, device="cuda", algorithm=algorithm), 2, schedules.few)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_exchanges_over_nccl_have_the_same_bytes(device, schedules, algorithm, monkeypatch):
    nccl = fake_nccl.install(monkeypatch)
    assert_same_in_every_order(partial(over_nccl, device=device, nccl=nccl, algorithm=algorithm), 3, schedules.few)


@pytest.mark.parametrize("algorithm", ["oktopk", "elect", "gtopk"])
def test_survivors_have_the_same_bytes(device, schedules, algorithm):
    assert_same_in_every_order(partial(lost, device=device, algorithm=algorithm), 4, schedules.few, leave={1: (3, 2)})


@pytest.mark.thin(0, algorithm=("oktopk", "elect", "adtopk", "gtopk"))
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_kernels(device, algorithm, monkeypatch, schedules):
    fake_cuda.install_kernels(monkeypatch)
    assert_same_in_every_order(partial(reduced, device=device, algorithm=algorithm), 3, schedules.few)


# Defects in the order of work that are planted


def without_waiting(self, x):
    """`Staging.download`, as it is not to be."""
    self._leaving.clear()
    host = self._leaving.empty(x.shape, x.dtype, sys.modules["cupy"])
    x.get(out=host, blocking=False)
    self._arriving.clear()
    return host


def not_behind_the_caller(self, event):
    """`Side.come_after`, which leaves that out."""
    while self._lent:
        self.stream.wait_event(self._lent.popleft()[0])


PLANTED = {  # what is replaced, by what, and what ranks do
    "work that begins before its gradient is there": (Side, "come_after", not_behind_the_caller, buffered),
    "a caller that goes on before the work is done": (Branch, "follow", lambda self: None, branched),
    "a gradient that is dropped while it is read": (Side, "borrow", lambda self, x, ended: None, branched),
    "a result that is dropped while it is copied": (Side, "lend", lambda self, result, copied: None, branched),
    "pinned memory that is sent before it is written": (Staging, "download", without_waiting, reduced),
    "pinned memory that is used again while it is read": (_Pinned, "read_until", lambda self, event: None, exchanged),
    "numbers that are looked at before a kernel has told them": ("Told", "written", lambda self: self, reduced),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(device, monkeypatch, name):
    whose, method, defect, body = PLANTED[name]
    if whose == "Told":
        whose = fake_cuda.install_kernels(monkeypatch).told.Told
    monkeypatch.setattr(whose, method, defect)
    with pytest.raises((AssertionError, ValueError, IndexError, struct.error)):  # other bytes, or counts that are none
        assert_same_in_every_order(partial(body, device=device), 4, Schedules(range(40)))
