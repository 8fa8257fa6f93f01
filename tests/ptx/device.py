"""The kernels of the pretended device as their PTX, compiled by NVRTC as the product does, and interpreted."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from ..fakes import fake_cuda
from .buffers import Buffers
from .nvrtc import ADDED, nvrtc, ptx_of, version
from .text import Kernel, module

TARGET = "-arch=compute_90"
RECORD: list = []  # what each launch took


@cache
def kernels(ptx: str) -> dict[str, Kernel]:
    return module(ptx)


def compile_using_nvrtc(code: str, options: tuple[str, ...] = (), arch=None, filename="kern.cu"):
    """``cupy.cuda.compiler``'s, which leaves PTX where a device has machine code."""
    return ptx_of(nvrtc(), code, (*options, TARGET, ADDED)).encode(), None


def interpret(kernel: Kernel, blocks: int, threads: int, shared_bytes: int, given: list, new: list[bool]) -> None:
    """Run a kernel on memory of the host; what nobody has written to must not be read."""
    arrays = [one for one in given if isinstance(one, np.ndarray)]
    unwritten = [np.zeros(one.nbytes, bool) if fresh else None for one, fresh in zip(given, new, strict=True)]
    defined = [known for one, known in zip(given, unwritten, strict=True) if isinstance(one, np.ndarray)]
    bits = [one if isinstance(one, (np.ndarray, np.void)) else one.view(f"u{one.itemsize}") for one in given]
    options = {"resident": fake_cuda.RESIDENT, "seed": fake_cuda.SEED, "shared_bytes": shared_bytes}
    RECORD.append(Buffers(kernel, arrays, defined).launch(bits, blocks, threads, **options))


class RawModule:
    """``cupy.RawModule``, of a file."""

    def __init__(self, *, path: str) -> None:
        self.kernels = kernels(Path(path).read_text())

    def get_function(self, name: str) -> fake_cuda.Kernel:
        return fake_cuda.Kernel(partial(interpret, self.kernels[name]))


def install(monkeypatch):
    """On top of `fake_array.install`: return the CUDA kernels, whose launches are interpreted."""
    found = fake_cuda.install_kernels(monkeypatch)
    RECORD.clear()
    monkeypatch.setattr(found.cupy, "RawModule", RawModule)
    monkeypatch.setattr(found.cupy.cuda, "compiler", SimpleNamespace(compile_using_nvrtc=compile_using_nvrtc))
    monkeypatch.setattr(found.cupy.cuda, "nvrtc", SimpleNamespace(getVersion=lambda: (version(nvrtc()), TARGET)))
    return found
