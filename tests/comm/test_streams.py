"""Work of a progress thread on a pretended device: a stream of its own, ordered with the caller's.

The device keeps a log of streams that wait, and of memory that two touch without. For real: `test_gpu_background`.
"""

from __future__ import annotations

import sys
from time import sleep
from weakref import ref

import numpy as np
import pytest
import torch

from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import NullComm
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.comm.streams import seconds_between
from sparse_mpi.monitor.tracer import Tracer
from sparse_mpi.optim import DistributedOptimizer

from ..fakes.fake_array import to_torch
from ..fakes.fake_device import TORCH_STREAM
from ..fakes.fake_torch import CudaTensor
from ..kernels.on_cuda import bytes_of, parts_of
from .test_background import Threaded

N, K, HERE = 4000, 40, 7  # the caller's stream


@pytest.fixture(autouse=True)
def no_races(device):
    yield
    assert not device.races


@pytest.fixture
def here(device):
    """The caller works on a stream that is not the null one."""
    with device.stream(HERE) as stream:
        yield stream


def gradients(steps: int = 3) -> list:
    made = np.random.default_rng(3).standard_normal((steps, N)).astype(np.float32)
    ready = [sys.modules["cupy"].asarray(gradient) for gradient in made]
    sys.modules["cupy"].cuda.get_current_stream().synchronize()
    return ready


def finished(handle):
    """The handle, whose work is done; it has not been waited for."""
    for _ in range(100_000):
        if handle.done():
            return handle
        sleep(0.001)
    raise AssertionError("never done")


def test_tensors_are_worked_on_beside_torchs_stream(device):
    plain, background = (SparseAllreduce(N, k=K, comm=comm) for comm in (NullComm(2), Threaded(2)))
    expected = [plain.step(gradient) for gradient in gradients()]
    device.worked.clear()
    device.waits.clear()
    totals = [background.start(to_torch(gradient).reshape(40, 100)).wait() for gradient in gradients()]
    assert all(isinstance(part, CudaTensor) for total in totals for part in parts_of(total))
    assert bytes_of(*totals) == bytes_of(*expected)
    (side,) = device.worked - {0}  # where the gradients were made
    assert device.waits[:2] == [(side, TORCH_STREAM), (TORCH_STREAM, side)]
    assert {copy.stream for copy in device.copies if copy.to == "host"} - {0} == {side}


def test_each_progress_thread_has_a_stream_of_its_own(device, here):
    one, other = Threaded(2), Threaded(2)
    for comm in (one, other, one):
        SparseAllreduce(N, k=K, comm=comm).start(gradients(1)[0]).wait()
    assert {progress_thread_of(comm)._sides[0].stream.ptr for comm in (one, other)} == device.worked - {HERE}
    assert len(device.worked) == 3


def test_host_arrays_have_no_stream(device):
    reducer = SparseAllreduce(N, k=K, comm=Threaded(2))
    assert isinstance(reducer.start(np.ones(N, np.float32)).wait().values, np.ndarray)
    assert device.worked == set() and device.waits == []


@pytest.mark.filterwarnings("ignore:invalid value")
def test_after_an_error_the_callers_stream_comes_after_the_work_too(here):
    reducer = SparseAllreduce(N, k=K, comm=Threaded(2), algorithm="topka", nonfinite="raise")
    buffer = gradients(1)[0]
    buffer[3] = np.inf
    handle = reducer.start(buffer)
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="total has .* entries that are NaN or Inf"):
            handle.wait()
    buffer[3] = 1
    assert reducer.start(buffer).wait().nnz > 0


def test_whoever_waits_comes_after_the_copy(device, here):
    """Several times, on several streams, and in a callback on the progress thread."""
    handle, seen = SparseAllreduce(N, k=K, comm=Threaded(2)).start(gradients(1)[0]), []
    handle.add_done_callback(lambda handle: seen.append(handle.wait()))
    total = handle.wait()
    with device.stream(8):
        assert handle.wait() is total
        total.values.sum()
    total.values.sum()
    total.indices.copy()


