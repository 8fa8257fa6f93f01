"""Whether the kernels still have to be compiled, which takes the first step of an installation ten seconds or more."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

COMPILING = "compiling kernels, once per installation"  # for a progress bar, while a first step runs
EVERY_STEP = "sparse_mpi.kernels.cpu.passes"  # the module whose kernels every sparse step calls


def cold() -> bool:
    """Return True if a first step in host memory will compile kernels, because Numba's cache lacks them.

    `python -m sparse_mpi doctor --compile` fills the cache. Without Numba there is nothing to compile. Loads Numba, as
    a first step does, and compiles nothing.
    """
    if find_spec("numba") is None:
        return False
    try:
        module = import_module(EVERY_STEP)
    except ImportError:  # it does not fit NumPy, and is not used
        return False
    except RuntimeError:  # no folder for the cache: compiled in every process
        return True
    return lacks_kernels(thing for thing in vars(module).values() if hasattr(thing, "stats"))


def lacks_kernels(functions: Iterable[Any]) -> bool:
    """Return True if Numba has compiled one of these functions for no types, or before its source was changed."""
    for function in functions:
        source = Path(inspect.getfile(function.py_func))
        name = f"{source.stem}.{function.py_func.__qualname__}-*.nbi"
        changed = source.stat().st_mtime
        if not any(index.stat().st_mtime >= changed for index in Path(function.stats.cache_path).glob(name)):
            return True
    return False
