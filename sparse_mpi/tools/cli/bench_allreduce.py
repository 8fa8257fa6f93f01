"""``python -m sparse_mpi bench allreduce``: every algorithm on the same gradients, side by side, in one run.

Times are medians over the steps of the slowest rank. All ranks measure ``torch.topk`` on the same vector at the same
time, on one thread each, so that the ratio holds on a shared machine.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, leave, namespace, synchronize_device
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.local_rank import local_rank
from sparse_mpi.network.model import Network
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import takes
from sparse_mpi.reduction.report import StepReport
from sparse_mpi.select import SELECTORS
from sparse_mpi.sparse import Layout
from sparse_mpi.tools.bench.kernel_cache import COMPILING, cold
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.cli import options, values
from sparse_mpi.tools.cli.benchmark import Benchmark, Output
from sparse_mpi.tools.cli.options import count, option
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.cli.table import Column, Table
from sparse_mpi.wire import WIRES

OPTIONS = ("selector", "wire", "rank")  # of the algorithms that have them


def check(args: argparse.Namespace) -> None:
    """Raise Refused unless the options are good together."""
    for name in OPTIONS:
        value = getattr(args, name)
        if value is not None and not any(takes(algorithm, name, value) for algorithm in args.algorithms):
            names = ", ".join(args.algorithms)
            raise Refused(f"--{name} {value} has no effect on {names}; leave it out or take another one")


def measure(args: argparse.Namespace, comm: Comm) -> Iterator[Output]:
    """Yield the table and the record of all algorithms."""
    layout = options.layout_of(args)
    args.n = layout.size
    base = np.random.default_rng([args.seed, comm.rank]).standard_normal(args.n, np.float32)
    if args.device == "gpu":
        base = on_gpu(base, comm)
    baseline = _time_topk(base, args.density, comm)
    measured = {}
    with Bar(len(args.algorithms), "algorithms", comm.rank == 0) as bar:
        for name in args.algorithms:
            bar.phase(COMPILING) if cold() else bar.say(name)
            measured[name] = _measure(name, base, layout, args, comm)
            bar.update()
    yield _render(measured, baseline, args, comm.size)
    yield {"ranks": comm.size, "torch.topk": baseline, "algorithms": measured}


def on_gpu(base: np.ndarray, comm: Comm) -> Array:
    """Return ``base`` on a GPU of this rank: those of a node take its GPUs in turn. Collective.

    Raises:
        SystemExit: on all ranks, where one has no GPU that CuPy can use.
    """
    place, _ = local_rank(comm)
    try:
        with same_on_all_ranks(comm):
            import cupy

            cupy.cuda.Device(place % cupy.cuda.runtime.getDeviceCount()).use()
            return cupy.asarray(base)
    except Exception as error:  # of CuPy's own kinds
        raise SystemExit(f"--device gpu needs CuPy and a GPU on every rank: {error}; take --device cpu") from None


def _time_topk(base: Array, density: float, comm: Comm) -> float | None:
    """Return median seconds of torch.topk on |base|, one thread, all ranks at once; None without torch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    magnitudes, k = leave(abs(base), torch.empty(0)), max(1, round(density * len(base)))
    seconds = []
    for _ in range(5):
        comm.barrier()
        start = perf_counter()
        torch.topk(magnitudes, k)
        synchronize_device(base)
        seconds.append(perf_counter() - start)
    return _slowest(statistics.median(seconds), comm)


