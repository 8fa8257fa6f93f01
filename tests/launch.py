"""Programs started as a user starts them: in child processes, under mpiexec or without a launcher, bounded in time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparse_mpi.cli.launch.find import OPEN_MPI, Launch
from sparse_mpi.comm.runtime import LAUNCHERS

ROOT = Path(__file__).parents[1]
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
needs_mpi = pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec")
# What `python -m sparse_mpi run` sets for more ranks than cores, started by anybody, with Open MPI 5 or 4
ALLOWED = OPEN_MPI.variables(Launch(ranks=2, cores=1, root=True))


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
    """What came of such a job; if it hangs, kills all of it and fails with what its processes have said."""
    process = start(ranks, *arguments, **variables)
    try:
        out, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, error = process.communicate()
        pytest.fail(f"{' '.join(arguments)} on {ranks or 'no'} ranks takes more than {seconds:g} s: {out}\n{error}")
    # Why a process failed stands before torchrun's report that one did
    error = error.partition("torch/distributed/elastic/multiprocessing/api.py")[0]
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)
