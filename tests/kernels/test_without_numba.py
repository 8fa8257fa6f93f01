"""The kernels of NumPy take the place of Numba's where that is missing or of no use."""

from __future__ import annotations

import os
import sys

from sparse_mpi import kernels
from sparse_mpi.kernels import array

from ..launch import launch


def test_without_numba_the_array_kernels_are_used(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert kernels.host.__wrapped__() is array


def test_a_numba_that_cannot_be_imported_is_done_without(tmp_path):
    """As where NumPy is newer than it knows: a warning, and the same bytes."""
    problem = "Numba needs NumPy 2.4 or less. Got NumPy 2.5."
    (tmp_path / "numba.py").write_text(f"raise ImportError({problem!r})")
    program = (
        "import numpy, sparse_mpi\n"
        "for _ in range(2):\n"
        "    print(sparse_mpi.sparse_allreduce(numpy.arange(9.0), k=2, comm=sparse_mpi.comm.NullComm())[0].indices)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = launch(None, "-c", program, PYTHONPATH=path)
    assert done.returncode == 0 and done.stdout.splitlines() == ["[7 8]", "[7 8]"], done.stderr
    assert done.stderr.count("RuntimeWarning: Numba cannot be imported, NumPy is used instead") == 1
    doctor = launch(None, "-m", "sparse_mpi", "doctor", "--compile", PYTHONPATH=path)
    assert doctor.returncode == 1 and problem in done.stderr and problem in doctor.stdout
