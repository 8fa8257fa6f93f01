"""The fixture ``survival``: skip where ranks of real jobs do not survive each other."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ..launch import ROOT


@pytest.fixture(scope="session")
def survival():
    """Skip where MPI has no such thing."""
    command = (sys.executable, "-m", "sparse_mpi", "run", "--elastic", "--dry-run", "-n", "2", __file__)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        assert "--elastic needs an MPI whose ranks survive" in done.stderr
        pytest.skip(done.stderr.strip())
