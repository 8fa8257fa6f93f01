"""Compile CUDA sources for given types, and start their kernels on CuPy's current stream."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

THREADS = 256


@cache
def kernel(name: str, source: str, threads: int = THREADS, **macros: Any) -> Any:
    """Return the kernel ``name`` of ``source``, a file in this folder, compiled with ``macros`` defined.

    It is compiled on the first call; CuPy caches the result on disk for later processes.
    """
    folder = Path(__file__).parent
    code = (folder / "types.cu").read_text() + (folder / source).read_text()
    defined = {"THREADS": threads, **macros}
    options = ("--std=c++17", *(f"-D{macro}={value}" for macro, value in defined.items()))
    return cupy.RawModule(code=code, options=options).get_function(name)


def start(function: Any, blocks: int, *arguments: Any, threads: int = THREADS, shared_bytes: int = 0) -> None:
    """Start ``function`` on ``blocks`` blocks of ``threads`` threads; integer arguments are passed as int64."""
    values = tuple(np.int64(a) if isinstance(a, int) else a for a in arguments)
    function((blocks,), (threads,), values, shared_mem=shared_bytes)


def blocks_for(count: int, each: int = THREADS) -> int:
    """Return how many blocks serve ``count`` items where one serves ``each``."""
    return -(-count // each)
