"""Device arrays from the public functions down to the transport, on a pretended device; for real: `test_gpu`."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest
import torch

from sparse_mpi import ALGORITHMS, SparseAllreduce, arrays, sparse_allreduce
from sparse_mpi.comm.mpi import MPIComm
from sparse_mpi.reduction.arguments import takes

from ..fakes.fake_array import to_torch
from ..fakes.fake_device import TORCH_STREAM
from ..fakes.fake_torch import CudaTensor
from ..kernels.on_cuda import bytes_of, parts_of

N, K = 100_000, 1000
PAIRS = 8 * K  # bytes of one rank's selection


def vector(rank: int, step: int = 0, n: int = N, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng([rank, step]).standard_normal(n).astype(dtype)


@pytest.fixture(params=["staged", "cuda-aware"])
def transport(request):
    """What to do with a rank's comm: have MPI take device pointers or not; a `World` always stages."""

    def choose(comm):
        return MPIComm(comm._comm, request.param == "cuda-aware") if isinstance(comm, MPIComm) else comm

    return choose


@pytest.mark.thin(1)  # every algorithm once
@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_bytes_as_with_numpy(ranks, device, transport, name, dtype):
    cupy = sys.modules["cupy"]

    options = {"clip_norm": 1.0} if dtype is np.float64 else {}

    def body(comm):
        comm = transport(comm)
        once = {}
        for library in (np, cupy):
            x = library.asarray(vector(comm.rank, dtype=dtype))
            before = bytes_of(x)
            reduction = sparse_allreduce(x, k=K, comm=comm, algorithm=name)
            assert bytes_of(x) == before
            reducer = SparseAllreduce([(250, 400)], k=K, comm=comm, algorithm=name, **options)
            totals = [
                reducer.step(library.asarray(vector(comm.rank, step, dtype=dtype)), check=step == 2)
                for step in range(3)
            ]
            results = (*reduction, *totals, reducer.residual)
            assert all(isinstance(part, library.ndarray) for result in results for part in parts_of(result))
            once[library] = bytes_of(*results)
        assert once[np] == once[cupy]
        assert arrays.is_device(x) and not device.early

    ranks.run(body)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_torch_tensors_on_a_device(ranks, device, transport, name):
    """In and out without a copy, and all on torch's stream."""
    cupy = sys.modules["cupy"]

    def body(comm):
        comm = transport(comm)
        x = vector(comm.rank)
        expected = bytes_of(*sparse_allreduce(x, k=K, comm=comm, algorithm=name))
        tensor = to_torch(cupy.asarray(x)).reshape(100, -1).requires_grad_()
        device.worked.clear()
        device.copies.clear()
        device.synchronised.clear()
        reduction = sparse_allreduce(tensor, k=K, comm=comm, algorithm=name)
        total = SparseAllreduce(N, k=K, comm=comm, algorithm=name).step(tensor)
        assert device.worked == {TORCH_STREAM} and {copy.stream for copy in device.copies} <= {TORCH_STREAM}
        assert set(device.synchronised) == {TORCH_STREAM} and not device.current
        assert not takes(name, "selector") or 4 * N not in {copy.bytes for copy in device.copies}
        assert all(isinstance(part, CudaTensor) for result in (*reduction, total) for part in parts_of(result))
        assert bytes_of(*reduction) == expected and bytes_of(total) == bytes_of(reduction.total)

    ranks.run(body)


def test_torch_tensors_enter_and_leave_without_a_copy(device):
    tensor = to_torch(sys.modules["cupy"].zeros(12)).reshape(3, 4)
    entered = arrays.enter(tensor)
    assert arrays.is_device(entered) and entered.data.ptr == tensor.as_subclass(torch.Tensor).data_ptr()
    left = arrays.leave(entered, tensor)
    assert isinstance(left, CudaTensor) and left.as_subclass(torch.Tensor).data_ptr() == entered.data.ptr
    assert not device.copies
    of_torch, of_cupy = torch.ones(3).bfloat16(), np.ones(3, ml_dtypes.bfloat16)  # which CuPy knows from version 14 on
    for brain in (of_torch.as_subclass(CudaTensor), sys.modules["cupy"].asarray(of_cupy)):
        entered = arrays.enter(brain)
        assert (entered.dtype, entered.get().tolist()) == (np.uint16, [0x3F80] * 3)


