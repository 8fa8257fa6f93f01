"""The interleaved benchmark with dense: who takes part, fair turns, what the numbers come to, and the break-even."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sparse_mpi.__main__ import main, parser
from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.cli import benchmark
from sparse_mpi.cli.progress import Bar
from sparse_mpi.comm import NullComm
from sparse_mpi.sparse import Layout
from sparse_mpi.wire import Coo, Wire
from sparse_mpi_bench import comparison
from sparse_mpi_bench import comparison as processor
from sparse_mpi_bench.break_even import Cost, break_even, ring_bound
from sparse_mpi_bench.candidates import Candidate, candidates
from sparse_mpi_bench.commands import bench_interleaved
from sparse_mpi_bench.commands.bench_interleaved import render, results
from sparse_mpi_bench.comparison import FIELDS, MIN_STEPS, batches, summarise, take_turns
from sparse_mpi_bench.figures import compare
from sparse_mpi_bench.figures.style import write

DENSE = Cost(compute=0.0, messages=10, bytes=1e6)


@dataclass(frozen=True)
class Exact:
    """An algorithm that may not lose anything."""

    wire: Wire = Coo()

    def __post_init__(self):
        if not self.wire.lossless:
            raise ValueError(self.wire)


@pytest.mark.parametrize("alpha", [0.0, 1e-5])
def test_both_take_as_long_at_the_break_even(alpha):
    sparse = Cost(compute=1e-3, messages=30, bytes=2e4)
    bandwidth = break_even(sparse, DENSE, alpha)
    assert bandwidth == pytest.approx(8 * (1e6 - 2e4) / (1e-3 + 20 * alpha))
    assert sparse.seconds(bandwidth, alpha) == pytest.approx(DENSE.seconds(bandwidth, alpha))
    assert sparse.seconds(bandwidth / 2, alpha) < DENSE.seconds(bandwidth / 2, alpha)


def test_some_are_faster_everywhere_and_some_nowhere():
    assert break_even(Cost(0.0, 10, 1e5), DENSE, 1e-5) == math.inf
    assert break_even(DENSE, DENSE, 1e-5) == math.inf  # not slower, on any network
    assert break_even(Cost(1.0, 10, 2e6), DENSE, 1e-5) == 0
    assert break_even(Cost(-1.0, 10, 2e6), DENSE, 1e-5) == 0


def test_a_ring_sends_almost_everything_twice():
    assert ring_bound(10**6, 4, 8e6) == pytest.approx(1.5)


def test_everyone_competes_in_all_formats_it_accepts_and_none_twice(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "exact", Exact)
    found = candidates(["topka", "exact"], ["own", "coo32", "packed", "packed+bf16"])
    assert [each.name for each in found] == [
        *("dense", "topka", "topka packed", "topka packed+bf16", "exact", "exact packed"),
    ]
    assert [each.name for each in candidates(["dense", "topka"], ["packed"])] == ["dense", "topka packed"]


def test_a_format_that_nobody_accepts_is_named():
    with pytest.raises(ValueError, match="accepted by one of dense, topka, got wide; own"):
        candidates(["topka"], ["own", "wide"])


def test_dense_is_in_every_batch():
    entered = [Candidate(name) for name in ("dense", "a", "b", "c")]
    assert [[each.name for each in group] for group in batches(entered, 2)] == [["dense", "a", "b"], ["dense", "c"]]
    assert batches(entered[:1], 2) == [entered[:1]]


@pytest.mark.parametrize("seconds", [1e-9, 1e9])
def test_turns_end_with_the_budget(ranks, seconds):
    rules = Namespace(density=0.1, steps=MIN_STEPS + 2, warmup=1, seconds=seconds, seed=0)
    entered = candidates(["topka", "oktopk"], ["own"])

    for samples in ranks.run(lambda comm: take_turns(entered, Layout.of(100), rules, comm, Bar(None, "", False))):
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


def measured():
    """Dense, and two others: one that never loses, and one that gains a factor of two."""
    dense = samples_of(step=1.0, exchange=1.0, sent=10**8, messages=4)
    light = samples_of(step=0.5, select=0.25, processor=0.125, sent=10**6, messages=4)
    never = samples_of(step=0.75, sent=10**7, messages=4)
    return [{"dense": dense, "light": light}, {"dense": 2 * dense, "never": never}]


def test_everyone_is_compared_with_dense_in_the_same_turns():
    found = results(measured(), 0.0)
    assert list(found) == ["light", "never", "dense"]
    assert found["light"]["over dense"] == 0.5 and found["never"]["over dense"] == 0.375
    assert found["never"]["break even"] is None
    assert found["light"]["break even"] == pytest.approx(8 * 0.99e8 / 0.25)
    assert found["light"]["break even alone"] == pytest.approx(8 * 0.99e8 / 0.125)
    assert found["dense"]["step"] == 1.5 and found["dense"]["steps"] == [1, 1, 1, 2, 2, 2]
    json.dumps(found, allow_nan=False)


def test_turns_that_dense_did_not_take_are_not_compared():
    dense, other = samples_of(step=[[1, 2, 4], [1, 1, 1]]), samples_of(step=[[1, 1, 9], [1, 4, 9]])
    assert results([{"dense": dense, "other": other[:, :2]}], 0.0)["other"]["over dense"] == 1.5
    assert results([{"dense": dense[:, :1], "other": other}], 0.0)["other"]["over dense"] == 1.0


def record(gbit, ratio, measured_gbit=None):
    options = {"model": None, "density": 0.01, "gbit": gbit, "latency": 20.0}
    here = {"cpus": 2, "cpu": "x", "peak memory": 10**9, "ranks": 2, "n": 100, "rate": f"{gbit or 1}gbit"}
    here["measured"] = {"gbit": measured_gbit or gbit}
    return {"options": options, **here, "results": results(measured(), 2e-5), "dense over ring": ratio}


@pytest.mark.parametrize(("ratio", "verdict"), [(1.2, ": fair\n"), (1.5, ": above 1.3"), (None, "--gbit tells")])
def test_the_table_says_whether_dense_was_fair(ratio, verdict):
    shown = render(record(1.0, ratio))
    assert verdict in shown and any(line.split()[:3] == ["light", "500.0", "2.00"] for line in shown.splitlines())


def test_the_figure_has_a_line_and_a_point_for_everyone(tmp_path):
    pytest.importorskip("matplotlib")
    jobs = [record(0.1, 1.1), record(1.0, 1.1)]
    light = next(line for line in compare.lines(jobs, 2) if line.name == "light")
    assert light.bandwidths == [1e8, 1e9] and light.seconds == [0.5, 0.5]
    write(partial(compare.all_of, [{"jobs": jobs}]), tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert all(f">{name}</text>" in drawn for name in ("light", "never", "dense", "P = 2"))
    assert "*" not in bench_interleaved.summary(jobs)
    assert [line.split()[:3] for line in bench_interleaved.summary(jobs).splitlines()[2:4]] == [
        ["light", "2.00", "2.00"],
        ["never", "2.67", "2.67"],
    ]


def test_a_link_below_its_rate_is_marked():
    """Of 1 Gbit/s at least 900 Mbit/s are expected."""
    jobs = [record(0.1, 1.1), record(1.0, 1.1, measured_gbit=0.7)]
    lines = bench_interleaved.summary(jobs).splitlines()
    assert lines[1].split() == ["P=2", "0.1gbit", "P=2", "1.0gbit*"]
    assert lines[-2].startswith("* the link measured below 90% of its rate") and lines[-1] == "  P=2 1.0gbit: 70%"
    assert next(line for line in compare.lines(jobs, 2) if line.name == "light").below == [False, True]


def test_a_point_of_a_slow_link_is_hollow(tmp_path):
    pytest.importorskip("matplotlib")
    jobs = [record(0.1, 1.1), record(1.0, 1.1, measured_gbit=0.7)]
    for shown, hollow in ((jobs, True), (jobs[:1], False)):
        write(partial(compare.best_of, [{"jobs": shown}]), tmp_path / "figure.svg")
        assert (compare.BELOW in (tmp_path / "figure.svg").read_text()) is hollow


def test_processor_time_is_that_between_calls(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(processor, "process_time", lambda: now[0])

    class Slow(NullComm):
        def _barrier(self):
            now[0] += 100

        def split(self, color):
            now[0] += 10
            return Slow(1)

    comm = processor.ProcessorTime(Slow(2, 1))
    now[0] += 1
    comm.barrier()
    now[0] += 2
    assert comm.elapsed() == 3 and (comm.size, comm.rank) == (2, 1)
    part = comm.split(0)
    now[0] += 4
    part.barrier()
    now[0] += 5
    assert comm.elapsed() == part.elapsed() == 12 and part.size == 1


def test_the_job_gets_all_options():
    known = parser()
    given = ["--n", "50", "--density", "0.1", "--steps", "4", "--warmup", "0", "--seconds", "2", "--batch", "3"]
    given += ["--algorithms", "topka", "gtopk", "--wires", "own", "--seed", "7"]
    args = known.parse_args(["bench", "compare", *given])
    parsed = known.parse_args(bench_interleaved.interleaved_command(args, 0.95, 12.5, Path("file")))
    assert {name: getattr(parsed, name) for name in bench_interleaved.PASSED} == {
        name: getattr(args, name) for name in bench_interleaved.PASSED
    }
    assert (parsed.gbit, parsed.latency, parsed.json) == (0.95, 12.5, Path("file"))


def test_bench_interleaved_writes_what_it_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "comm_of_job", lambda: NullComm(4))
    file = tmp_path / "r.json"
    command = ["bench", "interleaved", "--n", "1000", "--steps", "1", "--warmup", "0", "--algorithms", "powersgd"]
    assert main([*command, "--gbit", "1", "--json", str(file)]) == 0
    written, out = json.loads(file.read_text()), capsys.readouterr().out
    assert set(written["results"]) == {"dense", "powersgd"} and written["ranks"] == 4 and written["dense over ring"] > 0
    assert "ring bound" in out


def test_memory_of_all_ranks_is_added():
    most = comparison.peak_memory(NullComm(1))
    assert 10**7 < 3 * most <= comparison.peak_memory(NullComm(3)) < 10**12
