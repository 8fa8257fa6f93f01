"""A cold cache of kernels is told from a warm one, and `doctor --compile` makes it warm."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from sparse_mpi.tools.bench import progress
from sparse_mpi.tools.cli import main

from ..launch import launch


def some_kernel(x):
    return x


def test_an_index_must_be_there_and_no_older_than_the_source(tmp_path):
    function = SimpleNamespace(py_func=some_kernel, stats=SimpleNamespace(cache_path=str(tmp_path)))
    assert progress.lacks_kernels([function])
    index = tmp_path / "test_kernel_cache.some_kernel-16.py311.nbi"
    index.touch()
    assert not progress.lacks_kernels([function])
    os.utime(index, (0, time.time() - 10**9))
    assert progress.lacks_kernels([function])


def test_without_numba_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    assert progress.cold() is False


@pytest.mark.full("compiles all kernels")
def test_doctor_compiles_into_an_empty_cache(tmp_path):
    pytest.importorskip("numba")
    ask = ("-c", "from sparse_mpi.tools.bench.progress import cold; print(cold())")
    folder = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert launch(None, *ask, **folder).stdout.strip() == "True"
    done = launch(None, "-m", "sparse_mpi", "doctor", "--compile", seconds=250, **folder)
    assert done.returncode == 0 and "functions compiled just now" in done.stdout, done.stdout + done.stderr
    assert launch(None, *ask, **folder).stdout.strip() == "False"


def test_kernels_that_do_not_compile_are_status_1(monkeypatch, capsys):
    from sparse_mpi.tools.doctor import probes

    monkeypatch.setattr(probes.child, "run", lambda *_: probes.Outcome("failed", "cannot cache: no locator", {}))
    monkeypatch.setattr("sparse_mpi.tools.cli.doctor.versions", lambda: {"numba": "1"})
    assert main(["doctor", "--compile"]) == 1
    assert "NUMBA_CACHE_DIR" in capsys.readouterr().out
