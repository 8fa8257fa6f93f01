"""The processes of a job on this machine: those that descend from its launcher, and what they leave in shared memory.

Linux only; elsewhere nothing is found, and the launcher alone answers for its job.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

LINUX = sys.platform == "linux"
PROC, SHARED = Path("/proc"), Path("/dev/shm")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PATIENCE = 5.0  # seconds in which killed processes must be gone
POLL = 0.02


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parent ends, so that none gets away."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Ask for SIGTERM when the parent ends, even by SIGKILL; for use in a child before it runs its program."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def children(parent: int) -> list[int]:
    """Return the processes whose parent is ``parent``."""
    found = []
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            if int((folder / "stat").read_text().rpartition(") ")[2].split()[1]) == parent:
                found.append(int(folder.name))
    return found


def kill_children() -> None:
    """Kill all children of this process until none is left, those that it inherits meanwhile too."""
    deadline = time.monotonic() + PATIENCE
    while (left := children(os.getpid())) and time.monotonic() < deadline:
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)
        time.sleep(POLL)


def alive(process: int) -> bool:
    """Return True if a process of that number runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_segments(patterns: Iterable[str], since: float, folder: Path = SHARED) -> None:
    """Remove shared-memory files of this user, younger than ``since``, that match and that no process has open.

    A process of another job that has just made one has it open, and later mapped: looking in this order misses none.
    """
    patterns = tuple(patterns)
    if not LINUX or not patterns:
        return
    found = set()
    for file in folder.glob("*"):
        with suppress(OSError):
            status = file.stat()
            ours = status.st_uid == os.geteuid() and status.st_ctime >= since
            if ours and any(fnmatchcase(file.name, pattern) for pattern in patterns):
                found.add(str(file))
    for name in found - (_used() if found else set()):
        with suppress(OSError):
            os.unlink(name)


def _used() -> set[str]:
    """Return the files in shared memory that a process has open or mapped."""
    found = set()
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):
            for descriptor in (folder / "fd").iterdir():
                with suppress(OSError):
                    found.add(os.readlink(descriptor))
        with suppress(OSError):
            found.update(line.split(maxsplit=5)[-1] for line in (folder / "maps").read_text().splitlines())
    return found
