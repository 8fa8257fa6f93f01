"""The CUDA kernels, where tests ask for them."""

from __future__ import annotations

import importlib.util

import pytest

from ..fakes import fake_cuda
from ..fakes.fake_array import install, install_kernels


@pytest.fixture(params=["emulated", pytest.param("device", marks=pytest.mark.gpu)])
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
    if fake_cuda.COMPILER is None:
        pytest.skip("emulating CUDA needs g++")
    install(monkeypatch)
    return install_kernels(monkeypatch)
