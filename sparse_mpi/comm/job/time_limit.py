"""Whether a job is watched over, and how long a call may take."""

from __future__ import annotations

import math
import os

TIMEOUT = "SPARSE_MPI_TIMEOUT"  # seconds; 0 or unset: no limit
WATCH = "SPARSE_MPI_WATCH"  # 1: a watchdog, also without a time limit


def time_limit(timeout: float | None) -> float:
    """Return the seconds that a call may take: ``timeout``, or what the variable `TIMEOUT` says; 0 is no limit.

    Raises:
        ValueError: it is no number of seconds.
    """
    setting = os.environ.get(TIMEOUT, "0") if timeout is None else timeout
    try:
        seconds = float(setting)
    except ValueError:
        seconds = math.nan  # which fails the test that follows
    if not 0 <= seconds < math.inf:
        name = TIMEOUT if timeout is None else "timeout"
        raise ValueError(f"{name} must be a number of seconds, got {setting!r}; 0 waits for any time")
    return seconds


def wants_watchdog(limit: float) -> bool:
    """Return whether somebody asks for a watchdog: by a time limit, or by the variable `WATCH`.

    Raises:
        ValueError: `WATCH` is neither 0 nor 1.
    """
    switch = os.environ.get(WATCH, "0")
    if switch not in ("0", "1"):
        raise ValueError(f"{WATCH} must be 0 or 1, got {switch!r}")
    return limit > 0 or switch == "1"
