"""Records of measurements: JSON files with numbers, command, machine and versions."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from argparse import Namespace
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("sparse_mpi", "numpy", "numba", "mpi4py", "torch", "cupy", "cupy-cuda12x", "cupy-cuda13x")
SCRIPT = "sparse-mpi"  # the command of an installation, beside `python -m sparse_mpi`
NOT_RECORDED = ("run", "json", "plot")  # of a command line: its function, and where output goes


def provenance() -> dict[str, Any]:
    mpi = sys.modules.get("mpi4py.MPI")
    return {
        "command": command(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "versions": versions() | {"mpi": mpi.Get_library_version().split(",")[0] if mpi else None},
    }


def command() -> str:
    """Return this process's command line, without Python's folder."""
    if program() == SCRIPT:
        return shlex.join([SCRIPT, *sys.argv[1:]])
    return shlex.join(["python", *sys.orig_argv[1:]])


def program() -> str:
    return SCRIPT if Path(sys.argv[0]).name == SCRIPT else "python -m sparse_mpi"


def versions() -> dict[str, str]:
    """Return versions of Python and installed packages that matter here, without importing any."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package.partition("-cuda")[0]] = metadata.version(package)
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def options(args: Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if name not in NOT_RECORDED}


def write(file: str | Path, record: dict[str, Any]) -> None:
    """Write a record as JSON. If its last member is a list, each item has a line."""
    text = json.dumps(record, indent=1, default=str)
    last = next(reversed(record), "")
    if isinstance(items := record.get(last), list):
        head = json.dumps(record | {last: []}, indent=1, default=str).removesuffix("[]\n}")
        text = f"{head}[\n" + ",\n".join(json.dumps(item, default=str) for item in items) + "\n]\n}"
    Path(file).write_text(f"{text}\n")


def add_measured(file: str | Path, rows: list[dict[str, Any]], *keys: str) -> None:
    """Add ``rows`` to the record in ``file``, in place of rows with equal values of ``keys``."""
    before = json.loads(Path(file).read_text())["measured"] if Path(file).exists() else []
    new = {tuple(row[key] for key in keys) for row in rows}
    others = [row for row in before if tuple(row[key] for key in keys) not in new]
    write(file, provenance() | {"measured": others + rows})
