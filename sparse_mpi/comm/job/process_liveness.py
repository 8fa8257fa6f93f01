"""Processes of other ranks, as another process of their host sees them: running, stopped or ended."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

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
        return np.array([key, os.getpid(), int(_fields(os.getpid())[BEGAN])], np.int64)
    except OSError:
        return np.zeros(3, np.int64)


def same_host(process: np.ndarray, mine: np.ndarray) -> bool:
    return bool(process[0] and process[0] == mine[0])


def state(process: np.ndarray) -> str:
    """Return the letter of the state of a process of this machine, see `identity`; "" where it is there no more."""
    _, number, began = process.tolist()
    try:
        fields = _fields(number)
    except OSError:
        return ""
    return fields[STATE] if int(fields[BEGAN]) == began else ""  # otherwise another process has its id by now


def stopped(process: np.ndarray) -> bool:
    return state(process) in ("T", "t")


def kill(process: np.ndarray) -> None:
    if state(process):
        with suppress(OSError):  # it has ended since
            os.kill(int(process[1]), signal.SIGKILL)


def ended(process: np.ndarray) -> bool:
    """Return whether a process of this machine has ended; its parent may not have asked for its status yet."""
    return state(process) in ("", "Z", "X")


class Neighbours:
    """The processes of other ranks on this machine."""

    def __init__(self, processes: np.ndarray, rank: int) -> None:
        self._processes = {
            other: process
            for other, process in enumerate(processes)
            if other != rank and same_host(process, processes[rank])
        }
        self._missing: dict[int, float] = {}  # rank -> when it was first seen that its process has ended

    @classmethod
    def of(cls, comm: Any) -> Neighbours:
        """Return those of an mpi4py communicator. Collective."""
        processes = np.empty((comm.size, 3), np.int64)
        comm.Allgather(identity(), processes)
        return cls(processes, comm.rank)

    def stopped(self) -> list[int]:
        return [rank for rank, process in self._processes.items() if stopped(process)]

    def kill(self, rank: int) -> None:
        kill(self._processes[rank])

    def ended(self, seconds: float) -> list[int]:
        """Return the ranks that an earlier call, at least ``seconds`` ago, already found ended."""
        now = time.monotonic()
        for rank, process in self._processes.items():
            if ended(process):
                self._missing.setdefault(rank, now)
        return [rank for rank, since in self._missing.items() if now - since >= seconds]


def _fields(number: int) -> list[str]:
    # The name of the program, in brackets, may have spaces
    return (PROC / str(number) / "stat").read_text().rpartition(")")[2].split()
