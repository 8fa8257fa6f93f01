"""Keep freed memory of arrays for the next step's arrays."""

from __future__ import annotations

import ctypes
import os

import numpy as np

# Options of `mallopt` of the GNU C library, see its manual page
TRIM_THRESHOLD, MAPPED_AT_MOST, ARENAS_AT_MOST = -1, -4, -8
NEVER = -1  # threshold that is never reached
LEARNT = (32 << 20) - (1 << 16)  # bytes of a block from which that library learns; it ignores those above 32 MB
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")


def keep_scratch() -> None:
    """Have the GNU C library keep the freed scratch of a step, up to 64 MB, for the next step.

    By its own rule: it keeps up to twice the largest block that was freed, unless the user has set another threshold.
    Nothing is written to the block, so that it takes no memory.
    """
    np.empty(LEARNT, np.uint8)


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory in this process, and tell if it does; call it before threads start.

    By default it returns a large array's memory to the system when the array is freed, so that every step clears pages
    anew, which can take longer than the step's computation where ranks share a machine. The process then holds its peak
    memory. Of the library's own scratch up to 64 MB stay anyway.

    Nothing changes, and False is returned, if the C library is not GNU's, or one of its variables is set
    (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_MAX_``, ``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_ARENA_MAX``, or
    ``glibc.malloc`` in ``GLIBC_TUNABLES``). Only programs call this, never the library.
    """
    told = any(name in os.environ for name in SETTINGS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if told or mallopt is None or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return False
    # One heap for all threads: heaps of other threads are returned under any setting.
    wanted = {MAPPED_AT_MOST: 0, TRIM_THRESHOLD: NEVER, ARENAS_AT_MOST: 1}
    return all([mallopt(option, value) == 1 for option, value in wanted.items()])
