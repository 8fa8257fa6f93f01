"""A child of the doctor: how long does the first step spend on its kernels?

``python -m sparse_mpi.cli.doctor.first_step`` calls every kernel of the CPU set once, as a first step on float32
gradients does. Numba compiles what it does not find in its cache and leaves it there, so the next process finds it.
Prints a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi.arrays import magnitude_bits
from sparse_mpi.kernels.base import SCALED
from sparse_mpi.wire.packed import BitPacked


def calls(x: np.ndarray) -> dict[str, Callable[[Any], Any]]:
    """Return a call of every kernel: name -> function of the kernel set."""
    half = int(np.median(magnitude_bits(x)))
    indices, n = np.arange(0, len(x), 3, dtype=np.int32), len(x)
    values, pairs = x[indices], np.concatenate([indices, indices])
    count = np.array([len(indices)])
    (laid, *_), no_scales = BitPacked().lay_out(count, np.array([[0, n]]), x.dtype), np.empty(0, np.float32)
    edges = np.append(np.arange(0, len(values), SCALED), len(values))
    return {
        "histogram": lambda cpu: [cpu.histogram(x, 31, 0, 16), cpu.histogram(x, 15, half >> 15, 15)],
        "kth_bin": lambda cpu: cpu.kth_bin(np.arange(1 << 16), 1),
        "count": lambda cpu: cpu.count(x, np.array([0, half])),
        "smallest": lambda cpu: cpu.smallest(x),
        "count_select": lambda cpu: cpu.count_select(x, np.array([half, half + 1])),
        "select": lambda cpu: cpu.select(x, half, n),
        "accumulate": lambda cpu: cpu.accumulate(x.copy(), x),
        "accumulate_select": lambda cpu: cpu.accumulate_select(x.copy(), x, half, n),
        "top_k_rows": lambda cpu: cpu.top_k_rows(x.reshape(64, -1), 4),
        "sketch": lambda cpu: cpu.sketch(x, 0),
        "moments": lambda cpu: cpu.moments(x, half),
        "add": lambda cpu: cpu.add(x.copy(), indices, values),
        "add_merged": lambda cpu: cpu.add_merged(x.copy(), pairs, x[pairs]),
        "subtract": lambda cpu: cpu.subtract(x.copy(), indices, values),
        "subtract_dense": lambda cpu: cpu.subtract_dense(x.copy(), x),
        "follow_squares": lambda cpu: cpu.follow_squares(x.copy(), x, 0.1),
        "gather": lambda cpu: cpu.gather(x, indices),
        "clear": lambda cpu: cpu.clear(x.copy(), indices),
        "mark": lambda cpu: cpu.mark(np.zeros(n // 8 + 1, np.uint8), indices),
        "merge": lambda cpu: cpu.merge(pairs, x[pairs], n),
        "merge_runs": lambda cpu: cpu.merge_runs([(indices, values)] * 2, n),
        "split_counts": lambda cpu: cpu.split_counts(indices, np.array([0, n])),
        "to_pairs": lambda cpu: cpu.to_pairs(indices, values, np.dtype(np.int32)),
        "from_pairs": lambda cpu: cpu.from_pairs(pairs.reshape(-1, 2), indices.dtype, values.dtype),
        "contains": lambda cpu: cpu.contains(indices, indices[1::2]),
        "compress": lambda cpu: cpu.compress(indices, values, values > 0),
        "truncate": lambda cpu: cpu.truncate(indices, values, 100),
        "to_bfloat16": lambda cpu: cpu.to_bfloat16(x),
        "to_float16": lambda cpu: cpu.to_float16(x),
        "to_int8": lambda cpu: cpu.to_int8(values, indices, edges),
        "from_int8": lambda cpu: cpu.from_int8(*cpu.to_int8(values, indices, edges), edges),
        "to_int4": lambda cpu: cpu.to_int4(values, indices, edges),
        "to_int2": lambda cpu: cpu.to_int2(values, edges),
        "from_levels": lambda cpu: cpu.from_levels(*cpu.to_int4(values, indices, edges), edges, 4),
        "deal": lambda cpu: cpu.deal(indices, values, n, 4),
        "undeal": lambda cpu: cpu.undeal(indices, n, 4),
        "changes": lambda cpu: cpu.changes(x, indices, values),
        "to_ballots": lambda cpu: cpu.to_ballots(values, indices, n),
        "from_ballots": lambda cpu: cpu.from_ballots(indices, values, n),
        "add_rows": lambda cpu: cpu.add_rows(x.reshape(2, -1)),
        "lay_out": lambda cpu: cpu.lay_out(count, np.array([[0, n]]), count, count, count),
        "write_messages": lambda cpu: cpu.write_messages(laid, indices, values, no_scales),
        "read_messages": lambda cpu: cpu.read_messages(laid, cpu.write_messages(laid, indices, values, no_scales), n),
    }


def dispatchers() -> list[Any]:
    """Return the compiled functions of the kernel set's modules."""
    modules = [module for name, module in sys.modules.items() if name.startswith("sparse_mpi.kernels.")]
    found = {id(thing): thing for module in modules for thing in vars(module).values() if hasattr(thing, "stats")}
    return list(found.values())


def main() -> None:
    """Time the import of Numba and the first call of every kernel."""
    x = np.random.default_rng(0).standard_normal(1 << 14, np.float32)
    start = perf_counter()
    from sparse_mpi.kernels import cpu  # or raise, where a step would do without Numba

    seconds = {"import": perf_counter() - start}
    for name, call in calls(x).items():
        start = perf_counter()
        call(cpu)
        seconds[name] = perf_counter() - start
    stats = [dispatcher.stats for dispatcher in dispatchers()]
    folders = sorted({s.cache_path for s in stats if s.cache_path})
    print(
        json.dumps(
            {
                "seconds": seconds,
                "compiled": sum(sum(s.cache_misses.values()) for s in stats),
                "cached": sum(sum(s.cache_hits.values()) for s in stats),
                "folders": folders,
                "writable": all(os.access(folder, os.W_OK) for folder in folders),
            }
        )
    )


if __name__ == "__main__":
    main()
