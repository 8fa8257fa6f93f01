"""``python -m sparse_mpi bench wire``: how fast every message format is written and read, and how small it is.

Speeds are GB/s of pairs, 8 bytes each, whatever the format makes of them; a copy of the same pairs is measured beside.
To pack with rounding is to read the rounded values back, too: the residual needs them. Medians over the rounds, in
each of which every format has its turn. Entries are the largest of a normal vector, as a selection has them; what
rounding takes is the root mean square over that of the values, and once more for as many normal values of any size.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi.sparse import SparseVector, equal_boundaries, split_counts
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.progress import progress
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.cli import values
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.wire import WIRES, encode, regions_of

PAIR = 8  # bytes


def add_parser(kinds: argparse._SubParsersAction) -> None:
    """Declare ``bench wire``."""
    parser = kinds.add_parser(
        "wire",
        help="speed and size of every message format",
        description="Write and read messages of the largest entries of a normal float32 vector in every format. "
        "Example: python -m sparse_mpi bench wire --density 0.001 0.01 0.05 --messages 16 --json wire.json",
    )
    parser.add_argument(
        "--n", type=values.integer(1), default=14_728_266, help="elements of the vector; VGG-16 by default"
    )
    parser.add_argument(
        "--density", type=values.share, nargs="+", default=(0.001, 0.01, 0.05), help="share that is sent"
    )
    parser.add_argument(
        "--messages", type=values.integer(1), default=1, help="into which they are split, by equal regions"
    )
    parser.add_argument("--rounds", type=values.integer(1), default=15, help="measurements of each format")
    parser.add_argument("--seed", type=values.integer(0), default=0, help="of all that is drawn at random")
    parser.add_argument(
        "--json", type=values.record, metavar="FILE", help="also write all numbers, with what they were measured on"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    if args.messages > args.n:
        raise Refused(f"--messages must be at most --n, got {args.messages} and {args.n}; for example --messages 16")
    cases = []
    for density in progress(args.density, "densities"):
        cases.append(_measure(density, args))
        print(_render(cases[-1], args), flush=True)
    if args.json:
        records.write(args.json, {"options": records.options(args)}, provenance(), {"cases": cases})
    return 0


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


def _render(case: dict[str, Any], args: argparse.Namespace) -> str:
    lines = [
        f"n = {args.n:,}, density {case['density']:g}: {case['pairs']:,} pairs in {args.messages} messages; "
        f"copying them: {case['copy']:.2f} GB/s",
        f"{'format':<12} {'bytes/pair':>10} {'pack GB/s':>10} {'unpack GB/s':>12} {'error':>8} {'of any size':>12}",
    ]
    for name, m in case["formats"].items():
        lines.append(
            f"{name:<12} {m['bytes a pair']:10.3f} {m['pack']:10.2f} {m['unpack']:12.2f} "
            f"{m['error']:8.2%} {m['error of any size']:12.2%}"
        )
    return "\n".join([*lines, ""])
