"""A stopped process is known by its state, and is ended; one that has ended is known as such some time later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from sparse_mpi.comm.job.process_liveness import Neighbours, identity

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def neighbours_of_mine(*others: int) -> Neighbours:
    """Those that rank 0, which is this process, has: the processes with these ids, on its machine."""
    mine = identity()
    return Neighbours(np.array([mine, *([mine[0], number] for number in others)]), 0)


def wait_until(holds):
    until = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_process_is_stopped_only_while_it_is(child):
    neighbours = neighbours_of_mine(child.pid)
    assert neighbours.stopped() == []
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: neighbours.stopped() == [1])
    os.kill(child.pid, signal.SIGCONT)
    wait_until(lambda: neighbours.stopped() == [])


def test_a_stopped_process_is_ended(child):
    neighbours = neighbours_of_mine(child.pid)
    os.kill(child.pid, signal.SIGSTOP)
    neighbours.kill(1)
    assert child.wait(100) == -signal.SIGKILL
    assert neighbours.stopped() == []
    neighbours.kill(1)  # it is gone: nothing happens


def test_a_later_process_with_the_same_id_is_left_alone(child):
    neighbours = neighbours_of_mine(child.pid)
    neighbours._processes[1]._ident = (child.pid, 1.0)  # it began at another time
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
    assert neighbours.stopped() == [] and neighbours.ended(0) == [1]
    neighbours.kill(1)
    assert child.poll() is None


def test_processes_of_other_machines_are_out_of_reach():
    mine = identity()
    assert mine[1] == os.getpid()
    assert Neighbours(np.array([mine, mine + [1, 0]]), 0).ended(0) == []
    unknown = np.zeros((2, 2), np.int64)
    assert Neighbours(unknown, 0).ended(0) == []


def test_neighbours_have_ended_some_time_after_that_was_first_seen(child):
    gone = subprocess.Popen(["true"])
    gone.wait()
    neighbours = neighbours_of_mine(child.pid, gone.pid)
    assert neighbours.stopped() == [] and neighbours.ended(3600) == []
    assert neighbours.ended(0) == [2], "it was gone before it was seen"
    neighbours.kill(1)
    wait_until(lambda: set(neighbours.ended(0)) == {1, 2})
    assert neighbours.ended(3600) == []
