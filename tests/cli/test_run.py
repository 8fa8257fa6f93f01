"""The launcher as users have it: jobs that end well, badly and early, and what they leave behind."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparse_mpi.__main__ import main

from ..launch import ROOT, needs_mpi
from ..prefork import copied
from .launcher import finish, running, start

pytestmark = needs_mpi
PATH = os.environ.get("PATH", os.defpath)
NOBODY = 65534
PROGRAM = """
import os, signal, sys, time
from mpi4py import MPI

import sparse_mpi

comm, what = MPI.COMM_WORLD, sys.argv[1]

def say(line):
    os.write(1, f"{line}\\n".encode())  # whole: MPICH may put the output of other ranks between two writes

def save(number, frame):
    time.sleep(0.5)
    say("saved")
    sys.exit(75)

signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGUSR1, save)
comm.barrier()
say(f"rank {comm.rank} of {comm.size}, {os.environ['OMP_NUM_THREADS']} threads, {sys.argv[2:]}")
exec(what)
"""

WELL, WAITS, EXITS = "pass", "time.sleep(600)", "sys.exit(3)"
RAISES = "if comm.rank == 1: raise ValueError('for the test')"
# A job script: a server, a worker whose parent ends while the job runs, and the job in place of the script
SCRIPT = """
sleep 600 >/dev/null 2>&1 & server=$!
sh -c 'sleep 600 & echo $! >"$0.worker"; wait' "$0" >/dev/null 2>&1 & parent=$!
until [ -s "$0.worker" ]; do sleep 0.01; done
echo $server $parent $(cat "$0.worker") >"$0"
exec "$@"
"""
# Ranks with children of their own: one, one in a session of its own, and one that knows nothing of the job
PARENT = """
import subprocess
if comm.rank == 0:
    os.kill(int(open(sys.argv[2]).read().split()[1]), signal.SIGKILL)
for options in ({}, {"start_new_session": True}, {"start_new_session": True, "env": {}}):
    subprocess.Popen(["/bin/sh", "-c", "exec >/dev/null 2>&1; sleep 600; :", sys.argv[2]], **options)
comm.barrier()
say("parent")
"""
DIES = "comm.rank == 1 and os.kill(os.getpid(), signal.SIGKILL); time.sleep(600)"
SUM = """
import sys
import numpy as np
import sparse_mpi
import sparse_mpi.kernels.cpu
total = sparse_mpi.sparse_allreduce(np.full(9, 2, np.float32), k=9, algorithm=sys.argv[1]).total
print(f"{getattr(total, 'values', total)[0]}\\n", end="", flush=True)  # in one piece
"""


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def until_up(job: subprocess.Popen[str], ranks: int, *said: str) -> None:
    wanted = sorted(["rank ", *said] * ranks)  # lines of ranks come in any order
    lines = [job.stdout.readline() for _ in wanted]
    assert sorted(line if line in said else line[:5] for line in lines) == wanted, lines


@pytest.mark.thin(0, what=(EXITS, DIES))
@pytest.mark.parametrize(("what", "statuses"), [(WELL, {0}), (EXITS, {3}), (RAISES, {1}), (DIES, {9, 137})])
def test_the_exit_status_is_the_programs(python, program, tmp_path, what, statuses):
    """MPICH's mpiexec returns the bare number of the signal that killed a rank."""
    status, out, error = finish(start(python, tmp_path, "-n", 2, program, what, "--an", "option"), tmp_path)
    assert status in statuses, error
    if what != DIES:  # what a killed rank printed may be lost
        assert sorted(line[:9] for line in out.splitlines() if line.startswith("rank")) == ["rank 0 of", "rank 1 of"]
        assert out.count("['--an', 'option']") == 2
    assert ("ValueError: for the test" in error) == (what == RAISES)


