"""Wait without taking a core: poll, and sleep between polls."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

# Polls follow each other without a pause at first, and then with ever longer ones
SPIN_SECONDS, MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1e-4, 5e-5, 1e-3


def wait_until(arrived: Callable[[], object]) -> Any:
    """Return what ``arrived()`` returns once that is something, and sleep between calls."""
    spinning, pause = perf_counter() + SPIN_SECONDS, MIN_PAUSE_SECONDS
    while not (result := arrived()):
        if perf_counter() > spinning:
            sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
    return result
