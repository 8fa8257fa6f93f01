"""``python -m sparse_mpi bench sparse``: sums of data that is sparse already, beside other libraries' ways."""

from __future__ import annotations

import argparse
import math
import os
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi import collectives
from sparse_mpi.cli import records, values
from sparse_mpi.cli.options import count, option
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import Refused, refusing
from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.collectives.choice import Choice
from sparse_mpi.collectives.inputs import AUTO
from sparse_mpi.comm import Comm
from sparse_mpi.comm.runtime import TORCHRUN
from sparse_mpi_bench.analysis.keyed_volume import CASES, filled, stored
from sparse_mpi_bench.benchmark import Benchmark, Output
from sparse_mpi_bench.emulation.probe import below, shortfalls

OURS = (AUTO, *ALGORITHMS)  # calls that may refuse their input by a ValueError, on all ranks alike
RIVALS = ("pickled allreduce", "pickled allgather", "dense")
MOST_DENSE = 1 << 27  # keys of which a dense buffer is tried
LEGEND = "cells: milliseconds, MB that the busiest host sent, peak memory over the bytes of input and result"
DESCRIPTION = """\
The sum of sparse vectors over all ranks, by each algorithm of sparse_mpi.allreduce and by what users of mpi4py
have without it: comm.allreduce of a pickled csr_array, comm.allgather and a sum, and Allreduce of a dense buffer. All
take turns, in changing order. Every result is checked.

  python -m sparse_mpi bench network --ranks 8 --rate 1gbit -- bench sparse --n 10000000 --entries 100000

On several emulated networks, whose records `draw` draws:

  python -m sparse_mpi bench network --ranks 2 4 8 --json FILE -- bench sparse --fill-in 1 2 4 8
"""
Work = Callable[[], Any]  # one way to add up; returns keys and values, a csr_array, or a dense buffer
Job = tuple[str, dict[str, Any], dict[str, Any]]  # the name of a case, its job, and the case


def candidates(keys: np.ndarray, values: np.ndarray, n: int, comm: Comm) -> tuple[dict[str, Work], dict[str, str]]:
    """Return the ways to sum keys ``(m,)`` in [0, n), by name, and why others are missing, the same on all ranks."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    ours = partial(collectives.allreduce, (keys, values), comm=comm)
    found: dict[str, Work] = {name: partial(ours, algorithm=name) for name in OURS}
    skipped: dict[str, str] = {}
    try:
        from scipy.sparse import csr_array
    except ImportError:
        skipped |= dict.fromkeys(RIVALS[:2], "scipy is not installed; pip install scipy")
    else:
        row = csr_array((values, keys, np.array([0, len(keys)])), shape=(1, n))
        found["pickled allreduce"] = lambda: world.allreduce(row)
        found["pickled allgather"] = lambda: reduce(add, world.allgather(row))

    def dense() -> np.ndarray:
        buffer, total = np.zeros(n, values.dtype), np.empty(n, values.dtype)
        buffer[keys] = values
        world.Allreduce(buffer, total)
        return total

    if n <= MOST_DENSE:
        found["dense"] = dense
    else:
        skipped["dense"] = f"{n:,} keys are too many for a buffer of all"
    return found, skipped


def best_of_others(rows: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the seconds of the fastest rival among the measured ``rows``, infinite if there is none."""
    return min((rows[rival]["seconds"] for rival in RIVALS if rival in rows), default=math.inf)


def check(args: argparse.Namespace) -> None:
    if TORCHRUN in os.environ:
        raise Refused("bench sparse compares with mpi4py, whose ranks torchrun does not start; start it with mpiexec")
    for folder in args.data:
        if not (folder / "rank-0.npz").exists():
            raise Refused(f"--data {folder} must be a folder with rank-0.npz, as the examples --save it")
    names = names_of(args)
    if twice := [name for name in names if names.count(name) > 1]:
        raise Refused(f"--cases, --fill-in and folders of --data must have different names, got {twice[0]} twice")


def names_of(args: argparse.Namespace) -> list[str]:
    return [*args.cases, *(f"fill-in {fill_in:g}" for fill_in in args.fill_in), *(each.name for each in args.data)]


