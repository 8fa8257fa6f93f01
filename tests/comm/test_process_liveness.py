"""A stopped process is known by its state, and is ended; another process that has its id by then is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from sparse_mpi.comm.job import process_liveness

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def child():
    """A process that sleeps, and its identity as another rank would tell it."""
    process = subprocess.Popen(["sleep", "60"])
    yield (
        process,
        np.array(
            [
                process_liveness.identity()[0],
                process.pid,
                int(process_liveness._fields(process.pid)[process_liveness.BEGAN]),
            ],
            np.int64,
        ),
    )
    process.kill()
    process.wait()


def wait_until(holds):
    until = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_process_is_stopped_only_while_it_is(child):
    process, identity = child
    assert not process_liveness.stopped(identity)
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: process_liveness.stopped(identity))
    os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: not process_liveness.stopped(identity))


def test_a_stopped_process_is_ended(child):
    process, identity = child
    os.kill(process.pid, signal.SIGSTOP)
    process_liveness.kill(identity)
    assert process.wait(10) == -signal.SIGKILL
    assert not process_liveness.stopped(identity)
    process_liveness.kill(identity)  # it is gone: nothing happens


def test_a_later_process_with_the_same_id_is_left_alone(child):
    process, identity = child
    process_liveness.kill(identity - [0, 0, 1])
    assert process.poll() is None and not process_liveness.stopped(identity - [0, 0, 1])


def test_processes_of_other_machines_are_out_of_reach():
    mine = process_liveness.identity()
    assert mine[1] == os.getpid() and process_liveness.same_host(mine, mine)
    assert not process_liveness.same_host(mine + [1, 0, 0], mine)
    unknown = np.zeros(3, np.int64)
    assert not process_liveness.same_host(unknown, unknown)


def test_neighbours_have_ended_some_time_after_that_was_first_seen(child):
    process, identity = child
    mine = process_liveness.identity()
    processes = np.array([mine, identity, identity - [0, 0, 1], mine + [1, 0, 0]])
    neighbours = process_liveness.Neighbours(processes, 0)
    assert neighbours.stopped() == [] and neighbours.ended(3600) == []
    assert neighbours.ended(0) == [2], "another process has its id by now"
    neighbours.kill(1)
    wait_until(lambda: set(neighbours.ended(0)) == {1, 2})
    assert neighbours.ended(3600) == []
