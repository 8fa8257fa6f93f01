"""pytest on several MPI ranks at once, without hanging: a plugin that keeps the ranks in step.

After every phase of every test the ranks swap outcomes, with a deadline of SPARSE_MPI_TEST_LIMIT seconds
(60). A failure on any rank fails the test on all of them with that rank's traceback; ranks that do not come
are named and the job is aborted. Only rank 0 prints.
"""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import time
import traceback
import zlib

import numpy as np
import pytest
from mpi4py import MPI

from sparse_mpi.comm.base import Traffic
from sparse_mpi.comm.mpi import MPIComm

FAILED = 1


class MPIHarness:
    """The plugin, and what the fixture ``ranks`` gives to the tests: ``size``, ``run`` and ``ordered``."""

    ordered = 3  # the most ranks whose floating-point numbers the transport adds up in their order, as World does

    def __init__(self, config: pytest.Config) -> None:
        self._comm = MPIComm(MPI.COMM_WORLD)
        self._control = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self._control.rank, self._control.size
        self._limit = float(os.environ.get("SPARSE_MPI_TEST_LIMIT", "60"))
        self._runs = 0
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            self._stderr = os.fdopen(os.dup(2), "w")
        faulthandler.register(signal.SIGTERM, file=self._stderr, all_threads=True, chain=True)
        if self.rank > 0:
            config.option.xmlpath = None

    def run(self, fn):
        """``[fn(comm) for every rank]`` on every rank; raises what the first rank that failed raised."""
        vars(self._comm.traffic).update(vars(Traffic()))  # which communicators split off before share
        self._runs += 1
        result, error, text = None, None, ""
        try:
            result = fn(self._comm)
        except Exception as raised:
            error, text = raised, traceback.format_exc()
        failed = self._swap(f"run {self._runs}", error is not None, text)
        outcomes = self._control.allgather((result, error, text))
        if failed:
            _, first, text = outcomes[failed[0]]
            raise first from RuntimeError(f"on rank {failed[0]} of {self.size}:\n{text}")
        return [value for value, _, _ in outcomes]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session):
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if self.rank > 0 and reporter is not None:
            reporter._tw._file = io.StringIO()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        failed = self._swap(f"{item.nodeid}, {call.when}", report.failed, report.longreprtext)
        if failed:
            text = self._control.bcast(report.longreprtext, failed[0])
            report.outcome = "failed"
            report.longrepr = f"failed on ranks {failed} of {self.size}; on rank {failed[0]}:\n{text}"
        return report

    def _swap(self, what: str, failed: bool, text: str) -> list[int]:
        """The ranks that failed in ``what``. Aborts the job when a rank is late or is somewhere else."""
        mine = np.array([failed, zlib.crc32(what.encode())])
        theirs = np.full((self.size, 2), -1)
        receives = [self._control.Irecv(theirs[peer], peer) for peer in range(self.size)]
        sends = [self._control.Isend(mine, peer) for peer in range(self.size)]
        deadline = time.monotonic() + self._limit
        while not MPI.Request.Testall(receives):
            if time.monotonic() > deadline:
                late = np.flatnonzero(theirs[:, 0] < 0).tolist()
                self._abort(f"{what}: ranks {late} did not finish within {self._limit:g} s\n{text}")
            time.sleep(1e-4)
        MPI.Request.Waitall(sends)
        elsewhere = np.flatnonzero(theirs[:, 1] != mine[1]).tolist()
        if elsewhere:
            self._abort(f"{what}: ranks {elsewhere} are at another test or phase\n{text}")
        return np.flatnonzero(theirs[:, 0] == FAILED).tolist()

    def _abort(self, message: str) -> None:
        print(f"\nrank {self.rank} of {self.size}: {message}", file=self._stderr, flush=True)
        time.sleep(1)  # the other ranks that are waiting have something to say as well
        MPI.COMM_WORLD.Abort(1)
