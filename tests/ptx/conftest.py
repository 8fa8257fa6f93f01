"""The CUDA kernels as NVRTC's PTX, on the pretended device."""

from __future__ import annotations

import pytest

from ..fakes.fake_array import install
from . import device
from .nvrtc import nvrtc


@pytest.fixture
def interpreted(monkeypatch):
    """The kernels; `device.RECORD` has what each launch took."""
    if nvrtc() is None:
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc-cu12")
    install(monkeypatch)
    return device.install(monkeypatch)
