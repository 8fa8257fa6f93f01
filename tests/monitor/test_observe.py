"""Ranges of profilers around the phases of a step, where they are asked for; and nothing where they are not."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.comm import NullComm
from sparse_mpi.monitor import observe
from sparse_mpi.optim import DistributedOptimizer

N, PHASES = 1000, ["agree", "accumulate", "exchange", "select", "commit"]

OFF = """
import sys
import numpy as np
from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import NullComm
reducer = SparseAllreduce(100, k=3, comm=NullComm())
reducer.step(np.ones(100, np.float32))
print(reducer.engine.meters, {"agree", "accumulate", "reduce", "commit", "_exchange"} & set(vars(reducer.engine)))
print({"torch", "sparse_mpi.monitor.observe", "sparse_mpi.monitor.metrics"} & set(sys.modules))
"""


def names(phases, number):
    return [f"sparse_mpi.{phase} #{number}" for phase in phases]


@pytest.fixture
def ranges(monkeypatch):
    monkeypatch.setenv(observe.RANGES, "1")
    monkeypatch.delenv("SPARSE_MPI_METRICS_DIR", raising=False)
    observe._NUMBERS.clear()


@pytest.fixture
def opened(ranges, monkeypatch):
    events = []

    @contextmanager
    def span(name):
        events.append(name)
        yield
        events.append(f"end of {name}")

    monkeypatch.setattr(observe, "spans_of_profilers", lambda: [span])
    return events


def test_a_step_of_the_optimizer_is_seen_by_torchs_profiler(ranges):
    def body(comm):
        weights = [torch.nn.Parameter(torch.zeros(N)) for _ in range(2)]
        inner = torch.optim.SGD(weights, lr=0.1)
        made = DistributedOptimizer(inner, density=0.02, comm=comm, bucket_cap_mb=N * 4e-6)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            sum(weight.dot(torch.arange(float(N)) * (comm.rank + 1)) for weight in weights).backward()
            made.step()
        return len(made.reduction.buckets), [event.name for event in profile.events()]

    # One rank: torch has one profiler in a process
    ((buckets, seen),) = World(1).run(body)
    assert buckets >= 2
    for number in range(buckets):
        assert set(names(PHASES, number)) <= set(seen)


def test_phases_follow_each_other_and_selections_lie_in_the_exchange(opened):
    reducer, other = (SparseAllreduce(N, k=9, comm=NullComm()) for _ in range(2))
    reducer.step(np.ones(N, np.float32))
    agree, accumulate, exchange, select, commit = names(PHASES, 0)
    middle = [exchange, select, f"end of {select}", f"end of {exchange}"]
    assert opened == [
        *(agree, f"end of {agree}", accumulate, f"end of {accumulate}"),
        *(*middle, commit, f"end of {commit}"),
    ]
    opened.clear()
    other.step(np.ones(N, np.float32))
    assert {name.rpartition("#")[2] for name in opened} == {"1"}


def test_an_algorithm_that_takes_its_turn_has_ranges_too(opened):
    reducer = SparseAllreduce(N, k=9, comm=NullComm())
    reducer.use("elect")
    reducer.step(np.ones(N, np.float32))
    assert set(names(PHASES, 0)) <= set(opened)


@pytest.mark.parametrize("algorithm", ["oktopk", "elect", "adtopk"])
def test_ranges_change_no_bit(opened, monkeypatch, algorithm):
    def body(comm):
        reducer = SparseAllreduce(N, k=20, comm=comm, algorithm=algorithm)
        random = np.random.default_rng(comm.rank)
        return [reducer.step(random.standard_normal(N, np.float32)).to_dense() for _ in range(3)]

    observed = World(3).run(body)
    assert opened
    monkeypatch.delenv(observe.RANGES)
    np.testing.assert_array_equal(observed, World(3).run(body))


@pytest.mark.parametrize("value", ["", "0"])
def test_the_variable_may_say_no(opened, monkeypatch, value):
    monkeypatch.setenv(observe.RANGES, value)
    reducer = SparseAllreduce(N, k=9, comm=NullComm())
    reducer.step(np.ones(N, np.float32))
    assert opened == [] and "commit" not in vars(reducer.engine) and not reducer.engine.meters


def test_bench_compare_and_metrics_see_the_same_steps(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(observe, "meter", lambda engine: seen.append(engine.report.total))
    monkeypatch.setenv("SPARSE_MPI_ALGORITHM", "oktopk")
    monkeypatch.setenv("SPARSE_MPI_METRICS_DIR", str(tmp_path))
    SparseAllreduce(N, k=9, comm=NullComm()).step(np.ones(N, np.float32))
    assert len(seen) == 1 and list(tmp_path.glob("*.prom"))


def test_nvtx_has_them_where_there_is_cuda(ranges, monkeypatch):
    opened = []

    @contextmanager
    def nvtx(name):
        opened.append(name)
        yield

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range", nvtx)
    SparseAllreduce(N, k=9, comm=NullComm()).step(np.ones(N, np.float32))
    assert opened == names(PHASES, 0)


def test_without_torch_there_are_no_ranges_and_steps_go_on(ranges, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch", None)
    with caplog.at_level(logging.WARNING, "sparse_mpi"):
        reducer = SparseAllreduce(N, k=9, comm=NullComm())
    assert "SPARSE_MPI_RANGES needs torch" in caplog.text
    assert reducer.step(np.ones(N, np.float32)).nnz == 9


def test_where_nobody_asks_nothing_is_imported_or_wrapped(monkeypatch):
    for name in ("SPARSE_MPI_RANGES", "SPARSE_MPI_METRICS_DIR"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[] set()", "set()"]
