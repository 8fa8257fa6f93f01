"""``python -m sparse_mpi bench sparse``: collectives of data that is sparse already, beside what others offer."""

from __future__ import annotations

import argparse
import math
import tracemalloc
from collections.abc import Callable
from functools import reduce
from operator import add
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi import keyed
from sparse_mpi.bench import records
from sparse_mpi.bench.progress import Bar
from sparse_mpi.bench.provenance import provenance
from sparse_mpi.bench.sparse_cases import CASES
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.keyed.algorithms import ALGORITHMS

RIVALS = ("pickled allreduce", "pickled allgather", "dense")
DESCRIPTION = """\
The sum of sparse vectors over all ranks, by each algorithm of sparse_mpi.allreduce and by what users of mpi4py have
without it: comm.allreduce of a pickled csr_array, comm.allgather and a sum, and Allreduce of a dense buffer. All take
turns. Every result is checked.

  python -m sparse_mpi bench network --ranks 8 --rate 1gbit -- bench sparse --n 10000000 --entries 100000
"""


def add_parser(kinds: argparse._SubParsersAction) -> None:
    """Declare ``bench sparse``."""
    parser = kinds.add_parser(
        "sparse",
        help="sums of data that is sparse already, beside pickled and dense ones",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--n", type=int, default=10_000_000, help="keys that there are (default: 10000000)")
    parser.add_argument("--entries", type=int, default=100_000, help="that a rank has, at most (default: 100000)")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="NAME", help="of data")
    text = "a folder with rank-0.npz, rank-1.npz, ..., each of keys and values: a case besides"
    parser.add_argument("--data", type=Path, metavar="DIR", help=text)
    parser.add_argument("--steps", type=int, default=5, help="of each, after one more (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="also write all numbers, with what they were measured on")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, and print on rank 0."""
    if args.steps < 1 or args.n < 1 or args.entries < 1:
        raise SystemExit(f"--steps, --n and --entries must be at least 1, got {args.steps}, {args.n}, {args.entries}")
    comm = as_comm(None)
    comm.guard()
    names, found = [*args.cases, *(["data"] if args.data else [])], {}
    with Bar(len(names), "cases", comm.rank == 0) as bar:
        for name in names:
            bar.say(name)
            found[name] = _measure(*_data(name, args, comm), args.steps, comm)
            bar.update()
    if comm.rank == 0:
        print("\n".join(line for name in names for line in _table(name, found[name], comm.size)))
        if args.json:
            record = {"ranks": comm.size, "options": records.options(args), **provenance(), "cases": found}
            records.write(args.json, record)
    return 0


def _data(name: str, args: argparse.Namespace, comm: Comm) -> tuple[np.ndarray, np.ndarray, int]:
    """Return this rank's keys and values, and how many keys there are."""
    if name == "data":
        with np.load(args.data / f"rank-{comm.rank}.npz") as file:
            keys, values = file["keys"], file["values"]
        highest = np.array([keys.max(initial=0)], np.int64)
        return keys, values, int(comm.allreduce(highest, "max", control=True)[0]) + 1
    keys = CASES[name](comm.rank, comm.size, args.n, args.entries)
    return keys, np.random.default_rng([9, comm.rank]).integers(1, 100, len(keys)).astype(np.float64), args.n


def _measure(keys: np.ndarray, values: np.ndarray, n: int, steps: int, comm: Comm) -> dict[str, Any]:
    """Return what each candidate takes, and what there is to add up."""
    candidates = _candidates(keys, values, n, comm)
    expected = keyed.allreduce((keys, values), comm=comm)
    sizes = comm.allgather(np.array([len(keys)]), control=True)
    result, total = len(expected[0]), int(sizes.sum())
    facts = {"n": n, "entries": total, "result": result, "fill-in": comm.size * result / max(total, 1)}
    taken: dict[str, list[tuple[float, int]]] = {name: [] for name in candidates}
    memory = {}
    for step in range(steps + 1):
        for name, work in candidates.items():
            if step == 0:  # also compiles and connects
                memory[name] = _peak(work)
                continue
            comm.barrier()
            before, start = _sent(), perf_counter()
            result = work()
            seconds = perf_counter() - start
            taken[name].append((seconds, _sent() - before))
            if step == steps:
                _check(result, expected, n, name)
    needed = 16 * (len(keys) + len(expected[0]))  # bytes of keys and values that come and go
    own = {name: [*np.median(taken[name], axis=0).tolist(), memory[name] / needed] for name in candidates}
    table = np.array([own[name] for name in candidates])
    most = comm.allreduce(table, "max", control=True)
    rows = {
        name: {"seconds": row[0], "bytes": row[1], "memory": row[2]}
        for name, row in zip(candidates, most.tolist(), strict=True)
    }
    return facts | {"candidates": rows}


def _candidates(keys: np.ndarray, values: np.ndarray, n: int, comm: Comm) -> dict[str, Callable[[], Any]]:
    """Return what is compared, by name."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def ours(name: str) -> Callable[[], Any]:
        return lambda: keyed.allreduce((keys, values), comm=comm, algorithm=name)

    found = {name: ours(name) for name in ("auto", *ALGORITHMS)}
    try:
        from scipy.sparse import csr_array
    except ImportError:
        return found
    row = csr_array((values, keys, np.array([0, len(keys)])), shape=(1, n))
    found["pickled allreduce"] = lambda: world.allreduce(row)
    found["pickled allgather"] = lambda: reduce(add, world.allgather(row))
    if n <= 1 << 27:

        def dense() -> np.ndarray:
            buffer, total = np.zeros(n, values.dtype), np.empty(n, values.dtype)
            buffer[keys] = values
            world.Allreduce(buffer, total)
            return total

        found["dense"] = dense
    return found


def _sent() -> int:
    """Return the bytes that have left this host by its network, headers included. An emulated host has its own."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    rows = [line.replace(":", " ").split() for line in lines]
    return sum(int(row[9]) for row in rows if row[0] != "lo")


def _peak(work: Callable[[], Any]) -> int:
    """Return the bytes of memory that ``work`` holds at most."""
    tracemalloc.start()
    result = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del result
    return peak


def _check(result: Any, expected: tuple[np.ndarray, np.ndarray], n: int, name: str) -> None:
    """Raise unless a result is the sum."""
    if isinstance(result, tuple):
        good = all(np.array_equal(a, b) for a, b in zip(result, expected, strict=True))
    elif isinstance(result, np.ndarray):
        good = np.array_equal(result[expected[0]], expected[1]) and np.count_nonzero(result) == len(expected[0])
    else:
        result.sort_indices()
        good = np.array_equal(result.indices, expected[0]) and np.array_equal(result.data, expected[1])
    if not good:
        raise RuntimeError(f"{name} gave another sum")


def _table(name: str, found: dict[str, Any], ranks: int) -> list[str]:
    """Return lines for people."""
    rows = found["candidates"]
    rivals = [rows[rival]["seconds"] for rival in RIVALS if rival in rows]
    best = min(rivals) if rivals else math.inf
    lines = [
        f"{name}: P = {ranks}, {found['entries']:,} entries of {found['n']:,} keys, {found['result']:,} in the result, "
        f"fill-in {found['fill-in']:.2f}",
        f"{'':<20} {'ms':>10} {'MB sent':>10} {'memory':>8} {'best rival / it':>16}",
    ]
    for candidate, row in rows.items():
        lines.append(
            f"{candidate:<20} {1e3 * row['seconds']:10.2f} {row['bytes'] / 1e6:10.3f} {row['memory']:8.2f} "
            f"{best / row['seconds']:16.2f}"
        )
    return [*lines, ""]
