"""Processes of other ranks of this host: running, stopped or ended."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from sparse_mpi.comm.base import hashed


def identity() -> np.ndarray:
    """Return this process's identity, ``(2,)`` int64: a hash of its machine, 0 if unknown, and its process id.

    Processes share a machine only if they see each other's ids: a container may have its own.
    """
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return np.zeros(2, np.int64)
    return np.array([hashed(machine), os.getpid()])


class Neighbours:
    """The processes of other ranks on this machine. Make it while all run: ids are reused."""

    def __init__(self, processes: np.ndarray, rank: int) -> None:
        import psutil

        self._psutil: Any = psutil
        self._processes: dict[int, Any] = {}  # rank -> its process; None: it ended before it was seen
        self._missing: dict[int, float] = {}  # rank -> when it was first seen that its process has ended
        here = processes[rank, 0]
        for other, (machine, number) in enumerate(processes.tolist()):
            if other != rank and machine == here != 0:
                self._processes[other] = None
                with suppress(psutil.NoSuchProcess):
                    self._processes[other] = psutil.Process(number)

    @classmethod
    def of(cls, comm: Any) -> Neighbours:
        """Return the neighbours in an mpi4py communicator. Collective."""
        processes = np.empty((comm.size, 2), np.int64)
        comm.Allgather(identity(), processes)
        return cls(processes, comm.rank)

    def stopped(self) -> list[int]:
        states = self._psutil.STATUS_STOPPED, self._psutil.STATUS_TRACING_STOP
        return [rank for rank in self._processes if self._state(rank) in states]

    def kill(self, rank: int) -> None:
        with suppress(self._psutil.NoSuchProcess):  # it has ended since
            self._processes[rank].kill()

    def ended(self, seconds: float) -> list[int]:
        """Return the ranks seen ended by an earlier call, at least ``seconds`` ago."""
        now = time.monotonic()
        for rank in self._processes:
            if self._state(rank) in (self._psutil.STATUS_ZOMBIE, self._psutil.STATUS_DEAD):
                self._missing.setdefault(rank, now)
        return [rank for rank, since in self._missing.items() if now - since >= seconds]

    def _state(self, rank: int) -> str:
        process = self._processes[rank]
        with suppress(self._psutil.NoSuchProcess):
            if process is not None and process.is_running():  # no other one has its id by now
                return str(process.status())
        return str(self._psutil.STATUS_DEAD)
