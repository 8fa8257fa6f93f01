"""Objects that the package sparse_mpi_bench adds to the command line, by entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sparse_mpi.cli.values import Refused

COMMANDS, HOOKS = "sparse_mpi.commands", "sparse_mpi.hooks"  # groups of entry points
REMEDY = "which is not installed; in a checkout: pip install ./bench"


def commands() -> dict[str, EntryPoint]:
    """Return installed extensions' commands by name; loading one gives its ``add_parser``."""
    return {entry.name: entry for entry in entry_points(group=COMMANDS)}


def hook(name: str, purpose: str) -> Any:
    """Return the object that an extension registers as ``name``; Refused names the ``purpose``, like "--plot"."""
    found = next(iter(entry_points(group=HOOKS, name=name)), None)
    if found is None:
        raise Refused(f"{purpose} needs the package sparse_mpi_bench, {REMEDY}")
    return found.load()
