"""``python -m sparse_mpi bench wire``: how fast every message format is written and read, and how small it is.

Speeds are GB/s of pairs, 8 bytes each, whatever the format makes of them; a copy of the same pairs is measured beside.
To pack with rounding is to read the rounded values back, too: the residual needs them. Medians over the rounds, in
each of which every format has its turn. Entries are the largest of a normal vector, as a selection has them; what
rounding takes is the root mean square over that of the values, and once more for as many normal values of any size.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi.sparse import SparseVector, equal_boundaries, regions_of, split_counts
from sparse_mpi.tools.bench.progress import progress
from sparse_mpi.tools.cli import options
from sparse_mpi.tools.cli.benchmark import Benchmark, Output
from sparse_mpi.tools.cli.options import count
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.cli.table import Column, Table
from sparse_mpi.wire import WIRES, encode

PAIR = 8  # bytes
TABLE = Table(
    Column("format", -12, "name"),
    Column("bytes/pair", 10, "bytes a pair", ".3f"),
    Column("pack GB/s", 10, "pack", ".2f"),
    Column("unpack GB/s", 12, "unpack", ".2f"),
    Column("error", 8, "error", ".2%"),
    Column("of any size", 12, "error of any size", ".2%"),
)


def check(args: argparse.Namespace) -> None:
    """Raise Refused unless there is an element for each message."""
    if args.messages > args.n:
        raise Refused(f"--messages must be at most --n, got {args.messages} and {args.n}; for example --messages 16")


def measure(args: argparse.Namespace) -> Iterator[Output]:
    """Yield the table of every density, and the record."""
    cases = []
    for density in progress(args.density, "densities"):
        cases.append(case := _measure(density, args))
        heading = (
            f"n = {args.n:,}, density {density:g}: {case['pairs']:,} pairs in {args.messages} messages; "
            f"copying them: {case['copy']:.2f} GB/s"
        )
        rows = TABLE.lines({"name": name, **numbers} for name, numbers in case["formats"].items())
        yield "\n".join([heading, *rows, ""])
    yield {"cases": cases}


def _measure(density: float, args: argparse.Namespace) -> dict[str, Any]:
    """Return GB/s, bytes a pair and relative errors of every format."""
    rng, count = np.random.default_rng(args.seed), max(1, round(density * args.n))
    x = rng.standard_normal(args.n, np.float32)
    indices = np.sort(np.argpartition(np.abs(x), args.n - count)[args.n - count :]).astype(np.int32)
    vector, of_any_size = (SparseVector(indices, values, args.n) for values in (x[indices], x[:count]))
    boundaries = equal_boundaries(args.n, args.messages)
    counts, regions = split_counts(vector, boundaries), regions_of(boundaries)
    pairs = encode(vector)
    work: dict[str, Callable[[], Any]] = {"copy": pairs.copy}
    sizes, errors = {}, {}
    for name, wire in WIRES.items():
        packed = wire.pack(vector, counts, regions)
        sizes[name] = packed.buffer.nbytes / count
        errors[name] = [
            _error(packed.vector, vector),
            _error(wire.pack(of_any_size, counts, regions).vector, of_any_size),
        ]
        work[f"pack {name}"] = partial(wire.pack, vector, counts, regions)
        work[f"unpack {name}"] = partial(wire.unpack, packed.buffer, packed.lengths, regions, args.n, np.float32)
    speeds = {name: PAIR * count / seconds / 1e9 for name, seconds in _time(work, args.rounds).items()}
    formats = {
        name: {
            "bytes a pair": sizes[name],
            "pack": speeds[f"pack {name}"],
            "unpack": speeds[f"unpack {name}"],
            "error": errors[name][0],
            "error of any size": errors[name][1],
        }
        for name in WIRES
    }
    return {"density": density, "pairs": count, "copy": speeds["copy"], "formats": formats}


def _error(rounded: SparseVector, vector: SparseVector) -> float:
    """Return what rounding took, over the values: both by their Euclidean norm."""
    return float(np.linalg.norm(rounded.values - vector.values) / np.linalg.norm(vector.values))


def _time(work: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return median seconds of each; a first round, in which things are compiled, does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for number in range(-1, rounds):
        for name, call in work.items():
            start = perf_counter()
            call()
            if number >= 0:
                seconds[name].append(perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


WIRE = Benchmark(
    "wire",
    help="speed and size of every message format",
    description="Write and read messages of the largest entries of a normal float32 vector in every format. "
    "Example: python -m sparse_mpi bench wire --density 0.001 0.01 0.05 --messages 16 --json wire.json",
    options=(
        count("--n", 14_728_266, "elements of the vector; VGG-16 by default"),
        options.share("share that is sent", (0.001, 0.01, 0.05), nargs="+"),
        count("--messages", 1, "into which they are split, by equal regions"),
        count("--rounds", 15, "measurements of each format"),
        options.seed(),
        options.json(),
    ),
    measure=measure,
    check=check,
)
