"""The cost of one rank's share of a step: ``python -m runs.gpu_check.share --json FILE``.

The ranks are a `World`'s: one process and one context, one rank at a time. A step's time over P is then one rank's
share of it, without the turns that the contexts of several processes take on one GPU. Messages are copies on the
device: neither the bus nor a network is in these times. torch's profiler, where torch is built for CUDA, counts
launches, copies and waits of the host, and names the kernels that take longest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.arrays import namespace, synchronize_device
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.values import Parser, integer
from sparse_mpi.comm import Comm
from sparse_mpi.comm.world import World
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi_bench.commands.bench_steps import on_gpu

PRIME = 1_000_003  # places by which gradients are rolled: drawing them all would take longer than the steps
COUNTED = 6  # steps that the profiler sees
WARM_UP = 4  # steps: thresholds, shares and memory are in place then
CALLS = {  # of the host, by parts of the names that CUDA's runtime and driver have for them
    "launches": ("LaunchKernel", "LaunchCooperative", "MemsetAsync"),
    "copies": ("Memcpy",),
    "waits": ("StreamSynchronize", "EventSynchronize", "DeviceSynchronize"),
}
KERNELS = 8  # that are named


def parser() -> Parser:
    parser = Parser(prog="python -m runs.gpu_check.share", description="one rank's share of a step, by a World")
    parser.add_argument("--ranks", type=integer(1), default=8)
    parser.add_argument("--n", type=integer(1), nargs="+", default=[14_728_266], help="elements")
    parser.add_argument(
        "--algorithms", nargs="+", choices=tuple(ALGORITHMS), default=["dense", "topka", "oktopk", "elect"]
    )
    parser.add_argument("--steps", type=integer(1), default=20, help="timed steps")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Time all sizes and algorithms, and print and write the results."""
    args = parser().parse_args(argv)
    cases = []
    with Bar(len(args.n) * len(args.algorithms), "cases") as bar:
        for n in args.n:
            base = np.random.default_rng(0).standard_normal(n, np.float32)
            for name in args.algorithms:
                bar.say(f"{name}, n = {n:,}")
                cases.append({"n": n, "algorithm": name, **share(name, base, args)})
                if args.json is not None:  # after each, whenever the machine goes away
                    args.json.write_text(json.dumps({"ranks": args.ranks, "cases": cases}, indent=1) + "\n")
                bar.update()
    print(render(cases, args.ranks))
    return 0


def share(name: str, base: np.ndarray, args: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of a rank and step, and the profiler's counts a rank and step."""
    found: dict[str, Any] = {"ms": 1e3 * float(np.median(timed(name, base, args.ranks, args.steps))) / args.ranks}
    if torch.cuda.is_available() and torch.version.cuda:
        # The difference of two runs belongs to the steps that one has more.
        fewer, more = (seen(lambda steps=steps: timed(name, base, args.ranks, steps)) for steps in (1, 1 + COUNTED))
        shares = args.ranks * COUNTED
        each = {
            key: tuple((a - b) / shares for a, b in zip(more[key], fewer.get(key, (0, 0)), strict=True)) for key in more
        }
        found |= summary(each)
    return found


def seen(run: Callable[[], Any]) -> dict[str, tuple[float, float]]:
    """Return how often each event of a run was seen, and its microseconds on the device."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        run()
    return {event.key: (event.count, event.self_device_time_total) for event in profiled.key_averages()}


def timed(name: str, base: np.ndarray, ranks: int, steps: int) -> list[float]:
    """Return the seconds of each of ``steps`` steps, all ranks together."""

    def body(comm: Comm) -> list[float]:
        reducer = SparseAllreduce(len(base), comm=comm, algorithm=name)
        drawn = on_gpu(base, comm)
        gradients = [namespace(drawn).roll(drawn, (3 * comm.rank + at) * PRIME) for at in range(3)]

        def once(at: int) -> float:
            comm.barrier()
            synchronize_device(drawn)
            began = perf_counter()
            reducer.step(gradients[at % len(gradients)])
            synchronize_device(drawn)
            comm.barrier()
            return perf_counter() - began

        for at in range(WARM_UP):
            once(at)
        return [once(at) for at in range(steps)]

    return World(ranks).run(body)[0]


def summary(each: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """Return launches, copies and waits, the device's own milliseconds, and its longest kernels."""
    of_host = {key: count for key, (count, micro) in each.items() if key.startswith("cu") and not micro}
    counts = {
        what: sum(count for key, count in of_host.items() if any(name in key for name in names))
        for what, names in CALLS.items()
    }
    kernels = sorted(
        ([key[:60], micro, count] for key, (count, micro) in each.items() if micro > 0), key=lambda row: -row[1]
    )
    return counts | {"device_ms": sum(row[1] for row in kernels) / 1e3, "kernels": kernels[:KERNELS]}


def render(cases: list[dict[str, Any]], ranks: int) -> str:
    """Return a table of all cases, and the longest kernels of each."""
    columns = ("algorithm", "n", "ms", "device ms", "launches", "waits", "copies")
    lines = [f"one rank's share of a step at P = {ranks}", "  ".join(f"{name:>10}" for name in columns)]
    for case in cases:
        row = [case["algorithm"], f"{case['n']:,}", f"{case['ms']:.3f}"]
        row += [f"{case[key]:.3g}" if key in case else "-" for key in ("device_ms", "launches", "waits", "copies")]
        lines.append("  ".join(f"{cell:>10}" for cell in row))
        lines += [f"    {micro:9.1f} us {count:6.1f} x  {key}" for key, micro, count in case.get("kernels", ())]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
