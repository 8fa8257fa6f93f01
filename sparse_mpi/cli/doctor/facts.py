"""Facts of one rank: plain values to gather and print. Nothing here is slow or can crash."""

from __future__ import annotations

import glob
import os
import platform
import shutil
from pathlib import Path
from typing import Any

from sparse_mpi.cli.launch.find import call
from sparse_mpi.cli.records import versions
from sparse_mpi.comm.runtime import LAUNCHERS, takes_device_pointers
from sparse_mpi.kernels import threads

SECONDS = 30.0  # for the program of a GPU's driver
SETTINGS = ("OMP_NUM_THREADS", "OMPI_MCA_mpi_yield_when_idle", "SLURM_JOB_ID")
TRANSPORTS = ("OMPI_MCA_pml", "OMPI_MCA_btl", "UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER", "GLOO_SOCKET_IFNAME")


def facts(MPI: Any = None) -> dict[str, Any]:
    """Return this process's facts; ``MPI`` is mpi4py's module, if any."""
    has_affinity = hasattr(os, "sched_getaffinity")
    known = {
        "host": platform.node(),
        "versions": versions(),
        "cores": sorted(os.sched_getaffinity(0)) if has_affinity else list(range(os.cpu_count() or 1)),
        "threads": threads.limit(),
        "gpus": gpus(),
        "network": [*fabrics(), *interfaces()],
        "transport": {name: os.environ[name] for name in TRANSPORTS if name in os.environ},
        "launcher": {name: os.environ[name] for name in LAUNCHERS if name in os.environ},
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
    }
    return known if MPI is None else known | _of_mpi(MPI)


def _of_mpi(MPI: Any) -> dict[str, Any]:
    levels = {getattr(MPI, f"THREAD_{name.upper()}"): name for name in ("single", "funneled", "serialized", "multiple")}
    try:
        takes, because = takes_device_pointers(MPI, MPI.COMM_WORLD)
    except ValueError as error:
        takes, because = None, str(error)
    return {
        "rank": MPI.COMM_WORLD.rank,
        "size": MPI.COMM_WORLD.size,
        "vendor": MPI.get_vendor()[0],
        "mpi": MPI.Get_library_version().split(",")[0].strip("\0\n "),
        "standard": "{}.{}".format(*MPI.Get_version()),
        "thread level": levels[MPI.Query_thread()],
        "device pointers": takes,  # None: the variable that decides it is set to nonsense
        "device pointers because": because,
    }


def fabrics(ports: str = "/sys/class/infiniband/*/ports/*") -> list[str]:
    """Return device, kind and rate of every active port of InfiniBand or RoCE."""
    found = []
    for port in sorted(glob.glob(ports)):
        if "ACTIVE" in _line(port, "state"):
            found.append(f"{Path(port).parts[-3]}, {_line(port, 'link_layer')} at {_line(port, 'rate')}")
    return found


def interfaces(folders: str = "/sys/class/net/*") -> list[str]:
    """Return name and rate of every TCP interface that is up, except the loopback."""
    up = [of for of in sorted(glob.glob(folders)) if _line(of, "operstate") == "up"]
    rates = {Path(of).name: _line(of, "speed") for of in up}  # Mbit/s; virtual ones tell none, or -1
    return [f"{name} at {int(mbit) / 1e3:g} Gbit/s" if mbit.isdigit() else name for name, mbit in rates.items()]


def _line(folder: str, file: str) -> str:
    try:
        return Path(folder, file).read_text().strip()
    except OSError:
        return ""


def gpus() -> list[str]:
    """Return model, driver and memory of every GPU, by its driver's program."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    done = call(query, os.environ, SECONDS)
    lines = [] if done.returncode else [line.split(", ") for line in done.stdout.strip().splitlines()]
    return [f"{name}, driver {driver}, {memory}" for name, driver, memory in lines]
