"""Device arrays for real: ``pytest -m gpu``, and ``mpiexec -n 3 python -m pytest --with-mpi -m "mpi and gpu"``.

One GPU, which all ranks share, is enough.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from sparse_mpi import ALGORITHMS, SparseAllreduce, arrays, sparse_allreduce
from sparse_mpi.comm.staging import Staging
from sparse_mpi.kernels import array, of
from sparse_mpi.select.estimate import Gaussian

from .on_cuda import bytes_of, parts_of

N, K = 200_000, 2000
MANY = 3_000_000  # pairs: a share for every block of `truncate`
LATE = 200_000_000  # cycles that a stream is kept busy: about a tenth of a second


def device_count() -> int:
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount()
    except Exception:  # no CuPy, no driver, no device: CuPy has an error for each
        return 0


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(device_count() == 0, reason="needs CuPy and a CUDA device")]
cupy = sys.modules.get("cupy")
needs_cuda_torch = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a torch built for CUDA")


def vector(rank: int, step: int = 0, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng([rank, step]).standard_normal(N).astype(dtype)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_bytes_as_with_numpy(ranks, name, dtype):
    """But where a selector adds in an order that is each library's own."""
    selector = ALGORITHMS[name]().selector
    same = not isinstance(selector, Gaussian)

    def body(comm):
        found = {}
        for library in (np, cupy):
            once = sparse_allreduce(library.asarray(vector(comm.rank, dtype=dtype)), k=K, comm=comm, algorithm=name)
            reducer = SparseAllreduce(N, k=K, comm=comm, algorithm=name)
            totals = [
                reducer.step(library.asarray(vector(comm.rank, step, dtype)), check=step == 2) for step in range(3)
            ]
            results = (*once, *totals, reducer.residual)
            assert all(isinstance(part, library.ndarray) for result in results for part in parts_of(result))
            found[library] = bytes_of(*results)
        assert found[np] == found[cupy] or not same

    ranks.run(body)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kernels_of_one_launch_give_the_same_bytes_as_with_numpy(dtype):
    """Also where blocks of several streams wait for others of theirs at the same time."""
    rng = np.random.default_rng(0)
    values = rng.standard_t(3, MANY).astype(dtype)
    values[::1000], values[1::1000] = np.nan, 1
    indices = np.cumsum(rng.integers(1, 5, MANY)).astype(np.int32)
    limits = np.sort(array.magnitude_bits(values)[:32]).astype(np.int64)
    here, there = cupy.asarray(indices), cupy.asarray(values)
    kernels = of(there)
    assert kernels.count(there, limits).tolist() == array.count(values, limits).tolist()
    assert bytes_of(kernels.contains(here, here + 1)) == bytes_of(array.contains(indices, indices + 1))
    cupy.cuda.Device().synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(8)]
    for k in (1, K, MANY // 2, MANY - 1):
        found = []
        for stream in streams:
            with stream:
                found.append(kernels.truncate(here, there, k))
        cupy.cuda.Device().synchronize()
        expected = bytes_of(*array.truncate(indices, values, k))
        assert all(bytes_of(*pairs) == expected for pairs in found)


@needs_cuda_torch
@pytest.mark.ranks(3)
@pytest.mark.parametrize("name", ["oktopk", "topka", "dense"])
def test_a_gradient_that_is_still_being_computed(ranks, name):
    """On a stream of torch's own that is busy; nobody synchronises."""

    def body(comm):
        gradients = [vector(comm.rank, step) for step in range(3)]
        host = SparseAllreduce(N, k=K, comm=comm, algorithm=name)
        expected = bytes_of(*[host.step(gradient) for gradient in gradients], host.residual)
        reducer = SparseAllreduce(N, k=K, comm=comm, algorithm=name)
        ready = [torch.from_numpy(gradient).cuda() for gradient in gradients]
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            totals = []
            for gradient in ready:
                late = torch.zeros_like(gradient)
                torch.cuda._sleep(LATE)
                late += gradient
                totals.append(reducer.step(late))
                late.zero_()
            assert all(part.is_cuda for total in totals for part in parts_of(total))
            found = bytes_of(*totals)
        assert [*found, reducer.state_dict()["residual"].tobytes()] == expected

    ranks.run(body)


@needs_cuda_torch
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_tensors_enter_and_leave_without_a_copy(dtype):
    tensor = torch.zeros(3, 4, dtype=dtype, device="cuda").requires_grad_()
    with arrays.on_stream_of(tensor):
        entered = arrays.enter(tensor)
        left = arrays.leave(entered, tensor)
    assert entered.data.ptr == tensor.data_ptr() == left.data_ptr() and left.device == tensor.device
    assert arrays.enter(torch.ones(3, device="cuda").bfloat16()).get().tolist() == [0x3F80] * 3


@needs_cuda_torch
def test_cupy_works_on_torchs_stream_and_gives_it_back():
    before = cupy.cuda.get_current_stream().ptr
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        tensor = torch.zeros(4, device="cuda")
        with arrays.on_stream_of(tensor):
            assert cupy.cuda.get_current_stream().ptr == torch.cuda.current_stream().cuda_stream
    assert cupy.cuda.get_current_stream().ptr == before


def test_staging_waits_for_the_stream():
    staging, stream = Staging(), cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.arange(1 << 22, dtype=np.float32)
        for _ in range(50):
            x += 1
        host = staging.download(x)
        assert host[0] == 50 and host[-1] == (1 << 22) + 49
        arrived = staging.empty(host.shape, host.dtype)
        arrived[:] = 3
        out = staging.upload(arrived, x)
        arrived[:] = 4
        assert float(out.min()) == float(out.max()) == 3
        assert staging.upload(np.zeros((0, 2), np.int32), x).shape == (0, 2)