def measure(args: argparse.Namespace, comm: Comm) -> Iterator[Output]:
    comm.job.guard()
    args.fill_in = [each for each in args.fill_in if each <= comm.size]
    names, found = names_of(args), {}
    with Bar(len(names), "cases", comm.rank == 0) as bar:
        for place, name in enumerate(names):
            bar.say(name)
            found[name] = _measure(*_data(place, args, comm), args.steps, comm)
            bar.update()
    yield "\n".join(line for name in names for line in _table(name, found[name], comm.size))
    asked = records.options(args) | {"data": [str(folder) for folder in args.data]}
    yield {"ranks": comm.size, "options": asked, "cases": found}
    yield int(any(row["wrong"] for case in found.values() for row in case["candidates"].values()))


def _data(place: int, args: argparse.Namespace, comm: Comm) -> tuple[np.ndarray, np.ndarray, int]:
    made = [*(CASES[name] for name in args.cases), *map(filled, args.fill_in)]
    with refusing("--fill-in or --data: "):
        if place < len(made):
            keys = made[place](comm.rank, comm.size, args.n, args.entries)
            return keys, np.random.default_rng([9, comm.rank]).integers(1, 100, len(keys)).astype(np.float64), args.n
        keys, values = stored(args.data[place - len(made)], comm.rank, comm.size)
    highest = np.array([keys.max(initial=0)], np.int64)
    return keys, values, int(comm.allreduce(highest, "max", control=True)[0]) + 1


def _measure(keys: np.ndarray, values: np.ndarray, n: int, steps: int, comm: Comm) -> dict[str, Any]:
    compared, skipped = candidates(keys, values, n, comm)
    chosen: list[Choice] = []
    expected = collectives.allreduce((keys, values), comm=comm, tell=chosen.append)
    sizes = comm.allgather(np.array([len(keys)]), control=True)
    result, total = len(expected[0]), int(sizes.sum())
    facts = {"n": n, "entries": total, "result": result, "fill-in": comm.size * result / max(total, 1)}
    memory = {}
    for name, work in list(compared.items()):  # this also compiles and connects
        try:
            memory[name] = _peak(work)
        except ValueError as refusal:
            if name not in OURS:
                raise
            skipped[name] = str(refusal)
            del compared[name]
    taken: dict[str, list[tuple[float, int]]] = {name: [] for name in compared}
    wrong: dict[str, int] = {}
    for step in range(steps):
        for place in np.random.default_rng([10, step]).permutation(len(compared)):  # another order in each round
            name = list(compared)[place]
            comm.barrier()
            before, start = _sent(), perf_counter()
            result = compared[name]()
            seconds = perf_counter() - start
            taken[name].append((seconds, _sent() - before))
            if step == steps - 1:
                wrong[name] = wrong_entries(result, expected)
    needed = (8 + values.itemsize) * (len(keys) + len(expected[0]))  # bytes of keys and values that come and go
    own = [[*np.median(taken[name], axis=0).tolist(), memory[name] / max(needed, 1), wrong[name]] for name in compared]
    most = comm.allreduce(np.array(own), "max", control=True)
    rows = {
        name: {"seconds": row[0], "bytes": row[1], "memory": row[2], "wrong": int(row[3])}
        for name, row in zip(compared, most.tolist(), strict=True)
    }
    return facts | {"chosen": chosen[0].algorithm, "skipped": skipped, "candidates": rows}


def _sent() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    rows = [line.replace(":", " ").split() for line in lines]
    return sum(int(row[9]) for row in rows if row[0] != "lo")


def _peak(work: Work) -> float:
    tracemalloc.start()
    try:
        result = work()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    del result
    return peak


def wrong_entries(result: Any, expected: tuple[np.ndarray, np.ndarray]) -> int:
    """Return how many keys are missing in a result, are too many, or have another sum."""
    if isinstance(result, tuple):
        keys, values = result
    elif isinstance(result, np.ndarray):
        keys = np.flatnonzero(result)
        values = result[keys]
    else:
        result.sort_indices()
        keys, values = result.indices, result.data
    both, ours, theirs = np.intersect1d(keys, expected[0], assume_unique=True, return_indices=True)
    equal = np.isclose(values[ours], expected[1][theirs], rtol=1e-9, atol=0)
    return len(keys) + len(expected[0]) - len(both) - int(np.count_nonzero(equal))


