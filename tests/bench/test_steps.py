"""``bench steps``: who takes part, fair turns, what the numbers come to, the break-even, checks."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.algorithms.dense import Dense
from sparse_mpi.cli.progress import Bar
from sparse_mpi.comm import NullComm
from sparse_mpi.predict.models import MODELS
from sparse_mpi.sparse import Layout
from sparse_mpi.wire import Coo, Wire
from sparse_mpi_bench import benchmark, comparison
from sparse_mpi_bench.break_even import Cost, break_even
from sparse_mpi_bench.candidates import Candidate, candidates
from sparse_mpi_bench.commands.bench_steps import checked, results
from sparse_mpi_bench.comparison import FIELDS, MIN_STEPS, summarise, take_turns

DENSE = Cost(compute=0.0, messages=10, bytes=1e6)


@dataclass(frozen=True)
class Exact(Algorithm):
    """An algorithm that may not lose anything."""

    wire: Wire = Coo()

    def __post_init__(self):
        if not self.wire.lossless:
            raise ValueError(self.wire)

    def reduce(self, acc, k, comm, state, layout, add=None): ...


@pytest.mark.parametrize("alpha", [0.0, 1e-5])
def test_both_take_as_long_at_the_break_even(alpha):
    sparse = Cost(compute=1e-3, messages=30, bytes=2e4)
    bandwidth = break_even(sparse, DENSE, alpha)
    assert bandwidth == pytest.approx(8 * (1e6 - 2e4) / (1e-3 + 20 * alpha))

    def seconds(cost, bandwidth):
        return cost.compute + alpha * cost.messages + 8 * cost.bytes / bandwidth

    assert seconds(sparse, bandwidth) == pytest.approx(seconds(DENSE, bandwidth))
    assert seconds(sparse, bandwidth / 2) < seconds(DENSE, bandwidth / 2)


def test_some_are_faster_everywhere_and_some_nowhere():
    assert break_even(Cost(0.0, 10, 1e5), DENSE, 1e-5) == math.inf
    assert break_even(DENSE, DENSE, 1e-5) == math.inf  # not slower, on any network
    assert break_even(Cost(1.0, 10, 2e6), DENSE, 1e-5) == 0
    assert break_even(Cost(-1.0, 10, 2e6), DENSE, 1e-5) == 0


def test_everyone_competes_in_all_formats_it_accepts_and_none_twice(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "exact", Exact)
    found = candidates(["topka", "exact"], ["own", "coo32", "packed", "packed+bf16"])
    assert [each.name for each in found] == [
        *("dense", "topka", "topka packed", "topka packed+bf16", "exact", "exact packed"),
    ]
    assert [each.name for each in candidates(["dense", "topka"], ["packed"])] == ["dense", "topka packed"]
    spelled = candidates(["oktopk:wire=packed", "topka:selector=dgc"], ["own", "packed"])
    assert [each.name for each in spelled[1:]] == [
        "oktopk:wire=packed",
        "topka:selector=dgc",
        "topka:selector=dgc packed",
    ]


@pytest.mark.parametrize("seconds", [1e-9, 1e9])
def test_turns_end_with_the_budget(ranks, seconds):
    rules = Namespace(density=0.1, steps=MIN_STEPS + 2, warmup=1, seconds=seconds, seed=0, copy_every=None)
    entered = candidates(["topka", "oktopk"], ["own"])

    def turns(comm):
        base = np.random.default_rng(comm.rank).standard_normal(100, np.float32)
        return take_turns(entered, Layout.of(100), rules, base, comm, Bar(None, "", False))

    for samples in ranks.run(turns):
        steps = MIN_STEPS if seconds < 1 else MIN_STEPS + 2
        assert {name: rows.shape for name, rows in samples.items()} == {
            each.name: (ranks.size, steps, len(FIELDS)) for each in entered
        }
        sent = samples["dense"][:, :, FIELDS.index("sent")]
        assert (sent == 800 * (ranks.size - 1) // ranks.size).all()


def samples_of(**fields):
    """Of 2 ranks and 3 steps; a field is 0 where it is not given."""
    return np.stack([np.broadcast_to(np.float64(fields.get(name, 0)), (2, 3)) for name in FIELDS], 2)


def test_the_slowest_rank_counts():
    found = summarise(
        samples_of(
            step=[[1, 9, 2], [3, 1, 1]],
            select=[[1, 1, 1], [2, 2, 2]],
            merge=[[4, 4, 4], [1, 1, 1]],
            exchange=[[5, 5, 5], [7, 7, 7]],
            sent=[[10, 10, 40], [10, 10, 10]],
            received=[[0, 0, 0], [30, 30, 30]],
            control=1,
            messages=2,
        )
    )
    assert (found["step"], found["select"], found["merge"], found["compute"]) == (3, 2, 4, 5)
    assert (found["exchange"], found["bytes"], found["messages"]) == (5, 31, 2)


def test_everyone_is_compared_with_dense_in_the_same_turns():
    dense = samples_of(step=1.0, exchange=1.0, sent=10**8, messages=4)
    light = samples_of(step=0.5, select=0.25, processor=0.125, sent=10**6, messages=4)
    never = samples_of(step=0.75, sent=10**7, messages=4)
    found = results([{"dense": dense, "light": light}, {"dense": 2 * dense, "never": never}], 0.0, 100)
    assert list(found) == ["light", "never", "dense"]
    assert found["light"]["over dense"] == 0.5 and found["never"]["over dense"] == 0.375
    assert found["never"]["break even"] is None
    assert found["light"]["break even"] == pytest.approx(8 * 0.99e8 / 0.25)
    assert found["light"]["break even alone"] == pytest.approx(8 * 0.99e8 / 0.125)
    assert found["light"]["over bound"] == pytest.approx(1e6 / (8 * 100 / 2))
    assert found["dense"]["step"] == 1.5 and found["dense"]["steps"] == [1, 1, 1, 2, 2, 2]
    json.dumps(found, allow_nan=False)


def test_turns_that_dense_did_not_take_are_not_compared():
    dense, other = samples_of(step=[[1, 2, 4], [1, 1, 1]]), samples_of(step=[[1, 1, 9], [1, 4, 9]])
    assert results([{"dense": dense, "other": other[:, :2]}], 0.0, 100)["other"]["over dense"] == 1.5
    assert results([{"dense": dense[:, :1], "other": other}], 0.0, 100)["other"]["over dense"] == 1.0


def test_processor_time_is_that_between_calls(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(comparison, "process_time", lambda: now[0])

    class Slow(NullComm):
        def _barrier(self):
            now[0] += 100

        def split(self, color):
            now[0] += 10
            return Slow(1)

    comm = comparison.ProcessorTime(Slow(2, 1))
    now[0] += 1
    comm.barrier()
    now[0] += 2
    assert comm.elapsed() == 3 and (comm.size, comm.rank) == (2, 1)
    part = comm.split(0)
    now[0] += 4
    part.barrier()
    now[0] += 5
    assert comm.elapsed() == part.elapsed() == 12 and part.size == 1


STEPS = ["bench", "steps", "--steps", "1", "--warmup", "0"]


def measured_by(tmp_path, *options):
    file = tmp_path / "r.json"
    assert main([*STEPS, *options, "--json", str(file)]) == 0
    return json.loads(file.read_text())


def test_every_algorithm_is_measured_and_checked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "orig_argv", ["/bin/python", "-m", "sparse_mpi", *STEPS])
    record, printed = measured_by(tmp_path, "--n", "20000", "--check"), capsys.readouterr().out
    assert set(record["results"]) == set(record["checks"]) == set(ALGORITHMS) and record["ranks"] == 1
    assert record["command"].startswith("python -m sparse_mpi bench steps --steps 1") and record["versions"]["mpi"]
    for name, found in record["results"].items():
        assert name in printed and found["step"] > 0 and found["bytes"] == 0
    assert all(row["laws"] == "hold" and row["good"] for row in record["checks"].values())


def test_a_model_has_tensors_for_low_rank_algorithms_and_dense_its_bound(tmp_path, monkeypatch, capsys):
    """On a tiny VGG-16 among four ranks who all have the same data."""
    monkeypatch.setitem(MODELS, "vgg16", (("weight", (20, 30)), ("bias", (20,))))
    monkeypatch.setattr(benchmark, "comm_of_job", lambda: NullComm(4))
    record = measured_by(tmp_path, "--algorithms", "powersgd", "powersgd:rank=2", "--gbit", "1")
    assert (record["options"]["model"], record["n"], record["dense over ring"] > 0) == ("vgg16", 620, True)
    for name, rank in (("powersgd", 4), ("powersgd:rank=2", 2)):
        saved = record["results"]["dense"]["bytes"] - record["results"][name]["bytes"]
        assert saved == 6 * (600 - rank * (20 + 30))
    assert "ring bound" in capsys.readouterr().out


@dataclass(frozen=True)
class Broken(Dense):
    """A dense sum of which the last rank gets some entries wrong."""

    def reduce(self, *args: Any, **more: Any) -> Any:
        reduction, state = super().reduce(*args, **more)
        total = reduction.total.copy()
        total[:3] += 5 * (args[2].rank == args[2].size - 1)
        return reduction._replace(total=total), state


@pytest.mark.ranks(2, 3)
def test_a_broken_law_is_found(ranks, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "broken", Broken)
    entered = [Candidate("dense"), Candidate("broken")]
    base = np.ones(50, np.float32)
    for found in ranks.run(lambda comm: checked(entered, Layout.of(50), 0.1, base, comm)):
        assert [row["good"] for row in found.values()] == [True, False] and "differs" in found["broken"]["laws"]
