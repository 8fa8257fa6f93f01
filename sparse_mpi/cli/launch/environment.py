"""The environment of a job's processes, and this machine's cores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil

# Variables of launchers for their processes: a process that inherits them would try to join its parent's job
INHERITED = (
    *("OMPI_COMM_", "OMPI_UNIVERSE_SIZE", "OMPI_FILE_LOCATION", "PRTE_LAUNCHED", "PMIX_", "PMI_", "PMI2_"),
    *("MPI_LOCAL", "HYDI_", "PALS_", "SLURM_", "MV2_COMM_"),
)
UNBUFFERED = "PYTHONUNBUFFERED"
ROOT = Path(__file__).parents[3]  # the folder that holds the package
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: "200000 100000" is two CPUs, "max 100000" no limit


def dropped(environment: Mapping[str, str]) -> list[str]:
    """Return a launcher's variables for this process; PMIX_MCA_ begins the user's settings."""
    return sorted(name for name in environment if name.startswith(INHERITED) and not name.startswith("PMIX_MCA_"))


def outside_of_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    gone = dropped(environment)
    return {name: value for name, value in environment.items() if name not in gone}


def needed(environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """Return the variables for ranks of any MPI; the user's own win, except ``PYTHONPATH``."""
    found = {"OMP_NUM_THREADS": str(threads), UNBUFFERED: "1", "HOME": home()}
    if not {"site-packages", "dist-packages"} & set(ROOT.parts):
        others = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(ROOT))]
        found["PYTHONPATH"] = os.pathsep.join([str(ROOT), *others])
    return found


def home() -> str:
    """Return a folder for the variable HOME, without which Open MPI does not start."""
    found = os.path.expanduser("~")
    return tempfile.gettempdir() if found == "~" else found


def cores(quota: Path = QUOTA) -> int:
    """Return the number of physical cores that this process, or a container's quota, may use; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(filter(None, (allowed, psutil.cpu_count(logical=False), _limit(quota))), default=1)


def _limit(quota: Path) -> int | None:
    try:
        allowed, period = quota.read_text().split()
        return int(allowed) // int(period)
    except (OSError, ValueError):
        return None