def _table(name: str, found: dict[str, Any], ranks: int) -> list[str]:
    rows = found["candidates"]
    best = best_of_others(rows)
    table = Table(
        Column("", -20, "name"),
        Column("ms", 10, "seconds", ".2f", 1e3),
        Column("MB sent", 10, lambda row: row["bytes"] / 1e6, ".3f"),
        Column("memory", 8, "memory", ".2f"),
        Column("best rival / it", 16, lambda row: best / row["seconds"], ".2f"),
    )
    return [
        f"{name}: P = {ranks}, {found['entries']:,} entries of {found['n']:,} keys, {found['result']:,} in the result, "
        f"fill-in {found['fill-in']:.2f}, auto took {found['chosen']}",
        *table.lines({"name": candidate, **row} for candidate, row in rows.items()),
        *(f"{each:<20} gave another sum at {row['wrong']:,} keys" for each, row in rows.items() if row["wrong"]),
        *(f"{name:<20} not compared: {reason}" for name, reason in found["skipped"].items()),
        "",
    ]


def as_markdown(jobs: Sequence[dict[str, Any]]) -> str:
    names = dict.fromkeys(name for job in jobs for name in job["cases"])
    found = [(name, job, job["cases"][name]) for name in names for job in jobs if name in job["cases"]]

    def gain(row: Job) -> str:
        candidates = row[2]["candidates"]
        best = best_of_others(candidates)
        return f"{best / candidates[AUTO]['seconds']:.2f}" if math.isfinite(best) else "-"

    columns = (
        Column("keys", -1, lambda row: row[0]),
        Column("P", 1, lambda row: row[1]["ranks"]),
        Column("rate", 1, lambda row: row[1]["rate"] + "\\*" * below(row[1])),
        Column("fill-in", 1, lambda row: row[2]["fill-in"], ".2f"),
        Column("auto took", -1, lambda row: row[2]["chosen"]),
        *(Column(name, 1, partial(cell, name)) for name in (AUTO, *RIVALS)),
        Column("best rival / auto", 1, gain),
    )
    skipped = [(name, *each) for name, _, case in found for each in case["skipped"].items()]
    reasons = dict.fromkeys(f"{name}: no {each}: {why}" for name, each, why in skipped)
    head = [[column.title for column in columns], ["---" if column.width < 0 else "---:" for column in columns]]
    cells = [*head, *([column.text(row) for column in columns] for row in found)]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in cells), "", LEGEND, *reasons, *shortfalls(jobs)])


def cell(candidate: str, row: Job) -> str | None:
    numbers = row[2]["candidates"].get(candidate)
    if numbers is None:
        return None
    memory = "-" if numbers["memory"] is None else f"{numbers['memory']:.1f}"
    return f"{1e3 * numbers['seconds']:.3g}, {numbers['bytes'] / 1e6:.3g}, {memory}"


SPARSE = Benchmark(
    "sparse",
    help="sums of data that is sparse already, beside pickled and dense ones",
    description=DESCRIPTION,
    options=(
        count("--n", 10_000_000, "keys that there are"),
        count("--entries", 100_000, "that a rank has, at most"),
        option("--cases NAME", "of data", default=[*CASES], nargs="*", choices=[*CASES]),
        option(
            "--fill-in F",
            "cases besides: the result has F times the entries of a rank; of more than P there is none",
            values.positive,
            [],
            nargs="+",
        ),
        option(
            "--data DIR",
            "cases besides: folders of rank-0.npz, rank-1.npz, ..., with keys and values, which are dealt to the ranks",
            values.folder("runs/kmers"),
            [],
            nargs="+",
        ),
        count("--steps", 5, "of each, after one more"),
        option("--json FILE", "also write all numbers, with what they were measured on", values.record),
    ),
    measure=measure,
    check=check,
    collective=True,
)
