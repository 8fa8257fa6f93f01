"""Where a number comes from: every record of a measurement or a training run carries this."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("sparse_mpi", "numpy", "numba", "mpi4py", "torch", "cupy")


def provenance() -> dict[str, Any]:
    """With what, when and how this process was run; under MPI, with which MPI."""
    mpi = sys.modules.get("mpi4py.MPI")
    versions = {"python": platform.python_version(), "mpi": mpi.Get_library_version().split(",")[0] if mpi else None}
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "versions": versions | {name: version for name in PACKAGES if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
