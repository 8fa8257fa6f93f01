"""``python -m sparse_mpi bench kernels``: selection, merging and message formats beside the memory floor and others.

The floors are measured in the same run on the same buffers: a read pass (the maximum of the vector) for selection, a
copy of 12 bytes an element (6 read, 6 written) for ``residual += gradient`` with selection. Every round runs every
method once; medians over the rounds stand beside their 95 % intervals. To pack with rounding is to read the rounded
values back, too: the residual needs them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, is_device, like, namespace, synchronize, to_host
from sparse_mpi.cli import values
from sparse_mpi.cli.options import count, option
from sparse_mpi.cli.progress import progress
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import Refused
from sparse_mpi.kernels import threads
from sparse_mpi.select.exact import top_k
from sparse_mpi.sparse import SparseVector, at_least
from sparse_mpi.wire import WIRES, pack_whole
from sparse_mpi_bench.benchmark import Benchmark, Output

SIZES = (1_000_000, 14_728_266, 27_600_000, 133_500_000)  # ..., VGG-16, LSTM, BERT
LEAST = 6  # rounds: the range of six covers the median in 97 % of all cases
MOST = 0.5  # density: beyond it, selecting saves nothing
MERGED = 4  # ranks whose pairs are merged
PAIR = 8  # bytes of an entry as copies and speeds of formats count them
ROW = 1024  # entries of a row of the matrix for row-wise top-k
Method = Callable[[], Any]


def check(args: argparse.Namespace) -> None:
    if max(args.density) > MOST:
        raise Refused(f"--density must be in (0, {MOST}], got {max(args.density):g}; for example --density 0.01")


def measure(args: argparse.Namespace) -> Iterator[Output]:
    counts = [1] if args.device == "gpu" else args.threads or sorted({1, threads.limit()})
    cases = []
    for n in args.n:
        x = _vector(n, args)
        for number, density in progress(list(itertools.product(counts, args.density)), "cases"):
            pairs = top_k(x, max(1, round(density * n)))
            with _limited(number):
                methods = _methods(x, pairs) | _packing(pairs, args.formats)
                taken = _measure(methods, x, args.rounds, args.seconds)
            measured = {name: [round(each, 7) for each in seconds] for name, seconds in taken.items()}
            case = {"n": n, "density": density, "threads": number, "methods": measured}
            cases.append(case | {"formats": {name: _sizes(name, x, pairs) for name in args.formats}})
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


def _methods(x: Array, pairs: SparseVector) -> dict[str, Method]:
    n, k, own = len(x), pairs.nnz, kernels.of(x)
    threshold = kernels.kth_magnitude(x, k)
    residual, gradient = x.copy(), namespace(x).zeros_like(x)
    source = namespace(x).ones(n + n // 2, np.float32)
    target = namespace(x).empty_like(source)
    matrix = x[: n // ROW * ROW].reshape(-1, ROW)
    each = max(1, k * ROW // n)

    def parts(work: Callable[[int, int], Any], size: int) -> Any:
        return threads.each(work, threads.parts(size) if isinstance(x, np.ndarray) else [(0, size)])

    drawn = np.sort(np.random.default_rng(0).integers(0, n, (MERGED, k)))
    several = like(np.concatenate([np.unique(run) for run in drawn]).astype(pairs.indices.dtype), x)
    values = x[several]

    methods: dict[str, Method] = {
        "read": lambda: parts(lambda lo, hi: x[lo:hi].max(), n),
        "copy": lambda: parts(lambda lo, hi: namespace(x).copyto(target[lo:hi], source[lo:hi]), len(source)),
        "select": lambda: own.select(x, threshold, 2 * k),
        "accumulate + select": lambda: _accumulated(residual, gradient, k, threshold),
        "exact top-k": lambda: top_k(x, k),
        "exact k-th": lambda: kernels.kth_magnitude(x, k),
        "top-k of rows": lambda: own.top_k_rows(matrix, each),
        "truncate to a half": lambda: own.truncate(pairs.indices, pairs.values, max(1, k // 2)),
        "merge of 4": lambda: own.merge(several, values, n),
        "argpartition": lambda: namespace(x).argpartition(namespace(x).abs(x), n - k)[n - k :],
    }
    return methods | (_torch_methods(x, k, threshold, each) if _torch() else {})


def _accumulated(residual: Array, gradient: Array, k: int, threshold: int) -> None:
    if is_device(residual):
        kernels.device().largest(residual, k, threshold, 2 * k, gradient)
    else:
        at_least(residual, threshold, 2 * k, gradient)


def _packing(pairs: SparseVector, formats: Sequence[str]) -> dict[str, Method]:
    region = np.array([[0, pairs.size]])
    methods: dict[str, Method] = {}
    for name in formats:
        wire, message = WIRES[name], pack_whole(WIRES[name], pairs)
        methods[f"pack {name}"] = partial(pack_whole, wire, pairs)
        methods[f"unpack {name}"] = partial(
            wire.unpack, message.buffer, message.lengths, region, pairs.size, np.float32
        )
    return methods


def _sizes(name: str, x: Array, pairs: SparseVector) -> dict[str, float]:
    of_any_size = SparseVector(pairs.indices, x[: pairs.nnz], pairs.size)
    packed = pack_whole(WIRES[name], pairs)
    return {
        "bytes a pair": packed.buffer.nbytes / pairs.nnz,
        "error": _error(packed.vector, pairs),
        "error of any size": _error(pack_whole(WIRES[name], of_any_size).vector, of_any_size),
    }


def _error(rounded: SparseVector, vector: SparseVector) -> float:
    values = to_host(vector.values)
    return float(np.linalg.norm(to_host(rounded.values) - values) / np.linalg.norm(values))


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
    """Return seconds of every method in every round; none begins after ``most`` seconds, once `LEAST` are done."""
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
    sizes = {
        name: {"name": name, **sizes, **{of: PAIR * pairs / medians[f"{of} {name}"] for of in ("pack", "unpack")}}
        for pairs in [max(1, round(case["density"] * case["n"]))]
        for name, sizes in case["formats"].items()
    }
    formats = Table(
        Column("format", -12, "name"),
        Column("bytes/pair", 10, "bytes a pair", ".3f"),
        Column("pack GB/s", 10, "pack", ".2f", 1e-9),
        Column("unpack GB/s", 12, "unpack", ".2f", 1e-9),
        Column("error", 8, "error", ".2%"),
        Column("of any size", 12, "error of any size", ".2%"),
    )
    heading = f"n = {case['n']:,}, density {case['density']:g}, {case['threads']} threads, "
    return "\n".join(
        [
            f"{heading}{len(case['methods']['read'])} rounds",
            *table.lines(rows.values()),
            "",
            *formats.lines(sizes.values()),
            "",
        ]
    )


KERNELS = Benchmark(
    "kernels",
    help="time of selection and of message formats, beside the memory floor and torch, NumPy",
    description="Time the selection kernels on a normal vector, and writing and reading messages of its largest "
    "entries in every format. Example: python -m sparse_mpi bench kernels --json kernels.json",
    options=(
        count("--n", SIZES, "elements of the vector", ROW, nargs="+"),
        option("--density", "share selected", values.share, (0.001, 0.01, 0.02), nargs="+"),
        count("--threads", None, "CPU threads (default: 1 and all there are)", nargs="+"),
        count("--rounds", 15, f"measurements of each method, at least {LEAST}", LEAST),
        option("--seconds", f"a case ends after so many seconds, once {LEAST} rounds are done", values.positive, 20),
        option("--formats NAME", "of messages (default: all)", default=[*WIRES], nargs="*", choices=[*WIRES]),
        option("--device", "where the vector lies", choices=["cpu", "gpu"], default="cpu"),
        count("--seed", 0, "of all that is drawn at random", 0),
        option("--json FILE", "also write all numbers, with what they were measured on", values.record),
    ),
    measure=measure,
    check=check,
)
