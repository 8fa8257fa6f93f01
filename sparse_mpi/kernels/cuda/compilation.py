"""Compile CUDA sources for given types, and start their kernels on CuPy's current stream.

CuPy compiles a `RawModule` with ``-ftz=true``: subnormal float32 numbers would count as zero, and sums have other bits
than the host's. So NVRTC is called without it, and CuPy loads the resulting file.
"""

from __future__ import annotations

import os
import re
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

import cupy
import numpy as np

THREADS = 256
SELECTING = 1024  # threads of a block that searches a long row for its largest entries
DIGIT = 11  # bits of a pass in search of the k-th largest: 3 or 6 passes, the first of which tells exponents apart
FOLDER = "~/.cupy/kernel_cache"  # CuPy's own folder of kernels, unless CUPY_CACHE_DIR names another


def kernel(name: str, source: str, threads: int = THREADS, **macros: object) -> Any:
    """Return the kernel ``name`` of ``source``, a file in this folder, compiled with ``macros``.

    The first call compiles it for the current device; it is cached on disk beside CuPy's own. A macro that is a type
    stands for its name.
    """
    return _kernel(cupy.cuda.runtime.getDevice(), name, source, THREADS=threads, **macros)


@cache
def _kernel(device: int, name: str, source: str, **macros: object) -> object:
    capability = cupy.cuda.Device(device).compute_capability
    macros = {macro: value.name if isinstance(value, np.dtype) else value for macro, value in macros.items()}
    code = _text("types.cu") + _text(source)
    options = ("--std=c++17", "-ftz=false", *(f"-D{macro}={value}" for macro, value in macros.items()))
    file = _compiled(code, options, (capability, cupy.cuda.nvrtc.getVersion(), cupy.__version__))
    return cupy.RawModule(path=str(file)).get_function(name)


def _text(source: str) -> str:
    """Return the text of a file in this folder, with the files that it includes: NVRTC finds none."""
    text = Path(__file__).with_name(source).read_text()
    return re.sub(r'^#include "(.+)"$', lambda found: _text(found[1]), text, flags=re.MULTILINE)


def _compiled(code: str, options: tuple[str, ...], versions: tuple[object, ...]) -> Path:
    """Return the file of ``code`` compiled by NVRTC, written once for all processes of these versions."""
    digest = blake2b(repr((code, options, versions)).encode(), digest_size=16).hexdigest()
    file = _folder() / f"sparse_mpi-{digest}.cubin"
    if not file.exists():
        image, _ = cupy.cuda.compiler.compile_using_nvrtc(code, options, None, file.with_suffix(".cu").name)
        with NamedTemporaryFile(dir=file.parent, delete=False) as written:
            written.write(image)
        os.replace(written.name, file)  # whole files only, whoever else writes or reads it
    return file


@cache
def _folder() -> Path:
    if os.environ.get("CUPY_CACHE_IN_MEMORY") == "1":
        return Path(_temporary().name)
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or FOLDER).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _temporary() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="sparse_mpi-kernels-")


def launch(
    name: str, source: str, count: int, *arguments: object, blocks: int = 0, threads: int = THREADS, **macros: object
) -> None:
    """Start a kernel, unless ``count`` is 0, on a thread for each of ``count`` items, or on ``blocks``."""
    if count:
        start(kernel(name, source, threads, **macros), blocks or blocks_for(count), *arguments, threads=threads)


def start(function: Any, blocks: int, *arguments: Any, threads: int = THREADS, shared_bytes: int = 0) -> None:
    """Start ``function`` on ``blocks`` blocks of ``threads`` threads; integer arguments are passed as int64."""
    values = tuple(np.int64(a) if isinstance(a, int) else a for a in arguments)
    function((blocks,), (threads,), values, shared_mem=shared_bytes)


def blocks_for(count: int, each: int = THREADS) -> int:
    return -(-count // each)
