"""The facts of one rank: plain values that can be gathered and printed. Nothing here is slow or can crash."""

from __future__ import annotations

import os
import platform
import shutil
from typing import Any

from sparse_mpi.cli.launch.find import call
from sparse_mpi.cli.records import versions
from sparse_mpi.comm.runtime import LAUNCHERS, takes_device_pointers
from sparse_mpi.kernels import threads

SECONDS = 30.0  # for the program of a GPU's driver
SETTINGS = ("OMP_NUM_THREADS", "OMPI_MCA_mpi_yield_when_idle", "SLURM_JOB_ID")


def facts(MPI: Any = None) -> dict[str, Any]:
    """Return the facts of this process; ``MPI`` is mpi4py's module, None where there is none."""
    has_affinity = hasattr(os, "sched_getaffinity")
    known = {
        "host": platform.node(),
        "versions": versions(),
        "cores": sorted(os.sched_getaffinity(0)) if has_affinity else list(range(os.cpu_count() or 1)),
        "threads": threads.limit(),
        "gpus": gpus(),
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


def gpus() -> list[str]:
    """Return model, driver and memory of every GPU, by its driver's own program; empty where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    done = call(query, os.environ, SECONDS)
    lines = [] if done.returncode else [line.split(", ") for line in done.stdout.strip().splitlines()]
    return [f"{name}, driver {driver}, {memory}" for name, driver, memory in lines]
