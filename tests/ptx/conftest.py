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


@pytest.fixture
def compiled_anew(interpreted, monkeypatch, tmp_path):
    """Have the sources compiled with parts replaced, which must be there, and with options added."""

    def change(parts: dict[str, str], *options: str):
        left = set(parts)

        def compile_changed(code, given=(), arch=None, filename="kern.cu"):
            for old, new in parts.items():
                if old in code:
                    code = code.replace(old, new)
                    left.discard(old)
            assert not left, f"not in the source: {left}"
            given = [option for option in given if not (options and option.startswith("-ftz"))]
            return device.compile_using_nvrtc(code, (*given, *options))

        monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(interpreted.cupy.cuda.compiler, "compile_using_nvrtc", compile_changed)
        return interpreted

    return change
