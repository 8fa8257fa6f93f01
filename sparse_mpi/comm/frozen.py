"""Processes of other ranks, and the end of one that is stopped, from another process of its machine."""

from __future__ import annotations

import os
import signal
from hashlib import sha256
from pathlib import Path

import numpy as np

PROC = Path("/proc")
STATE, BEGAN = 0, 19  # fields of /proc/N/stat, from the state on


def identity() -> np.ndarray:
    """Return who this process is, ``(3,)`` int64: a hash of its machine, 0 if that is not known; its id; when it began.

    Processes have the same machine only if they see each other's ids: a container may have its own.
    """
    try:
        machine = (PROC / "sys/kernel/random/boot_id").read_text() + str((PROC / "self/ns/pid").readlink())
        key = int.from_bytes(sha256(machine.encode()).digest()[:7], "little")
        return np.array([key, os.getpid(), _began(os.getpid())], np.int64)
    except OSError:
        return np.zeros(3, np.int64)


def within_reach(process: np.ndarray, mine: np.ndarray) -> bool:
    """Tell if both processes, see `identity`, are on one machine."""
    return bool(process[0] and process[0] == mine[0])


def stopped(process: np.ndarray) -> bool:
    """Tell if a process of this machine is stopped, as by SIGSTOP or a debugger."""
    _, number, began = process.tolist()
    try:
        fields = _fields(number)
    except OSError:  # it has ended
        return False
    return fields[STATE] in "Tt" and int(fields[BEGAN]) == began


def end(process: np.ndarray) -> None:
    """Kill a process of this machine, see `identity`, unless it has ended."""
    _, number, began = process.tolist()
    try:
        if _began(number) == began:  # otherwise another one has its id by now
            os.kill(number, signal.SIGKILL)
    except OSError:  # it has ended
        return


def _began(number: int) -> int:
    """Return when a process began, in ticks since its machine did.

    Raises:
        OSError: there is none.
    """
    return int(_fields(number)[BEGAN])


def _fields(number: int) -> list[str]:
    """Return what the system tells of a process, from its state on.

    Raises:
        OSError: there is none.
    """
    # The name of the program, in brackets, may have spaces
    return (PROC / str(number) / "stat").read_text().rpartition(")")[2].split()
