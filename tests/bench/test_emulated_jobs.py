"""Emulated hosts for real: their links, the jobs on them, and that nothing of them stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sparse_mpi_bench.emulation import hosts as emulation
from sparse_mpi_bench.emulation import launch
from sparse_mpi_bench.emulation.hosts import NAMESPACES, SWITCH, emulate
from sparse_mpi_bench.emulation.probe import probe

from ..launch import ROOT, needs_mpi
from .test_changing_hosts import queues
from .test_chaos import wait_for

# Every rank leaves its process number in the folder that is its argument, and stays
SLEEPER = """
import os, sys, time
from pathlib import Path
from mpi4py import MPI
file = Path(sys.argv[1], f"{MPI.COMM_WORLD.rank}.pid")
file.with_suffix(".part").write_text(str(os.getpid()))
file.with_suffix(".part").rename(file)
time.sleep(600)
"""


def traces(prefix):
    places = (NAMESPACES, Path(tempfile.gettempdir()))
    return [file.name for place in places for file in place.glob(f"{prefix}-*")]


def running(pid):
    return emulation._alive(int(pid))


def segment(hosts):
    shown = subprocess.check_output(["ip", "-n", hosts.name(1), "-d", "-j", "link", "show", "dev", "eth0"])
    return json.loads(shown)[0]["gso_max_size"]


def test_hosts_have_limited_links_of_their_own(possible):
    before = set(os.listdir("/sys/class/net"))
    with emulate(2, 50_000_000) as hosts, emulate(2, None) as others:  # side by side
        for number, link in ((1, "eth0"), (2, "eth0"), (SWITCH, "port1"), (SWITCH, "port2")):
            assert re.search("tbf.*rate 50Mbit", queues(hosts, number, link))
            assert "tbf" not in queues(others, number, link)
        # Segments fit the bucket, which would cut them into packets otherwise
        assert segment(hosts) == emulation.burst(50_000_000) // 2 == 3125 < segment(others)
        assert not {"switch", "port1", "port2"} & (set(os.listdir("/sys/class/net")) - before)
        measured = probe(others, seconds=0.01)
        assert measured.rate > 0 and measured.trip > 0
        assert len(measured.each) == 2 and min(measured.each) > 0 and 0 < measured.busy <= 1
        assert traces(hosts.prefix) and traces(others.prefix)
    assert not traces(hosts.prefix) and not traces(others.prefix)


@pytest.fixture
def handler():
    """What signals did before: nothing of their own."""

    def nothing(number, frame):
        pass

    before = {number: signal.signal(number, nothing) for number in emulation.STOPPING}
    yield nothing
    for number, former in before.items():
        signal.signal(number, former)


@pytest.mark.thin(1)
@pytest.mark.parametrize("calls", [0, 1, 8, 16])
@pytest.mark.parametrize("number", [None, *emulation.STOPPING])
def test_half_of_a_set_up_is_removed(possible, handler, monkeypatch, calls, number):
    real, made = emulation.call, []

    def call(*command):
        made.append(command)
        if len(made) > calls:
            if number is None:
                raise RuntimeError("no more")
            os.kill(os.getpid(), number)
        real(*command)

    monkeypatch.setattr(emulation, "call", call)
    with pytest.raises(SystemExit if number else RuntimeError) as stop, emulate(2, None):
        raise AssertionError("it was set up")
    assert str(stop.value) == (str(128 + number) if number else "no more")
    assert not traces(f"sparse_mpi-{os.getpid()}")
    assert all(signal.getsignal(each) is handler for each in emulation.STOPPING)


def test_an_ignored_signal_stays_ignored(possible, handler):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with emulate(2, None):
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_leftovers_of_a_killed_process_are_removed(possible):
    code = (
        "import subprocess, time; from sparse_mpi_bench.emulation.hosts import emulate\n"
        "with emulate(2, None) as hosts:\n"
        "    staying = subprocess.Popen(hosts.inside(1, 'sleep', '600'), stdout=subprocess.DEVNULL)\n"
        "    print(hosts.prefix, staying.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        prefix, staying = process.stdout.readline().split()
        wait_for(lambda: emulation._processes(f"{prefix}-1"))
        emulation.remove_leftovers()
        assert len(traces(prefix)) == 4 and running(staying)  # it is alive
        process.kill()
    assert len(traces(prefix)) == 4
    with emulate(2, None):
        assert not traces(prefix) and not running(staying)


@needs_mpi
@pytest.mark.jobs
def test_a_job_that_runs_out_of_time_ends_with_all_its_processes(possible, tmp_path):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    with emulate(2, 10**9) as hosts:
        assert launch.run(hosts, launch.find_launcher(), [str(tmp_path / "sleeper.py"), str(tmp_path)], 2) == 124
        assert not emulation._processes(hosts.name(SWITCH))


@needs_mpi
@pytest.mark.jobs
@pytest.mark.thin(0)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_job_and_removes_the_hosts(possible, tmp_path, number):
    (program := tmp_path / "program.py").write_text(SLEEPER)
    command = [sys.executable, "-m", "sparse_mpi", "bench", "network", "--ranks", "2", "--rate", "none"]
    default = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # whatever its parent ignores
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "cwd": ROOT}
    with subprocess.Popen([*command, "--", str(program), str(tmp_path)], **quiet, **default) as process:
        wait_for(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
        ranks = [file.read_text() for file in tmp_path.glob("*.pid")]
        assert len(traces(f"sparse_mpi-{process.pid}")) == 4 and all(map(running, ranks))
        process.send_signal(number)
        process.wait(240)
    assert process.returncode == 128 + number
    assert not traces(f"sparse_mpi-{process.pid}")
    wait_for(lambda: not any(map(running, ranks)))
