"""Run compiled loops, which release the GIL, on several threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")

MIN_ENTRIES_PER_THREAD = 1 << 20  # they keep a thread busy for much longer than it takes to start
ALIGNMENT = 64  # entries; the parts of a vector begin at multiples of it, unless a caller asks for another


def limit() -> int:
    """Return the number of threads: one for each usable core, at most ``OMP_NUM_THREADS``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(cores, max(1, int(wanted))) if wanted.isdigit() else cores


def parts(size: int, alignment: int = ALIGNMENT, weight: int = 1) -> list[tuple[int, int]]:
    """Cut ``[0, size)`` into a range ``[lo, hi)`` for each thread; each ``lo`` is a multiple of ``alignment``.

    The number of threads follows ``size * weight``.
    """
    count = max(1, size * weight // MIN_ENTRIES_PER_THREAD)
    if count > 1:
        count = min(limit(), count)
    cuts = [size * i // count // alignment * alignment for i in range(count)] + [size]
    return list(zip(cuts[:-1], cuts[1:], strict=True))


def each(work: Callable[[int, int], T], pieces: list[tuple[int, int]]) -> list[T]:
    """Return the results of ``work(lo, hi)`` for all pieces, in order; the first runs on the calling thread."""
    if len(pieces) == 1:
        return [work(*pieces[0])]
    try:
        others = [_pool(os.getpid()).submit(work, lo, hi) for lo, hi in pieces[1:]]
    except RuntimeError:  # the program has ended, and this is the last of its work: pools take no more
        return [work(lo, hi) for lo, hi in pieces]
    return [work(*pieces[0]), *(other.result() for other in others)]


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the thread pool of a process; threads do not survive a fork."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix=f"sparse_mpi kernels {process}")
