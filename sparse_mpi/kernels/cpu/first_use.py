"""First use of a kernel: one process of a node compiles it, the others wait for its cache, and rank 0 says so.

Numba compiles a function on its first call with new types, made by all ranks of a job at once. A lock beside Numba's
cache, which ends with its process, lets one compile.
"""

from __future__ import annotations

import fcntl
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock

CONFIG: Any = numba.config
QUIET, AGAIN = 3.0, 4.5  # seconds until rank 0 says that kernels are compiled, and until it repeats that
LONGEST, POLL = 120.0, 0.02  # seconds that a process waits for one that compiles, and from one look to the next
# Variables in which launchers tell a process its rank: Open MPI, PMIx, PMI, PALS, Slurm, torchrun
RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID", "RANK")


class Turn:
    """Lets one thread at a time compile. Rank 0 reports a long compilation or wait."""

    def __init__(self) -> None:
        self._depth = 0  # nested compilations: a kernel, and the kernels that it calls
        self._lock: int | None = None
        self._patient = True  # no process has been waited for in vain
        self._began = self._spent = 0.0  # start of this turn, and seconds of earlier ones
        self._next: float | None = None  # seconds in all turns at which the next line is due, once there was one
        self._silent = next((os.environ[name] != "0" for name in RANKS if name in os.environ), False)

    def take(self, folder: str) -> bool:
        """Begin once no other process of the node compiles; return True if it had to wait."""
        self._began = monotonic() if self._depth == 0 else self._began
        self._depth += 1
        self._tell()
        return self._depth == 1 and self._patient and self._wait(Path(folder, f".compiling-{platform.node()}"))

    def end_after(self, compile: Callable[[object], object]) -> Callable[[object], object]:
        """Return ``compile``, wrapped to end the turn that it takes, even if it fails."""

        def compile_in_turn(sig: object) -> object:
            with global_compiler_lock:
                before = self._depth
                try:
                    return compile(sig)
                finally:
                    if self._depth > before == 0:  # it was not in the cache
                        self._spent += monotonic() - self._began
                    self._depth = before
                    if not before and self._lock is not None:
                        os.close(self._lock)
                        self._lock = None

        return compile_in_turn

    def _wait(self, file: Path) -> bool:
        deadline, waited = monotonic() + LONGEST, False
        try:
            self._lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            while monotonic() < deadline:
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return waited
                except BlockingIOError:
                    waited = True
                    self._tell()
                    sleep(POLL)
        except OSError:  # a file system without locks: no process waits
            return False
        self._patient = False  # the process that has the lock is frozen
        return True

    def _tell(self) -> None:
        spent = self._spent + monotonic() - self._began
        if not self._silent and spent >= (QUIET if self._next is None else self._next):
            text = (
                "once per installation (`doctor --compile` does it before)" if self._next is None else f"{spent:.0f} s"
            )
            self._next = spent + AGAIN
            print(f"sparse_mpi: compiling kernels, {text}", file=sys.stderr, flush=True)


TURN = Turn()


class SharedCache(FunctionCache):
    """Numba's cache of a function, which one process fills while others wait."""

    def load_overload(self, sig: object, target_context: object) -> object:
        found = super().load_overload(sig, target_context)
        if found is None and TURN.take(self.cache_path):
            found = super().load_overload(sig, target_context)
        return found

    def save_overload(self, sig: object, data: object) -> None:
        try:
            super().save_overload(sig, data)
        except OSError:
            self.disable()


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    # Divide as NumPy does: a loop that may have to raise ZeroDivisionError is not vectorised
    made = numba.njit(nogil=True, boundscheck=False, error_model="numpy", **options)(function)
    before = CONFIG.CACHE_DIR
    for folder in (lambda: before, private_folder):  # Numba's own cache fails where package and home are read-only
        CONFIG.CACHE_DIR = folder()
        try:
            made._cache = SharedCache(function)
            made.compile = TURN.end_after(made.compile)
            break
        except RuntimeError:
            continue
        finally:
            CONFIG.CACHE_DIR = before
    return made


def private_folder() -> str:
    """Return a folder of this user alone, as loading a cache runs its code; "" if impossible."""
    folder = Path(tempfile.gettempdir()) / f"sparse_mpi-kernels-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return ""
    return str(folder) if status.st_uid == os.getuid() and not status.st_mode & 0o077 else ""


summed = partial(compiled, fastmath={"reassoc"})  # sums in any order, vectorised
