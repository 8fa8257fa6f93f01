"""How many cores a job may use on this machine."""

from __future__ import annotations

import os
from pathlib import Path

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