def test_steps_queue_behind_what_was_never_waited_for(device, here):
    """Done as far as the progress thread goes, but its stream may still be at it."""
    plain, reducer = (SparseAllreduce(N, k=K, comm=comm) for comm in (NullComm(2), Threaded(2)))
    first, second, third = gradients()
    expected = [plain.step(gradient) for gradient in (first, second, third)][1:]
    finished(reducer.start(first))
    assert bytes_of(reducer.step(second), reducer.step(third)) == bytes_of(*expected)


def test_a_progress_thread_holds_nothing_of_what_was_waited_for(here):
    comm = Threaded(2)
    handle = SparseAllreduce(N, k=K, comm=comm).start(gradients(1)[0])
    total, held = handle.wait(), ref(handle)
    del handle
    for _ in range(100_000):
        if held() is None:
            break
        sleep(0.001)  # the progress thread is about to let it go
    assert held() is None and total.nnz > 0


@pytest.mark.parametrize("comm", [Threaded, NullComm])
def test_marks_of_a_bucket_are_on_the_stream_that_worked(device, comm):
    """On one of its own, or on the caller's, which is torch's."""
    comm = comm(2)
    tracer, reducer = Tracer(comm, to_torch(gradients(1)[0])), SparseAllreduce(N, k=K, comm=comm)
    for _ in range(2):
        for number in range(2):
            tracer.begin(anew=number == 0)
            handle = reducer.start(to_torch(gradients(1)[0]))
            tracer.watch(handle, lambda: reducer.selections)
            handle.wait()
        tracer.end()
        first, second = (bucket.marks for bucket in tracer.buckets)
    for marks in (first, second):
        own = marks.began.ptr != TORCH_STREAM
        assert marks.given.ptr == TORCH_STREAM and marks.began.ptr == marks.ended.ptr and own == comm.job.concurrent
        assert marks.given.time <= marks.began.time < marks.ended.time
    assert first.ended.time < second.given.time and seconds_between(first.given, second.ended) > 0
    assert tracer.mark().ptr == TORCH_STREAM and device.events == []  # nobody has waited for any


def test_there_are_no_marks_of_what_is_on_the_host(device):
    tracer, reducer = Tracer(Threaded(2), torch.ones(N)), SparseAllreduce(N, k=K, comm=Threaded(2))
    tracer.begin(anew=True)
    handle = reducer.start(np.ones(N, np.float32))
    handle.wait()
    tracer.watch(handle, lambda: reducer.selections)
    assert [bucket.marks for bucket in tracer.buckets] == [None] and tracer.mark() is None and not device.waits


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_loss_scale_is_forgotten_on_the_callers_stream(device, monkeypatch):
    """Parameters of a pretended CUDA model: what is left in residuals is cleared in order with the steps."""

    def made(n, **_):
        return torch.from_numpy(np.zeros(n, np.float32)).as_subclass(CudaTensor)

    monkeypatch.setattr("sparse_mpi.training.bucket.torch.zeros", made)
    weights = {comm: made(N).requires_grad_() for comm in (NullComm(2), Threaded(2))}
    for comm, weight in weights.items():
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer = DistributedOptimizer(torch.optim.SGD([weight], 0.1), algorithm="topka", comm=comm, scaler=scaler)
        for step in range(4):
            optimizer.zero_grad()
            slope = 4.0 * torch.arange(N)
            slope[5] = np.inf if step == 1 else 1.0
            (weight * slope.as_subclass(CudaTensor)).sum().as_subclass(
                torch.Tensor
            ).backward()  # in whose hooks a CudaTensor is one
            optimizer.synchronize()
            optimizer.reduction.stepped()
        (saved,) = optimizer.reduction.state_dict()["vectors"]
        assert np.isfinite(saved["reducer"]["residual"]).all()
    one, other = (weight.grad.as_subclass(torch.Tensor) for weight in weights.values())
    assert torch.equal(one, other) and one.count_nonzero() > 0
