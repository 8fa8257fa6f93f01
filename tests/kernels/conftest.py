"""The sets of kernels that tests ask for, and what the CUDA ones are asked for on the pretended device."""

from __future__ import annotations

import sys

import pytest

from sparse_mpi.kernels import threads

from ..fakes import fake_cuda
from ..fakes.fake_array import install
from ..ptx.device import install as install_interpreter
from ..ptx.nvrtc import nvrtc

CUDA = [
    "emulated",
    pytest.param("flushing", marks=pytest.mark.full("emulated, and subnormal numbers count as zero")),
    pytest.param("interpreted", marks=pytest.mark.full("the PTX, slowly; tests/ptx has a part of it")),
    pytest.param("device", marks=pytest.mark.gpu),
]


@pytest.fixture(params=CUDA)
def cuda(request, monkeypatch):
    """The CUDA kernels; `put` takes an array to where they work."""
    return cuda_kernels(request.param, monkeypatch)


def cuda_kernels(name, monkeypatch):
    if name == "device":
        cupy = pytest.importorskip("cupy")
        try:
            cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            pytest.skip(f"no GPU: {error}")
        from sparse_mpi.kernels import cuda

        return cuda
    if name == "interpreted":
        if nvrtc() is None:
            pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc-cu12")
        install(monkeypatch)
        return install_interpreter(monkeypatch)
    if fake_cuda.COMPILER is None:
        pytest.skip("emulating CUDA needs g++")
    install(monkeypatch)
    monkeypatch.setattr(fake_cuda, "FLUSH", name == "flushing")
    return fake_cuda.install_kernels(monkeypatch)


def on_threads(number, monkeypatch):
    monkeypatch.setattr(threads, "limit", lambda: number)
    monkeypatch.setattr(threads, "MIN_ENTRIES_PER_THREAD", 64)


@pytest.fixture(params=[1, 2, 3, 7], ids="{}-threads".format)
def many_threads(request, monkeypatch):
    on_threads(request.param, monkeypatch)
    return request.param


@pytest.fixture(params=["compiled", "compiled, 3 threads", *CUDA])
def passes(request, monkeypatch):
    """Each set of kernels but that of whole-array functions, with which it is compared."""
    if not request.param.startswith("compiled"):
        return cuda_kernels(request.param, monkeypatch)
    compiled = pytest.importorskip("sparse_mpi.kernels.cpu", reason="the compiled kernels need Numba")
    if request.param.endswith("threads"):
        on_threads(3, monkeypatch)
    return compiled


@pytest.fixture
def launches(cuda, monkeypatch):
    """The grids of the kernels that were launched, on any device; `start` is the only way there."""
    launched = []
    for name, module in list(sys.modules.items()):
        if name.startswith("sparse_mpi.kernels.cuda") and "start" in vars(module):

            def start(function, blocks, *arguments, plain=module.start, **options):
                launched.append((blocks,))
                plain(function, blocks, *arguments, **options)

            monkeypatch.setattr(module, "start", start)
    return launched