def test_device_and_stream_are_given_back(device):
    tensor = to_torch(sys.modules["cupy"].zeros(3))
    with pytest.raises(ZeroDivisionError), arrays.on_stream_of(tensor):
        assert device.current == [0] and device.stack[-1].ptr == TORCH_STREAM
        raise ZeroDivisionError
    assert device.current == [] and device.stack[-1].ptr == 0
    with arrays.on_stream_of(np.zeros(3)), arrays.on_stream_of(torch.zeros(3)), arrays.on_stream_of("wrong"):
        assert device.current == []


def test_a_tensor_on_a_device_needs_cupy(device, monkeypatch, ranks):
    tensor = to_torch(sys.modules["cupy"].zeros(200))
    monkeypatch.setitem(sys.modules, "cupy", None)

    def body(comm):
        x = tensor if comm.rank == comm.size - 1 else np.zeros(200, np.float32)
        expected = ImportError if x is tensor else ValueError
        with pytest.raises(expected, match=r"x must be on the CPU where CuPy is not installed, got cuda:0"):
            sparse_allreduce(x, comm=comm)

    ranks.run(body)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("algorithm", ["oktopk", "elect"])
def test_a_training_run_moves_between_host_and_device(ranks, device, transport, algorithm):
    """State leaves the device with `state_dict`, joins it with the first step; back to the host only when asked."""
    cupy = sys.modules["cupy"]

    def body(comm):
        comm = transport(comm)
        reducer, other = (SparseAllreduce(N, k=K, comm=comm, algorithm=algorithm) for _ in range(2))
        reducer.step(cupy.asarray(vector(comm.rank)))
        with pytest.raises(TypeError, match="gradient must be on the device where the residual is, got numpy"):
            reducer.step(vector(comm.rank))
        saved = reducer.state_dict()
        assert isinstance(saved["residual"], np.ndarray)
        other.load_state_dict(saved)
        totals = [other.step(vector(comm.rank, 1)), reducer.step(cupy.asarray(vector(comm.rank, 1)))]
        assert bytes_of(totals[0]) == bytes_of(totals[1])
        assert bytes_of(other.residual) == bytes_of(reducer.residual)
        # Back on the device, what was saved goes on there.
        back = SparseAllreduce(N, k=K, comm=comm, algorithm=algorithm)
        back.load_state_dict(saved)
        assert bytes_of(back.step(cupy.asarray(vector(comm.rank, 1)))) == bytes_of(totals[1])

    ranks.run(body)


@pytest.mark.ranks(3)
def test_pinned_memory_is_kept_over_mpi(ranks, device):
    """Every copy of a staged call is from or to pinned memory, of which there is soon enough."""
    cupy = sys.modules["cupy"]

    def body(comm):
        if not isinstance(comm, MPIComm):
            pytest.skip("a World has no memory of its own to keep")
        comm = MPIComm(comm._comm, cuda_aware=False)
        reducer = SparseAllreduce(N, k=K, comm=comm)
        gradients = [cupy.asarray(vector(comm.rank, step)) for step in range(6)]
        for step, gradient in enumerate(gradients):
            device.copies.clear()
            reducer.step(gradient)
            if step == 2:
                pinned = len(device.pinned)
            large = [copy for copy in device.copies if PAIRS / comm.size / 2 < copy.bytes]
            assert len(large) >= 4 and all(copy.pinned for copy in large)
        assert len(device.pinned) == pinned

    ranks.run(body)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("place", [lambda cupy, x: cupy.asarray(x), lambda cupy, x: to_torch(cupy.asarray(x))])
@pytest.mark.parametrize("call", ["step", "once"])
def test_a_reduction_in_a_graph_says_what_to_do(ranks, device, place, call):
    """On all ranks, if one of them captures its stream; nothing is waited for before that."""

    def body(comm):
        x = place(sys.modules["cupy"], vector(comm.rank))
        reducer = SparseAllreduce(N, k=K, comm=comm)
        reduce = reducer.step if call == "step" else lambda x: sparse_allreduce(x, k=K, comm=comm)
        if comm.rank == 0:
            device.captured.update({0, TORCH_STREAM})
        error = RuntimeError if comm.rank == 0 else ValueError
        with pytest.raises(error, match="must not be reduced while its stream is captured into a CUDA graph, it is"):
            reduce(x)
        device.captured.clear()
        reduce(x)

    ranks.run(body)