def _measure(name: str, base: Array, layout: Layout, args: argparse.Namespace, comm: Comm) -> dict[str, Any]:
    """Return medians over steps of maxima over ranks; each gradient is ``base`` shifted by a random distance."""
    given = {each: getattr(args, each) for each in OPTIONS if getattr(args, each) is not None}
    taken = {each: value for each, value in given.items() if takes(name, each, value)}
    reducer = SparseAllreduce(layout, density=args.density, comm=comm, algorithm=name, **taken)
    shifts = np.random.default_rng(args.seed).integers(0, args.n, args.warmup + args.steps)
    reports: list[StepReport] = []
    seconds: list[float] = []
    for shift in shifts:
        gradient = namespace(base).roll(base, shift)
        synchronize_device(gradient)
        comm.barrier()
        start = perf_counter()
        reducer.step(gradient)
        synchronize_device(gradient)
        seconds.append(perf_counter() - start)
        assert reducer.report is not None
        reports.append(reducer.report)
    reports, seconds = reports[args.warmup :], seconds[args.warmup :]
    ideal = max(8 * reducer.k * (comm.size - 1) / comm.size, 1)
    sent = [r.traffic.sent + r.traffic.control for r in reports]
    network = Network.of(args.gbit, args.latency)
    own = {
        "step": statistics.median(seconds),
        "select": statistics.median(r.select_seconds for r in reports),
        "exchange": statistics.median(r.exchange_seconds for r in reports),
        "merge": statistics.median(r.merge_seconds for r in reports),
        "bytes": statistics.mean(sent),
        "over bound": statistics.mean(sent) / ideal,
        "worst over bound": max(sent) / ideal,
        "messages": statistics.mean(r.traffic.messages for r in reports),
        "selected": statistics.mean(r.selected for r in reports) / reducer.k,
        "total": statistics.mean(r.total for r in reports) / reducer.k,
        "model": statistics.mean(network.seconds(r.traffic) for r in reports),
    }
    most = comm.allreduce(np.array([*own.values()], np.float64), "max", control=True)
    return dict(zip(own, most.tolist(), strict=True))


def _slowest(value: float, comm: Comm) -> float:
    return float(comm.allreduce(np.array([value], np.float64), "max", control=True)[0])


def _render(measured: dict[str, dict[str, Any]], baseline: float | None, args: argparse.Namespace, ranks: int) -> str:
    here = provenance()
    table = Table(
        Column("algorithm", -10, "name"),
        Column("step", 8, "step", ".1f", 1e3),
        Column("select", 8, "select", ".1f", 1e3),
        Column("exchange", 9, "exchange", ".1f", 1e3),
        Column("merge", 8, "merge", ".1f", 1e3),
        Column("/topk", 6, lambda m: m["step"] / baseline if baseline else None, ".2f"),
        Column("KB/rank", 10, lambda m: m["bytes"] / 1e3, ".1f"),
        Column("/bound", 7, "over bound", ".3f"),
        Column("worst", 7, "worst over bound", ".3f"),
        Column("msgs", 5, "messages", ".0f"),
        Column("sel/k", 6, "selected", ".3f"),
        Column("total/k", 8, "total", ".3f"),
        Column(f"{args.gbit:g}G model", 10, "model", ".2f", 1e3),
    )
    heading = (
        f"{args.model or 'one tensor'}, n = {args.n:,}, density {args.density:g}, P = {ranks}, {args.steps} steps; "
        f"medians of the slowest rank, ms; {here['cpus']} x {here['cpu']}"
    )
    rival = (
        f"torch.topk, one thread, all ranks at once: {1e3 * baseline:.1f} ms" if baseline else "torch is not installed"
    )
    legend = (
        "/topk: step over torch.topk; /bound: payload + control sent over 8k(P-1)/P bytes, mean and worst step;\n"
        f"{args.gbit:g}G model: exchange, ms, on a network of {args.gbit:g} Gbit/s, {args.latency:g} us (alpha-beta)"
    )
    rows = table.lines({"name": name, **m} for name, m in measured.items())
    return "\n".join([heading, rival, "", *rows, "", legend])


ALLREDUCE = Benchmark(
    "allreduce",
    help="time and bytes of a step of every algorithm",
    description="Time of a step (selection, exchange, merge) and bytes a rank, with error feedback on Gaussian "
    "gradients. Example: mpiexec -n 4 python -m sparse_mpi bench allreduce --model vgg16 --density 0.01 --steps 20",
    options=(
        options.gradient,
        options.share("share of them that is sent"),
        count("--steps", 20, "steps counted, after --warmup more"),
        count("--warmup", 3, "steps not counted", 0),
        options.algorithms(),
        option(
            "--selector NAME",
            "what picks the entries, of every algorithm that can work with it (default: each one's own)",
            choices=list(SELECTORS),
        ),
        option(
            "--wire NAME",
            "message format of every algorithm that has one (default: each one's own)",
            choices=list(WIRES),
        ),
        count("--rank R", None, "of factors, for low-rank algorithms (default: their own)"),
        option("--device", "where the gradients lie", choices=("cpu", "gpu"), default="cpu"),
        options.seed(),
        option("--gbit", "bandwidth of the network of the model column, Gbit/s", values.positive, 10.0),
        option("--latency", "its latency, microseconds a message", values.number, 5.0),
        options.json(),
    ),
    measure=measure,
    check=check,
    collective=True,
)
