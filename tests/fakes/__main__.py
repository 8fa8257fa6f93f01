"""Run a program on the pretended device: ``python -m tests.fakes FILE ...`` or ``python -m tests.fakes -m MODULE ...``.

CuPy and torch believe in a GPU, whose kernels are whole-array functions; MPI is real, and takes no device pointers.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from .fake_array import install
from .fake_torch import install_torch

if __name__ == "__main__":
    patches = pytest.MonkeyPatch()  # never undone: the process ends with the program
    install(patches)
    install_torch(patches)
    sys.argv.pop(0)
    if sys.argv[0] == "-m":
        sys.argv.pop(0)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