@pytest.mark.jobs
def test_the_example_of_the_readme(python, tmp_path):
    """As root, if the tests run as root; on a shorter gradient."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    (example := tmp_path / "example.py").write_text(code.replace("1_000_000", "10_000"))
    program = copied(str(example)) if python == sys.executable else [example]
    status, out, error = finish(start(python, tmp_path, "-n", 4, *program), tmp_path)
    assert status == 0 and len(set(re.findall(r"rank (\d) sent [\d,]+ bytes", out))) == 4, error


@pytest.mark.thin(0, what=(WELL, WAITS))
@pytest.mark.parametrize(
    ("what", "number", "statuses"),
    [
        *((WELL, 0, {0}), (RAISES, 0, {1}), (WAITS, signal.SIGINT, {130, 1, 2})),
        *((WAITS, signal.SIGTERM, {75}), (WAITS, signal.SIGUSR1, {75})),
    ],
)
def test_a_job_ends_its_own_processes_and_no_others(python, program, tmp_path, what, number, statuses):
    """Ranks that are told to end can save their work before."""
    file = tmp_path / "pids"
    job = start(python, tmp_path, "-n", 2, program, PARENT + what, file, before=("sh", "-c", SCRIPT, str(file)))
    until_up(job, 2, "parent\n")
    if number:
        job.send_signal(number)
    server, _, worker = map(int, file.read_text().split())
    status, out, _ = finish(job, tmp_path)
    for one in (server, worker):
        os.kill(one, signal.SIGKILL)  # it lives
    assert status in statuses and (status != 75 or out.split() == ["saved", "saved"]), out


def test_an_error_of_all_ranks_comes_once(program, tmp_path):
    status, _, error = finish(
        start(sys.executable, tmp_path, "-n", 3, program, "sparse_mpi.SparseAllreduce(100, density=1.5)"), tmp_path
    )
    assert status == 1 and error.count("ValueError: density must be in (0, 1], got 1.5") == 1, error
    assert error.count("Traceback") == 1


def test_an_mpiexec_that_is_killed_leaves_no_ranks(python, program, tmp_path):
    job = start(python, tmp_path, "-n", 2, program, WAITS)
    until_up(job, 2)
    (child,) = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    status, _, _ = finish(job, tmp_path)
    assert status == 137


def test_a_launcher_that_is_killed_leaves_no_ranks(program, tmp_path):
    job = start(sys.executable, tmp_path, "-n", 2, program, WAITS)
    until_up(job, 2)
    job.kill()
    job.wait()
    deadline = time.monotonic() + 240
    while running(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert running(tmp_path) == []


def test_a_dry_run_is_a_line_for_a_shell(python, program, tmp_path):
    status, line, error = finish(start(python, tmp_path, "-n", 2, "--dry-run", program, WELL, "it's"), tmp_path)
    assert status == 0 and line.count("\n") == 1, error
    assert "mpiexec" in line and shlex.split(line)[-2:] == [WELL, "it's"]
    done = subprocess.run(["sh", "-c", line], env={"PATH": PATH}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stdout.count('["it\'s"]') == 2, done.stderr


@pytest.mark.parametrize("place", ["missing", "program.py"])
def test_metrics_that_cannot_be_written_are_refused_before_the_job_starts(
    program, tmp_path, place, monkeypatch, capsys
):
    monkeypatch.setenv("SPARSE_MPI_METRICS_DIR", str(program.with_name(place)))
    with pytest.raises(SystemExit) as ended:
        main(["run", "-n", "2", str(program)])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "SPARSE_MPI_METRICS_DIR must be a folder" in said and said.count("\n") == 1


def test_a_module_is_run(tmp_path):
    job = start(sys.executable, tmp_path, "-n", 2, "-m", "mpi4py.bench", "helloworld")
    status, out, error = finish(job, tmp_path)
    assert status == 0 and out.count("Hello, World!") == 2, error


def as_nobody(command: list[str]) -> list[str]:
    """``command`` as an ordinary user. Where that user must not enter the folder of this Python, on a view of the
    file system in which it may."""
    line = shlex.join(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command])
    top = Path("/", *Path(sys.executable).resolve().parts[1:2])
    if top.stat().st_mode & 0o005 == 0o005:
        return ["sh", "-c", line]
    kept = Path("/", *Path(sys.executable).resolve().parts[1:3])
    mounts = f"mkdir -p {kept}; mount --bind $D {kept}"
    return [
        *("unshare", "--mount", "sh", "-ec"),
        f"D=$(mktemp -d); mount --bind {kept} $D; mount -t tmpfs -o mode=755 tmpfs {top}; {mounts}; umount $D; "
        f"rmdir $D; cd {shlex.quote(str(ROOT))}; exec {line}",
    ]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root becomes an ordinary user")
@pytest.mark.parametrize(
    ("algorithm", "given"),
    [
        ("dense", {}),  # looks for a place for kernels, and compiles none
        pytest.param("topka", {}, marks=pytest.mark.full("compiles kernels in each process, which takes 10 s")),
        pytest.param("dense", {"HOME": "/nonexistent"}, marks=pytest.mark.full("none is harder")),
    ],
)
def test_an_ordinary_user_without_a_home(python, tmp_path, algorithm, given):
    (program := tmp_path / "program.py").write_text(SUM)
    tmp_path.chmod(0o755)
    for folder in (*tmp_path.parents, *Path(python).parents):
        if folder.stat().st_mode & 0o001 == 0 and str(folder).startswith("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o001)
    command = as_nobody([str(python), "-m", "sparse_mpi", "run", "-n", "2", str(program), algorithm])
    done = subprocess.run(command, cwd=ROOT, env={"PATH": PATH} | given, capture_output=True, text=True, timeout=240)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no view of the file system of its own: {done.stderr.strip()}")
    assert done.returncode == 0 and sorted(done.stdout.split()) == ["4.0", "4.0"], done.stderr
