"""``python -m sparse_mpi bench sparse``: collectives of data that is sparse already, beside what others offer."""

from __future__ import annotations

import argparse
import math
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi import collectives
from sparse_mpi.collectives.choice import Choice
from sparse_mpi.comm import Comm
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.bench.sparse_cases import CASES, filled, stored
from sparse_mpi.tools.cli import options, values
from sparse_mpi.tools.cli.benchmark import Benchmark, Output
from sparse_mpi.tools.cli.options import count, option
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.cli.sparse_rivals import best_of_others, candidates, gloo
from sparse_mpi.tools.cli.table import Column, Table

DESCRIPTION = """\
The sum of sparse vectors over all ranks, by each algorithm of sparse_mpi.allreduce and by what users of mpi4py and
torch have without it: comm.allreduce of a pickled csr_array, comm.allgather and a sum, Allreduce of a dense buffer, and
torch.distributed.all_reduce of a sparse tensor by gloo. All take turns, in changing order. Every result is checked.

  python -m sparse_mpi bench network --ranks 8 --rate 1gbit -- bench sparse --n 10000000 --entries 100000

On several emulated networks: python -m sparse_mpi bench sparse-compare
"""
MEASURED = (
    count("--n", 10_000_000, "keys that there are (default: 10000000)"),
    count("--entries", 100_000, "that a rank has, at most (default: 100000)"),
    options.several("--cases", CASES, "of data", nargs="*"),
    option(
        "--fill-in F",
        "cases besides: the result has F times the entries of a rank, 1 to P",
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
    count("--steps", 5, "of each, after one more (default: 5)"),
)


def check(args: argparse.Namespace) -> None:
    """Raise Refused unless the options are good."""
    for folder in args.data:
        if not (folder / "rank-0.npz").exists():
            raise Refused(f"--data {folder} must be a folder with rank-0.npz, as the examples --save it")
    names = names_of(args)
    if twice := [name for name in names if names.count(name) > 1]:
        raise Refused(f"--cases, --fill-in and folders of --data must have different names, got {twice[0]} twice")


def names_of(args: argparse.Namespace) -> list[str]:
    """Return the names of all cases, in their order."""
    return [*args.cases, *(f"fill-in {fill_in:g}" for fill_in in args.fill_in), *(each.name for each in args.data)]


def measure(args: argparse.Namespace, comm: Comm) -> Iterator[Output]:
    """Yield the tables of all cases, and the record."""
    comm.job.guard()
    names, found = names_of(args), {}
    with gloo(comm) as no_gloo, Bar(len(names), "cases", comm.rank == 0) as bar:
        for place, name in enumerate(names):
            bar.say(name)
            found[name] = _measure(*_data(place, args, comm), args.steps, comm, no_gloo)
            bar.update()
    yield "\n".join(line for name in names for line in _table(name, found[name], comm.size))
    asked = records.options(args) | {"data": [str(folder) for folder in args.data]}
    yield {"ranks": comm.size, "options": asked, "cases": found}


def _data(place: int, args: argparse.Namespace, comm: Comm) -> tuple[np.ndarray, np.ndarray, int]:
    """Return this rank's keys and values of one case, and how many keys there are."""
    made = [*(CASES[name] for name in args.cases), *map(filled, args.fill_in)]
    try:
        if place < len(made):
            keys = made[place](comm.rank, comm.size, args.n, args.entries)
            return keys, np.random.default_rng([9, comm.rank]).integers(1, 100, len(keys)).astype(np.float64), args.n
        keys, values = stored(args.data[place - len(made)], comm.rank, comm.size)
    except ValueError as problem:
        raise Refused(f"--fill-in or --data: {problem}") from None
    highest = np.array([keys.max(initial=0)], np.int64)
    return keys, values, int(comm.allreduce(highest, "max", control=True)[0]) + 1


def _measure(keys: np.ndarray, values: np.ndarray, n: int, steps: int, comm: Comm, no_gloo: str) -> dict[str, Any]:
    """Return what each candidate takes, and what there is to add up."""
    compared, skipped = candidates(keys, values, n, comm, no_gloo)
    chosen: list[Choice] = []
    expected = collectives.allreduce((keys, values), comm=comm, tell=chosen.append)
    sizes = comm.allgather(np.array([len(keys)]), control=True)
    result, total = len(expected[0]), int(sizes.sum())
    facts = {"n": n, "entries": total, "result": result, "fill-in": comm.size * result / max(total, 1)}
    memory = {}
    for name, candidate in list(compared.items()):  # which also compiles and connects
        try:
            memory[name] = _peak(candidate.work) if candidate.traced else _once(candidate.work)
        except ValueError as refusal:
            if not candidate.ours:
                raise
            skipped[name] = str(refusal)
            del compared[name]
    taken: dict[str, list[tuple[float, int]]] = {name: [] for name in compared}
    for step in range(steps):
        for place in np.random.default_rng([10, step]).permutation(len(compared)):  # nobody always follows the same one
            name = list(compared)[place]
            comm.barrier()
            before, start = _sent(), perf_counter()
            result = compared[name].work()
            seconds = perf_counter() - start
            taken[name].append((seconds, _sent() - before))
            if step == steps - 1:
                _check(result, expected, name)
    needed = (8 + values.itemsize) * (len(keys) + len(expected[0]))  # bytes of keys and values that come and go
    own = [[*np.median(taken[name], axis=0).tolist(), memory[name] / max(needed, 1)] for name in compared]
    most = comm.allreduce(np.array(own), "max", control=True)
    rows = {
        name: {"seconds": row[0], "bytes": row[1], "memory": None if math.isnan(row[2]) else row[2]}
        for name, row in zip(compared, most.tolist(), strict=True)
    }
    return facts | {"chosen": chosen[0].algorithm, "skipped": skipped, "candidates": rows}


def _sent() -> int:
    """Return the bytes that have left this host by its network, headers included. An emulated host has its own."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    rows = [line.replace(":", " ").split() for line in lines]
    return sum(int(row[9]) for row in rows if row[0] != "lo")


def _peak(work: Callable[[], Any]) -> float:
    """Return the bytes of memory that ``work`` holds at most."""
    tracemalloc.start()
    try:
        result = work()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    del result
    return peak


def _once(work: Callable[[], Any]) -> float:
    """Do ``work``, whose memory is not known."""
    work()
    return math.nan


def _check(result: Any, expected: tuple[np.ndarray, np.ndarray], name: str) -> None:
    """Raise unless a result is the sum."""
    if isinstance(result, tuple):
        keys, values = result
    elif isinstance(result, np.ndarray):
        keys = np.flatnonzero(result)
        values = result[keys]
    else:
        result.sort_indices()
        keys, values = result.indices, result.data
    if not (np.array_equal(keys, expected[0]) and np.allclose(values, expected[1], rtol=1e-9, atol=0)):
        raise RuntimeError(f"{name} gave another sum")


def _table(name: str, found: dict[str, Any], ranks: int) -> list[str]:
    """Return lines for people."""
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
        *(f"{name:<20} not compared: {reason}" for name, reason in found["skipped"].items()),
        "",
    ]


SPARSE = Benchmark(
    "sparse",
    help="sums of data that is sparse already, beside pickled, dense and gloo's",
    description=DESCRIPTION,
    options=(*MEASURED, options.json()),
    measure=measure,
    check=check,
    collective=True,
)
