"""The CUDA kernels, where tests ask for them, and what they are asked for on the pretended device."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from ..fakes import fake_cuda
from ..fakes.fake_array import install
from ..ptx.device import install as install_interpreter
from ..ptx.nvrtc import nvrtc


@pytest.fixture(
    params=[
        "emulated",
        pytest.param("flushing", marks=pytest.mark.full("emulated, and subnormal numbers count as zero")),
        pytest.param("interpreted", marks=pytest.mark.full("the PTX, slowly; tests/ptx has a part of it")),
        pytest.param("device", marks=pytest.mark.gpu),
    ]
)
def cuda(request, monkeypatch):
    """The kernels; `put` takes an array to where they work."""
    if request.param == "device":
        if importlib.util.find_spec("cupy") is None:
            pytest.skip("CuPy is not installed")
        import cupy

        try:
            cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            pytest.skip(f"no GPU: {error}")
        from sparse_mpi.kernels import cuda

        return cuda
    if request.param == "interpreted":
        if nvrtc() is None:
            pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc-cu12")
        install(monkeypatch)
        return install_interpreter(monkeypatch)
    if fake_cuda.COMPILER is None:
        pytest.skip("emulating CUDA needs g++")
    install(monkeypatch)
    monkeypatch.setattr(fake_cuda, "FLUSH", request.param == "flushing")
    return fake_cuda.install_kernels(monkeypatch)


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
