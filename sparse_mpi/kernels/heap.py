"""Keep memory that arrays have given back for the arrays of the next step."""

from __future__ import annotations

import ctypes
import os

# What `mallopt` of the GNU C library can be told, see its manual page
TRIM_THRESHOLD, MAPPED_AT_MOST, ARENAS_AT_MOST = -1, -4, -8
NEVER = -1  # as a threshold
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed in this process, and tell if it does; to be called before threads start.

    By default it takes the memory of a large array from the system and returns it at once when the array is freed, so
    that a step's arrays are cleared page by page in every step. Where ranks share a machine this can take longer than
    all that is computed with them. The process then keeps as much memory as it has held at most at a time.

    Nothing is changed, and False returned, where the C library is not GNU's, or where one of its variables says
    otherwise (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_MAX_``, ``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_ARENA_MAX``, or
    ``glibc.malloc`` in ``GLIBC_TUNABLES``). The library never calls this itself: programs do.
    """
    told = any(name in os.environ for name in SETTINGS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if told or mallopt is None or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return False
    # One heap for all threads: those that other threads get are given back whatever has been set.
    wanted = {MAPPED_AT_MOST: 0, TRIM_THRESHOLD: NEVER, ARENAS_AT_MOST: 1}
    return all([mallopt(option, value) == 1 for option, value in wanted.items()])
