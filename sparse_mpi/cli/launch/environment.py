"""The environment of a job: what its processes inherit, and what they need beside the settings of an MPI.

How many cores a job may use on this machine.
"""

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


def dropped(environment: Mapping[str, str], keep: tuple[str, ...] = ()) -> list[str]:
    """Return the variables by which a launcher told this process of its job, except those that start like ``keep``."""
    keep = (*keep, "PMIX_MCA_")  # settings of the user
    return sorted(name for name in environment if name.startswith(INHERITED) and not name.startswith(keep))


def outside_of_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what a launcher told this process, for a process that joins no job."""
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
    if folder := kernel_cache({**environment, **found}):
        found["NUMBA_CACHE_DIR"] = folder
    return found


def home() -> str:
    """Return the home that the system knows for this user, or the folder for temporary files."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return tempfile.gettempdir()


def _installed() -> bool:
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return str(ROOT) in places or "site-packages" in ROOT.parts


def kernel_cache(environment: Mapping[str, str]) -> str | None:
    """Return a folder for Numba's cache if it would find none and fail: package and home cannot be written to.

    The folder belongs to this user alone, because loading a cache runs what is in it.
    """
    package, user = ROOT / "sparse_mpi" / "kernels" / "cpu", Path(environment["HOME"]) / ".cache"
    while not user.exists() and user != user.parent:
        user = user.parent
    if "NUMBA_CACHE_DIR" in environment or os.access(package, os.W_OK) or os.access(user, os.W_OK):
        return None
    folder = Path(tempfile.gettempdir()) / f"sparse_mpi-kernels-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    return str(folder) if status.st_uid == os.getuid() and not status.st_mode & 0o077 else None


TOPOLOGY = Path("/sys/devices/system/cpu")
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: "200000 100000" is two CPUs, "max 100000" no limit


def cores(topology: Path = TOPOLOGY, quota: Path = QUOTA) -> int:
    """Return the number of physical cores that this process may run on, at least 1.

    The hardware threads of a core count once. A container's quota of processor time limits the number too.
    """
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    physical = len({_siblings(topology, cpu) for cpu in allowed})
    return max(1, min(physical, _limit(quota) or physical))


def _siblings(topology: Path, cpu: int) -> str:
    """Return the hardware threads of a CPU's core as the kernel lists them, or the CPU alone where it does not say."""
    try:
        return (topology / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _limit(quota: Path) -> int | None:
    """Return the number of CPUs that the quota is worth, rounded down, or None where there is no quota."""
    try:
        allowed, period = quota.read_text().split()
        return int(allowed) // int(period)
    except (OSError, ValueError):
        return None
