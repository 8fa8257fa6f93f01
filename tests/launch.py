"""Programs started as a user starts them: in child processes, under mpiexec or without a launcher, bounded in time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparse_mpi.comm.runtime import LAUNCHERS

ROOT = Path(__file__).parents[1]
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
needs_mpi = pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec")
# Open MPI refuses root, and more processes than cores, unless told
ALLOWED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_btl": "^ofi",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def start(ranks: int | None, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start ``python *arguments`` on ``ranks`` MPI ranks, None for no launcher, in a session of its own."""
    launcher = [str(MPIEXEC), "-n", str(ranks)] if ranks else []
    # Unbuffered, Python writes a line in pieces, and Open MPI 5.0.9 joins pieces of several ranks
    kept = {name: value for name, value in os.environ.items() if name not in (*LAUNCHERS, "PYTHONUNBUFFERED")}
    return subprocess.Popen(
        [*launcher, sys.executable, *arguments],
        cwd=ROOT,
        env=ALLOWED | kept | {"PYTHONPATH": str(ROOT)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def launch(
    ranks: int | None, *arguments: str, seconds: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What came of such a job; kills all of it if it hangs."""
    process = start(ranks, *arguments, **variables)
    try:
        out, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)
