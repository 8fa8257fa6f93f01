"""What the processes of a job inherit and need beside the settings of an MPI, and the cores of this machine."""

from __future__ import annotations

import os
import pwd
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

# What launchers tell their processes: a process that inherits it would try to join the job of its parent
INHERITED = (
    *("OMPI_COMM_", "OMPI_UNIVERSE_SIZE", "OMPI_FILE_LOCATION", "PRTE_LAUNCHED", "PMIX_", "PMI_", "PMI2_"),
    *("MPI_LOCAL", "HYDI_", "PALS_", "SLURM_", "MV2_COMM_"),
)
UNBUFFERED = "PYTHONUNBUFFERED"
ROOT = Path(__file__).parents[3]  # the folder that holds the package
TOPOLOGY = Path("/sys/devices/system/cpu")
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: "200000 100000" is two CPUs, "max 100000" no limit


def dropped(environment: Mapping[str, str], keep: tuple[str, ...] = ()) -> list[str]:
    """Return the variables by which a launcher told this process of its job, except those that start like ``keep``."""
    keep = (*keep, "PMIX_MCA_")  # settings of the user
    return sorted(name for name in environment if name.startswith(INHERITED) and not name.startswith(keep))


def outside_of_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    gone = dropped(environment)
    return {name: value for name, value in environment.items() if name not in gone}


def needed(environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """Return what the ranks of any MPI need; the caller lets the user's own values win, except for ``PYTHONPATH``."""
    found = {"OMP_NUM_THREADS": str(threads), UNBUFFERED: "1"}
    if "HOME" not in environment:
        found["HOME"] = home()  # Open MPI does not start without
    if not _installed():
        others = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(ROOT))]
        found["PYTHONPATH"] = os.pathsep.join([str(ROOT), *others])
    return found


def home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return tempfile.gettempdir()


def _installed() -> bool:
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return str(ROOT) in places or "site-packages" in ROOT.parts


def cores(topology: Path = TOPOLOGY, quota: Path = QUOTA) -> int:
    """Return the number of physical cores that this process, or a container's quota, may use; at least 1."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    physical = len({_siblings(topology, cpu) for cpu in allowed})
    return max(1, min(physical, _limit(quota) or physical))


def _siblings(topology: Path, cpu: int) -> str:
    try:
        return (topology / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _limit(quota: Path) -> int | None:
    try:
        allowed, period = quota.read_text().split()
        return int(allowed) // int(period)
    except (OSError, ValueError):
        return None
