"""What a process does with freed memory, counted in pages that the system had to clear for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys, threading
import numpy as np
from sparse_mpi import keep_freed_memory
from sparse_mpi.kernels.heap import keep_scratch

mode, count, size = sys.argv[1], *map(int, sys.argv[2:])
if not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
    sys.exit(77)
kept = {"keep": keep_freed_memory, "scratch": keep_scratch}.get(mode, lambda: None)()

def faults():
    for step in range(4):
        if step == 2:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = [np.full(size << 20, step, np.uint8) for _ in range(count)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = [faults()]
thread = threading.Thread(target=lambda: found.append(faults()))
thread.start()
thread.join()
print(kept, *found)
"""


def pages(mode: str, count: int = 1, size: int = 36, **settings: str) -> list[str]:
    """Words of the program: if memory is kept, and page faults of two steps on the main and on another thread.

    A step has ``count`` arrays of ``size`` MiB; the C library never keeps one of more than 32.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    environment = plain | {"NUMPY_MADVISE_HUGEPAGE": "0", **settings}
    command = [sys.executable, "-c", PROGRAM, mode, str(count), str(size)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    if done.returncode == 77:
        pytest.skip("not the GNU C library")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_later_steps_need_no_new_pages_on_any_thread():
    plain = pages("leave")
    assert all(int(count) > 1000 for count in plain[1:])
    kept, *counts = pages("keep")
    assert kept == "True"
    assert all(int(count) < 100 for count in counts)


def test_the_scratch_of_later_steps_needs_no_new_pages():
    """Several arrays together, which are more than twice the largest one."""
    before, after = (int(pages(mode, 3, 16)[1]) for mode in ("leave", "scratch"))
    assert before > 1000 and after < 100


@pytest.mark.parametrize(
    "setting", [{"MALLOC_TRIM_THRESHOLD_": "100000"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}], ids=str
)
def test_what_the_user_has_set_is_left_alone(setting):
    kept, *counts = pages("keep", **setting)
    assert kept == "False"
    assert all(int(count) > 1000 for count in counts)
