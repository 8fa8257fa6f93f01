"""Ranks of one process on two pretended devices: rank r on device r % 2, whose memory is used while it is current."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SparseAllreduce, World
from sparse_mpi.arrays import on_stream_of
from sparse_mpi.comm.nccl import NcclComm

from ..fakes import fake_cuda, fake_nccl, fake_torch
from ..fakes.fake_array import to_torch
from ..gradients import gradient
from .test_background import Threaded
from .test_schedules import SHAPES, SIZE, hooked, trained
from .test_stream_schedules import fetched, on_device
from .test_stream_schedules import reduced as with_traffic


def on_its_own(body, ranks=3):
    """What each rank returns, on its device, to which it has to come from another one."""

    def chosen(comm):
        sys.modules["cupy"].cuda.Device(comm.rank % 2).use()
        return body(comm)

    return World(ranks).run(chosen)


def reduced(comm, **options):
    """Totals and residual, of arrays on the rank's device; the other one is current when steps are made."""
    cupy = sys.modules["cupy"]
    reducer = SparseAllreduce(SHAPES, density=0.1, comm=comm, **options)
    gradients = [on_device(gradient(comm.rank, step, SIZE)) for step in range(3)]
    with cupy.cuda.Device(1 - comm.rank % 2):
        totals = [reducer.step(x) for x in gradients]
    assert {total.values.device.id if hasattr(total, "values") else total.device.id for total in totals} == {
        comm.rank % 2
    }
    return fetched(*totals, reducer.residual)


def test_memory_of_another_device_is_noticed(device):
    cupy = sys.modules["cupy"]
    x = on_device(np.zeros(3))
    with cupy.cuda.Device(1), pytest.raises(AssertionError, match="of device 0 is used while 1 is current"):
        x + 1
    with cupy.cuda.Device(1), on_stream_of(x):
        x + 1


@pytest.mark.thin(0, algorithm=("oktopk", "elect", "adtopk"))
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_kernels_have_the_same_bytes(device, algorithm, monkeypatch):
    if fake_cuda.COMPILER is None:
        pytest.skip("emulating CUDA needs g++")
    fake_cuda.install_kernels(monkeypatch)
    one = World(3).run(lambda comm: with_traffic(comm, device, algorithm=algorithm)[0])
    assert on_its_own(lambda comm: reduced(comm, algorithm=algorithm)) == one


@pytest.mark.parametrize("algorithm", ["oktopk", "elect", "dense"])
def test_exchanges_over_nccl(device, algorithm, monkeypatch):
    nccl = fake_nccl.install(monkeypatch)

    def body(comm):
        nccl.over(comm.duplicate())
        return reduced(NcclComm(comm), algorithm=algorithm)

    assert on_its_own(body) == World(3).run(lambda comm: with_traffic(comm, device, algorithm=algorithm)[0])


@pytest.mark.parametrize("algorithm", ["oktopk", "elect", "dense"])
@pytest.mark.parametrize("body", [trained, hooked])
def test_optimizers_and_ddps_hook(device, algorithm, body, monkeypatch):
    fake_torch.install_torch(monkeypatch, gpus=2)
    results = [run(lambda comm: body(comm, device="cuda", algorithm=algorithm)) for run in (World(2).run, two)]
    assert results[0] == results[1]


def two(body):
    return on_its_own(body, 2)


@pytest.mark.parametrize("number", [0, 1])
def test_work_beside_the_callers_stream_is_on_its_device(device, number):
    """The thread that does it has the first device."""
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(number):
        reducer, totals = SparseAllreduce(SHAPES, density=0.1, comm=Threaded(2)), []
        for step in range(3):
            x = on_device(gradient(0, step, SIZE))
            cupy.cuda.get_current_stream().synchronize()
            totals.append(reducer.start(to_torch(x)).wait())
        assert {total.values.device.index for total in totals} == {number}
    assert not device.races
