"""pytest on the ranks of a torch.distributed job: a plugin that stands in for `mpi_harness` in the fixture ``ranks``.

    python -m torch.distributed.run --nproc-per-node 3 -m pytest -p tests.comm.process_group_harness \\
        tests/comm/test_comm.py

Only tests that need ranks are run. A rank that does not come lets the others raise after `LIMIT`.
"""

from __future__ import annotations

import traceback
from datetime import timedelta

import pytest
import torch.distributed as dist

from sparse_mpi.comm.base import Traffic
from sparse_mpi.comm.process_group import ProcessGroupComm

LIMIT = timedelta(seconds=200)


class ProcessGroupHarness:
    """What the fixture ``ranks`` gives to the tests: ``size``, ``run`` and ``ordered``, see `mpi_harness`."""

    ordered = 2

    def __init__(self) -> None:
        dist.init_process_group("gloo", timeout=LIMIT)
        self._comm = ProcessGroupComm()
        self.size = dist.get_world_size()

    def run(self, fn):
        """``[fn(comm) for every rank]`` on every rank; raises what the first rank that failed raised."""
        vars(self._comm.traffic).update(vars(Traffic()))  # which communicators split off before share
        result, error, text = None, None, ""
        try:
            result = fn(self._comm)
        except Exception as raised:
            error, text = raised, traceback.format_exc()
        outcomes: list = [None] * self.size
        dist.all_gather_object(outcomes, (result, error, text))
        for rank, (_, first, text) in enumerate(outcomes):
            if first is not None:
                raise first from RuntimeError(f"on rank {rank} of {self.size}:\n{text}")
        return [value for value, _, _ in outcomes]


def pytest_configure(config):
    config.pluginmanager.register(ProcessGroupHarness(), "mpi-harness")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    items[:] = [item for item in items if "ranks" in item.fixturenames]


def pytest_unconfigure(config):
    dist.destroy_process_group()
