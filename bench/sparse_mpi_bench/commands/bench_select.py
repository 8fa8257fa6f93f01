"""``python -m sparse_mpi bench select``: the selection kernels beside the memory floor and what others offer.

The floors are measured in the same run on the same buffers: a read pass (the maximum of the vector) for selection, a
copy of 12 bytes an element (6 read, 6 written) for ``residual += gradient`` with selection. Every round runs every
method once, so that what else happens on the machine hits all alike; medians over the rounds, with the range between
order statistics that covers the true median in 95 % of all cases.

``python -m sparse_mpi bench wire``: how fast every message format is written and read, and how small it is.

Speeds are GB/s of pairs, 8 bytes each, whatever the format makes of them; a copy of the same pairs is measured beside.
To pack with rounding is to read the rounded values back, too: the residual needs them. Medians over the rounds, in
each of which every format has its turn. Entries are the largest of a normal vector, as a selection has them; what
rounding takes is the root mean square over that of the values, and once more for as many normal values of any size.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, like, namespace, synchronize
from sparse_mpi.cli import options, values
from sparse_mpi.cli.benchmark import Benchmark, Output
from sparse_mpi.cli.options import count, option
from sparse_mpi.cli.progress import progress
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import Refused
from sparse_mpi.kernels import threads
from sparse_mpi.select.exact import top_k
from sparse_mpi.sparse import SparseVector, equal_boundaries, regions_of, split_counts
from sparse_mpi.wire import WIRES, BitPacked, encode
from sparse_mpi_bench.figures.draw_volume import select as figure

SIZES = (1_000_000, 14_728_266, 27_600_000, 133_500_000)  # ..., VGG-16, LSTM, BERT
LEAST = 6  # rounds: the range of six covers the median in 97 % of all cases
MOST = 0.5  # density: beyond it, selecting saves nothing
MERGED = 4  # ranks whose pairs are merged
WIRE = BitPacked()
ROW = 1024  # entries of a row of the matrix for row-wise top-k
Method = Callable[[], Any]


def check(args: argparse.Namespace) -> None:
    """Raise Refused unless the densities are some that selecting is for."""
    if max(args.density) > MOST:
        raise Refused(f"--density must be in (0, {MOST}], got {max(args.density):g}; for example --density 0.01")


def measure(args: argparse.Namespace) -> Iterator[Output]:
    """Yield the table of every case, and the record."""
    counts = [1] if args.device == "gpu" else args.threads or sorted({1, threads.limit()})
    cases = []
    for n in args.n:
        x = _vector(n, args)
        for number, density in progress(list(itertools.product(counts, args.density)), "cases"):
            with _limited(number):
                taken = _measure(_methods(x, max(1, round(density * n))), x, args.rounds, args.seconds)
            measured = {name: [round(each, 7) for each in seconds] for name, seconds in taken.items()}
            cases.append({"n": n, "density": density, "threads": number, "methods": measured})
            yield _render(cases[-1])
    yield {"cases": cases}


def _vector(n: int, args: argparse.Namespace) -> Array:
    host = np.random.default_rng(args.seed).standard_normal(n, np.float32)
    if args.device == "cpu":
        return host
    try:
        import cupy

        return like(host, cupy.empty(0))
    except Exception as error:  # no CuPy, no driver, no device: CuPy has many ways to say so
        raise SystemExit(f"--device gpu needs CuPy and a GPU: {error}; see python -m sparse_mpi doctor") from None


@contextmanager
def _limited(count: int) -> Iterator[None]:
    """Let kernels, torch and the floors use ``count`` threads within the block."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(count)
    if torch := _torch():
        torch.set_num_threads(count)
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _methods(x: Array, k: int) -> dict[str, Method]:
    """Return what is timed, by name: the floors first."""
    n, own = len(x), kernels.of(x)
    threshold = kernels.kth_magnitude(x, k, most=k)
    residual, gradient = x.copy(), namespace(x).zeros_like(x)
    source = namespace(x).ones(n + n // 2, np.float32)
    target = namespace(x).empty_like(source)
    matrix = x[: n // ROW * ROW].reshape(-1, ROW)
    each = max(1, k * ROW // n)

    def parts(work: Callable[[int, int], Any], size: int) -> Any:
        return threads.each(work, threads.parts(size) if isinstance(x, np.ndarray) else [(0, size)])

    pairs = top_k(x, k)
    counts, region = np.array([k]), np.array([[0, n]])
    message = WIRE.pack(pairs, counts, region)
    drawn = np.sort(np.random.default_rng(0).integers(0, n, (MERGED, k)))
    several = like(np.concatenate([np.unique(run) for run in drawn]).astype(pairs.indices.dtype), x)
    values = x[several]

    methods: dict[str, Method] = {
        "read": lambda: parts(lambda lo, hi: x[lo:hi].max(), n),
        "copy": lambda: parts(lambda lo, hi: namespace(x).copyto(target[lo:hi], source[lo:hi]), len(source)),
        "select": lambda: own.select(x, threshold, 2 * k),
        "accumulate + select": lambda: own.accumulate_select(residual, gradient, threshold, 2 * k),
        "exact top-k": lambda: top_k(x, k),
        "exact k-th": lambda: kernels.kth_magnitude(x, k, most=k),
        "top-k of rows": lambda: own.top_k_rows(matrix, each),
        "truncate to a half": lambda: own.truncate(pairs.indices, pairs.values, max(1, k // 2)),
        "pack": lambda: WIRE.pack(pairs, counts, region),
        "unpack": lambda: WIRE.unpack(message.buffer, message.lengths, region, n, np.float32),
        "merge of 4": lambda: own.merge(several, values, n),
        "argpartition": lambda: namespace(x).argpartition(namespace(x).abs(x), n - k)[n - k :],
    }
    return methods | (_torch_methods(x, k, threshold, each) if _torch() else {})


def _torch_methods(x: Array, k: int, threshold: int, each: int) -> dict[str, Method]:
    torch = _torch()
    tensor = torch.from_numpy(x) if isinstance(x, np.ndarray) else torch.from_dlpack(x)
    magnitude = float(np.int32(threshold).view(np.float32))
    matrix = tensor[: len(x) // ROW * ROW].view(-1, ROW)

    def unfused() -> Any:
        chosen = (tensor.abs() >= magnitude).nonzero().squeeze(1)
        return chosen, tensor[chosen]

    return {
        "torch threshold": unfused,
        "torch.topk": lambda: torch.topk(tensor.abs(), k),
        "torch.kthvalue": lambda: torch.kthvalue(tensor.abs(), len(x) - k + 1),
        "torch.topk of rows": lambda: torch.topk(matrix.abs(), each, dim=1),
    }


def _measure(methods: dict[str, Method], x: Array, rounds: int, most: float = math.inf) -> dict[str, list[float]]:
    """Return seconds of every method in every round; a first round, in which things are compiled, does not count.

    No round begins after ``most`` seconds, once `LEAST` rounds are done. Methods work on arrays like ``x``.
    """
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    began = perf_counter()
    for number in range(-1, rounds):
        if number >= LEAST and perf_counter() - began > most:
            break
        for name, method in methods.items():
            synchronize(x)
            start = perf_counter()
            method()
            synchronize(x)
            if number >= 0:
                seconds[name].append(perf_counter() - start)
    return seconds


def interval(values: list[float]) -> tuple[float, float]:
    """Return the order statistics that enclose the true median in 95 % of all cases, for six values and more."""
    ordered, n = sorted(values), len(values)
    outside, tail = 0, 0.5**n
    while tail + math.comb(n, outside + 1) * 0.5**n <= 0.025:
        outside += 1
        tail += math.comb(n, outside) * 0.5**n
    return ordered[outside], ordered[n - 1 - outside]


def _render(case: dict[str, Any]) -> str:
    rows = {}
    for name, seconds in case["methods"].items():
        low, high = (f"{1e3 * end:.2f}" for end in interval(seconds))
        rows[name] = {"name": name, "median": statistics.median(seconds), "range": f"{low} ..{high:>8}"}
    medians = {name: row["median"] for name, row in rows.items()}
    topk = medians.get("torch.topk")
    table = Table(
        Column("", -20, "name"),
        Column("ms", 9, "median", ".2f", 1e3),
        Column("95 % interval", 20, "range"),
        Column("ns/element", 10, "median", ".3f", 1e9 / case["n"]),
        Column("/read", 7, "median", ".2f", 1 / medians["read"]),
        Column("/copy", 7, "median", ".2f", 1 / medians["copy"]),
        Column("topk/it", 8, lambda row: topk and topk / row["median"], ".1f"),
    )
    heading = f"n = {case['n']:,}, density {case['density']:g}, {case['threads']} threads, "
    return "\n".join([f"{heading}{len(case['methods']['read'])} rounds", *table.lines(rows.values()), ""])


SELECT = Benchmark(
    "select",
    help="time of the selection kernels, beside the memory floor and torch, NumPy",
    description="Time an element of the selection kernels on a normal vector. "
    "Example: python -m sparse_mpi bench select --json select.json --plot select.png",
    options=(
        count("--n", SIZES, "elements of the vector", ROW, nargs="+"),
        options.share("share selected", (0.001, 0.01, 0.02), nargs="+"),
        count("--threads", None, "CPU threads (default: 1 and all there are)", nargs="+"),
        count("--rounds", 15, f"measurements of each method, at least {LEAST}", LEAST),
        option("--seconds", f"a case ends after so many seconds, once {LEAST} rounds are done", values.positive, 20),
        option("--device", "where the vector lies", choices=["cpu", "gpu"], default="cpu"),
        options.seed(),
        options.json(),
        options.plot("also draw ns an element over n (needs matplotlib)"),
    ),
    measure=measure,
    check=check,
    figure=figure,
)


PAIR = 8  # bytes
TABLE = Table(
    Column("format", -12, "name"),
    Column("bytes/pair", 10, "bytes a pair", ".3f"),
    Column("pack GB/s", 10, "pack", ".2f"),
    Column("unpack GB/s", 12, "unpack", ".2f"),
    Column("error", 8, "error", ".2%"),
    Column("of any size", 12, "error of any size", ".2%"),
)


def check_wires(args: argparse.Namespace) -> None:
    """Raise Refused unless there is an element for each message."""
    if args.messages > args.n:
        raise Refused(f"--messages must be at most --n, got {args.messages} and {args.n}; for example --messages 16")


def measure_wires(args: argparse.Namespace) -> Iterator[Output]:
    """Yield the table of every density, and the record."""
    cases = []
    for density in progress(args.density, "densities"):
        cases.append(case := _formats(density, args))
        heading = (
            f"n = {args.n:,}, density {density:g}: {case['pairs']:,} pairs in {args.messages} messages; "
            f"copying them: {case['copy']:.2f} GB/s"
        )
        rows = TABLE.lines({"name": name, **numbers} for name, numbers in case["formats"].items())
        yield "\n".join([heading, *rows, ""])
    yield {"cases": cases}


def _formats(density: float, args: argparse.Namespace) -> dict[str, Any]:
    """Return GB/s, bytes a pair and relative errors of every format."""
    rng, count = np.random.default_rng(args.seed), max(1, round(density * args.n))
    x = rng.standard_normal(args.n, np.float32)
    indices = np.sort(np.argpartition(np.abs(x), args.n - count)[args.n - count :]).astype(np.int32)
    vector, of_any_size = (SparseVector(indices, values, args.n) for values in (x[indices], x[:count]))
    boundaries = equal_boundaries(args.n, args.messages)
    counts, regions = np.asarray(split_counts(vector, boundaries)), regions_of(boundaries)
    pairs = encode(vector)
    work: dict[str, Method] = {"copy": pairs.copy}
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
    taken = _measure(work, pairs, args.rounds)
    speeds = {name: PAIR * count / statistics.median(seconds) / 1e9 for name, seconds in taken.items()}
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
    return float(np.linalg.norm(rounded.values - vector.values) / np.linalg.norm(vector.values))


WIRE_FORMATS = Benchmark(
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
    measure=measure_wires,
    check=check_wires,
)
