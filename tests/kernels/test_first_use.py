"""The first use of kernels: rank 0 says that they are compiled, one process does it, others wait, and not for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ..launch import ROOT

numba = pytest.importorskip("numba")
first_use = pytest.importorskip("sparse_mpi.kernels.cpu.first_use")
PROGRAM = """
import sys, time
from pathlib import Path
from sparse_mpi.kernels.cpu import first_use

first_use.QUIET, first_use.LONGEST = 0.0, float(sys.argv[1])
save = first_use.SharedCache.save_overload
def counted(self, sig, data):
    print("compiles", flush=True)
    while sys.argv[2:] and not Path(sys.argv[2]).exists():
        time.sleep(0.02)
    save(self, sig, data)
first_use.SharedCache.save_overload = counted

import kernels_of_the_test
print(kernels_of_the_test.twice(3), flush=True)
"""
KERNELS = """
from sparse_mpi.kernels.cpu.first_use import compiled

@compiled
def once(x):
    return x

@compiled
def twice(x):
    return once(x) + once(x)
"""
COMPILES = ["compiles", "compiles", "6"]
SAYS = "sparse_mpi: compiling kernels, once per installation"


@pytest.fixture
def start(tmp_path):
    """Start a process that calls kernels, with a cache of the test's own; it may compile until there is a file."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "kernels_of_the_test.py").write_text(KERNELS)
    given = {name: value for name, value in os.environ.items() if not name.endswith(("RANK", "RANKID", "PROCID"))}
    given |= {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    started = []

    def start(*until: object, patience: float = 60.0, **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(tmp_path / "program.py"), str(patience), *map(str, until)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=given | variables, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def printed(process: subprocess.Popen[str], says: bool = False) -> list[str]:
    """What it has printed until its good end, after which it has said that kernels are compiled, or has not."""
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0 and (SAYS in error) == says, error
    return out.splitlines()


@pytest.mark.jobs
def test_one_process_compiles_and_the_others_wait_for_it(start, tmp_path):
    """Rank 0 is one of those that wait, and says so; the others say nothing."""
    first = start(tmp_path / "go", PMI_RANK="1")
    assert first.stdout.readline() == "compiles\n"
    others = [start(PMI_RANK="2"), start(RANK="0")]
    assert others[1].stderr.readline().startswith(SAYS)
    (tmp_path / "go").touch()
    assert printed(first) == ["compiles", "6"] and [printed(other) for other in others] == [["6"], ["6"]]


def test_rank_0_repeats_it_while_more_kernels_are_compiled(tmp_path, monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(first_use, "monotonic", lambda: now[0])
    for name in first_use.RANKS:
        monkeypatch.delenv(name, raising=False)
    turn = first_use.Turn()
    for seconds in (0, 2, 3, 7, 8, 9, 20):  # a kernel, and those that it calls
        now[0] = 100.0 + seconds
        turn.take(str(tmp_path))
    os.close(turn._lock)
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("sparse_mpi: compiling kernels, ") for line in lines[1:]] == ["8 s", "20 s"]
    assert len(lines) == 3 and lines[0].startswith(SAYS)


@pytest.mark.jobs
def test_a_process_that_dies_or_freezes_while_it_compiles_stops_nobody(start, tmp_path):
    """The last one, which is rank 0, says that it compiles."""
    for number in (signal.SIGKILL, signal.SIGSTOP):
        process = start(tmp_path / "never")
        assert process.stdout.readline() == "compiles\n"
        process.send_signal(number)
    assert printed(start(patience=0.5), says=True) == COMPILES


def test_without_a_folder_for_a_cache_each_process_compiles(start, tmp_path):
    """Nor one for temporary files: there is nothing to wait for."""
    program, none = tmp_path / "program.py", "import numba.core.caching as c; c.CacheImpl._locator_classes = []\n"
    program.write_text(none + program.read_text())
    assert printed(start(TMPDIR=str(tmp_path / "none"))) == ["6"]


def test_the_folder_for_temporary_files_must_be_of_this_user_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(first_use.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = first_use.private_folder()
    assert folder == str(tmp_path / f"sparse_mpi-kernels-{os.getuid()}")
    os.chmod(folder, 0o755)  # others could have written into it
    assert first_use.private_folder() == ""


def test_a_full_disk_stops_nobody(monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    def one_more(x):
        return x + 1

    monkeypatch.setattr(first_use.FunctionCache, "save_overload", full)
    assert first_use.compiled(one_more)(2) == 3


def test_a_kernel_that_does_not_compile_ends_its_turn():
    def wrong(x):
        return x.no_such_member

    with pytest.raises(numba.TypingError):
        first_use.compiled(wrong)(1.0)
    assert first_use.TURN._depth == 0 and first_use.TURN._lock is None
