"""``--format``: the columns of nccl-tests and of OSU's benchmarks, and what counts as a wrong entry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.__main__ import main
from sparse_mpi.algorithms.dense import Dense
from sparse_mpi.cli import benchmark
from sparse_mpi.comm import NullComm
from sparse_mpi.sparse import SparseVector
from sparse_mpi_bench import comparison
from sparse_mpi_bench.commands import formats
from sparse_mpi_bench.commands.bench_sparse import wrong_entries
from sparse_mpi_bench.commands.formats import NCCL, OSU, TABLE, show

FOUND = {"rank seconds": [0.002, 0.003, 0.004, 0.003], "iterations": 5, "wrong": 7}
RECORD = {"ranks": 4, "n": 1_000_000, "options": {"model": None, "density": 0.01}, "results": {"oktopk packed": FOUND}}
# As src/common.cu of nccl-tests prints them, for the columns of its out-of-place results
NCCL_HEAD = "# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s %6s"
NCCL_ROW = "%12i  %12i  %8s  %6s  %6i  %7s  %6.2f  %6.2f  %5i"
OSU_HEAD, OSU_ROW = "%-10s%18s%18s%18s%12s", "%-10d%18.2f%18.2f%18.2f%12d"


def rows(text):
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_columns_are_those_of_nccl_tests():
    """4 MB in 3 ms are 1.33 GB/s; a ring of four ranks moves 1.5 times as much."""
    shown = show(RECORD, NCCL)
    names = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
    assert NCCL_HEAD % names in shown.splitlines()
    values = (4_000_000, 1_000_000, "float", "sum", -1, "3000.0", 4 / 3, 2.0, 7)
    assert rows(shown) == [NCCL_ROW % values + "  # oktopk packed"]
    assert "algbw * 2(P-1)/P" in shown and "# P = 4, one tensor, density 0.01" in shown


@pytest.mark.parametrize(("seconds", "text"), [(9.876543e-5, "98.77"), (1.23456e-3, "1234.6"), (0.0123456, "12346")])
def test_times_have_as_many_digits_as_those_of_nccl_tests(seconds, text):
    assert formats.microseconds(formats.Timed("", 1, "float32", [seconds], 1, None)) == text


def test_columns_are_those_of_osu():
    shown = show(RECORD, OSU)
    head = ("# Size", "Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations")
    assert OSU_HEAD % head in shown.splitlines()
    assert rows(shown) == [OSU_ROW % (4_000_000, 3000, 2000, 4000, 5) + "  # oktopk packed"]


def test_what_was_not_checked_is_not_called_right():
    unchecked = RECORD | {"results": {"dense": FOUND | {"wrong": None}}}
    assert rows(show(unchecked, NCCL))[0].split()[8] == "N/A"


def test_records_of_jobs_and_cases_have_a_block_each_and_slow_links_their_mark():
    slow = RECORD | {"rate": "10gbit", "measured": {"gbit": 9.5, "together": 4.0, "remark": "cores decide"}}
    case = {"n": 50, "candidates": {"gloo": FOUND}}
    sparse = {"ranks": 4, "rate": "none", "options": {}, "measured": {"gbit": 9}, "cases": {"zipf": case}}
    lines = show({"jobs": [slow, sparse]}, NCCL).splitlines()
    assert "# P = 4, 10gbit*, one tensor, density 0.01" in lines and "# P = 4, none, zipf" in lines
    assert [row.split()[:3] for row in rows("\n".join(lines))] == [
        ["4000000", "1000000", "float"],
        ["400", "50", "double"],
    ]
    assert lines[-1] == "#   P=4 10gbit: cores decide"


@dataclass(frozen=True)
class Broken(Dense):
    """A dense sum with defects that are known: entries that one rank alone gets wrong, and others that all do."""

    apart: int = 0
    lost: int = 0

    def reduce(self, *args: Any, **more: Any) -> Any:
        reduction, state = super().reduce(*args, **more)
        comm = args[2]
        total = reduction.total.copy()
        total[: self.lost] += 1000
        total[10 : 10 + self.apart] += 5 * (comm.rank == comm.size - 1)
        return reduction._replace(total=total), state


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(("apart", "lost", "wrong"), [(0, 0, 0), (3, 0, 3), (0, 4, 4), (2, 5, 2)])
def test_wrong_entries_are_counted(ranks, apart, lost, wrong):
    """Of entries that differ, those; where all ranks agree, those that are not what the ranks gave."""

    def body(comm):
        reducer = SparseAllreduce(50, density=0.1, comm=comm, algorithm=Broken(apart=apart, lost=lost))
        return comparison.wrong_entries(reducer, np.random.default_rng(comm.rank).standard_normal(50, np.float32))

    assert ranks.run(body) == [wrong] * ranks.size


def test_sums_of_keys_are_counted_key_by_key():
    expected = np.array([1, 4, 7]), np.array([1.0, 2.0, 3.0])
    assert wrong_entries(expected, expected) == 0
    assert wrong_entries((np.array([1, 4]), np.array([1.0, 2.5])), expected) == 2
    assert wrong_entries((np.array([1, 4, 7, 8]), np.array([1.0, 2.0, 3.0, 4.0])), expected) == 1
    assert wrong_entries(SparseVector(*expected, 9).to_dense(), expected) == 0


@pytest.mark.parametrize("command", [["interleaved", "--warmup", "0"], ["allreduce", "--warmup", "1"]])
@pytest.mark.parametrize("form", [TABLE, NCCL, OSU])
def test_benchmarks_print_one_format_and_record_what_the_others_need(command, form, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "comm_of_job", lambda: NullComm(4))
    file = tmp_path / "r.json"
    asked = ["--n", "1000", "--steps", "3", "--algorithms", "dense", "powersgd", "--json", str(file), "--format", form]
    assert main(["bench", *command, *asked]) == 0
    out, written = capsys.readouterr().out, json.loads(file.read_text())
    found = written.get("results") or written["algorithms"]
    assert all(len(each["rank seconds"]) == 4 and each["iterations"] == 3 for each in found.values())
    assert all((each["wrong"] is None) is (form != NCCL) for each in found.values())
    assert out.strip() == show(written, form) if form != TABLE else "exchange" in out
