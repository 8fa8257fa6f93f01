"""Compiled loops that release the GIL, on several threads at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")

MIN_ENTRIES_PER_THREAD = 1 << 20  # entries that keep a thread busy for much longer than it takes to start
ALIGNMENT = 64  # of the parts, unless another is asked for


def limit() -> int:
    """How many threads to use: the cores this process may run on, fewer where ``OMP_NUM_THREADS`` says so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(cores, max(1, int(wanted))) if wanted.isdigit() else cores


def parts(size: int, alignment: int = ALIGNMENT, weight: int = 1) -> list[tuple[int, int]]:
    """``[lo, hi)`` for each thread, in order, together ``[0, size)``; each ``lo`` is a multiple of ``alignment``.

    ``weight``: entries behind each of the ``size`` things to share out.
    """
    count = min(limit(), max(1, size * weight // MIN_ENTRIES_PER_THREAD))
    cuts = [size * i // count // alignment * alignment for i in range(count)] + [size]
    return list(zip(cuts[:-1], cuts[1:], strict=True))


def each(work: Callable[[int, int], T], pieces: list[tuple[int, int]]) -> list[T]:
    """``work(lo, hi)`` of all pieces, in their order; the first one runs on the calling thread."""
    others = [_pool(os.getpid()).submit(work, lo, hi) for lo, hi in pieces[1:]]
    return [work(*pieces[0]), *(other.result() for other in others)]


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The waiting threads of a process: a fork, which data loaders do, leaves them behind and needs its own."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix=f"sparse_mpi kernels {process}")
