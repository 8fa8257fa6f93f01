"""``python -m sparse_mpi bench allreduce``: every algorithm on the same gradients, side by side, in one run.

Times are medians over the steps of the slowest rank. All ranks measure ``torch.topk`` on the same vector at the same
time, on one thread each, so that the ratio holds on a shared machine.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.arrays import Array, leave, namespace, synchronize_device
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.local_rank import local_rank
from sparse_mpi.network.model import Network
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import takes
from sparse_mpi.reduction.report import StepReport
from sparse_mpi.select import SELECTORS
from sparse_mpi.sparse import Layout
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.kernel_cache import COMPILING, cold
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.cli import gradient_options, values
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.wire import WIRES

OPTIONS = ("selector", "wire", "rank")  # of the algorithms that have them


def add_parser(kinds: argparse._SubParsersAction) -> None:
    """Declare ``bench allreduce``."""
    parser = kinds.add_parser(
        "allreduce",
        help="time and bytes of a step of every algorithm",
        description="Time of a step (selection, exchange, merge) and bytes a rank, with error feedback on Gaussian "
        "gradients. Example: mpiexec -n 4 python -m sparse_mpi bench allreduce --model vgg16 --density 0.01 --steps 20",
    )
    gradient_options.declare(parser)
    parser.add_argument("--density", type=values.share, default=0.01, help="share of them that is sent")
    parser.add_argument("--steps", type=values.integer(1), default=20, help="steps counted, after --warmup more")
    parser.add_argument("--warmup", type=values.integer(0), default=3, help="steps not counted")
    parser.add_argument(
        "--algorithms",
        nargs="+",
        choices=list(ALGORITHMS),
        default=list(ALGORITHMS),
        metavar="NAME",
        help="(default: all)",
    )
    text = "what picks the entries, of every algorithm that can work with it (default: each one's own)"
    parser.add_argument("--selector", choices=list(SELECTORS), metavar="NAME", help=text)
    text = "message format of every algorithm that has one (default: each one's own)"
    parser.add_argument("--wire", choices=list(WIRES), metavar="NAME", help=text)
    parser.add_argument(
        "--rank", type=values.integer(1), metavar="R", help="of factors, for low-rank algorithms (default: their own)"
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="where the gradients lie")
    parser.add_argument("--seed", type=values.integer(0), default=0, help="of all that is drawn at random")
    parser.add_argument(
        "--gbit", type=values.positive, default=10.0, help="bandwidth of the network of the model column, Gbit/s"
    )
    parser.add_argument("--latency", type=values.number, default=5.0, help="its latency, microseconds a message")
    parser.add_argument(
        "--json", type=values.record, metavar="FILE", help="also write all numbers, with what they were measured on"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, and print on rank 0."""
    _check(args)
    layout = gradient_options.layout_of(args)
    args.n = layout.size
    comm = as_comm(None)
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
    if comm.rank == 0:
        network = Network.of(args.gbit, args.latency)
        print(_render(measured, baseline, network, args, comm.size))
        if args.json:
            _write(args, comm.size, baseline, measured)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise Refused unless the options are good together."""
    for option in OPTIONS:
        value = getattr(args, option)
        if value is not None and not any(takes(name, option, value) for name in args.algorithms):
            names = ", ".join(args.algorithms)
            raise Refused(f"--{option} {value} has no effect on {names}; leave it out or take another one")


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
    given = {option: getattr(args, option) for option in OPTIONS if getattr(args, option) is not None}
    options = {option: value for option, value in given.items() if takes(name, option, value)}
    reducer = SparseAllreduce(layout, density=args.density, comm=comm, algorithm=name, **options)
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
    sent = max(statistics.mean(r.traffic.sent + r.traffic.control for r in reports), 0)
    worst = max(r.traffic.sent + r.traffic.control for r in reports)
    model = statistics.mean(Network.of(args.gbit, args.latency).seconds(r.traffic) for r in reports)
    return {
        "step": _slowest(statistics.median(seconds), comm),
        "select": _slowest(statistics.median(r.select_seconds for r in reports), comm),
        "exchange": _slowest(statistics.median(r.exchange_seconds for r in reports), comm),
        "merge": _slowest(statistics.median(r.merge_seconds for r in reports), comm),
        "bytes": _slowest(sent, comm),
        "over bound": _slowest(sent / ideal, comm),
        "worst over bound": _slowest(worst / ideal, comm),
        "messages": _slowest(statistics.mean(r.traffic.messages for r in reports), comm),
        "selected": _slowest(statistics.mean(r.selected for r in reports) / reducer.k, comm),
        "total": statistics.mean(r.total for r in reports) / reducer.k,
        "model": _slowest(model, comm),
    }


def _slowest(value: float, comm: Comm) -> float:
    return float(comm.allreduce(np.array([value], np.float64), "max", control=True)[0])


def _render(
    measured: dict[str, dict[str, Any]],
    baseline: float | None,
    network: Network,
    args: argparse.Namespace,
    ranks: int,
) -> str:
    here = provenance()
    lines = [
        f"{args.model or 'one tensor'}, n = {args.n:,}, density {args.density:g}, P = {ranks}, {args.steps} steps; "
        f"medians of the slowest rank, ms; {here['cpus']} x {here['cpu']}",
        f"torch.topk, one thread, all ranks at once: {1e3 * baseline:.1f} ms" if baseline else "torch is not installed",
        "",
        f"{'algorithm':<10} {'step':>8} {'select':>8} {'exchange':>9} {'merge':>8} {'/topk':>6} {'KB/rank':>10} "
        f"{'/bound':>7} {'worst':>7} {'msgs':>5} {'sel/k':>6} {'total/k':>8} {f'{args.gbit:g}G model':>10}",
    ]
    for name, m in measured.items():
        share = f"{m['step'] / baseline:6.2f}" if baseline else f"{'-':>6}"
        lines.append(
            f"{name:<10} {1e3 * m['step']:8.1f} {1e3 * m['select']:8.1f} {1e3 * m['exchange']:9.1f} "
            f"{1e3 * m['merge']:8.1f} {share} {m['bytes'] / 1e3:10.1f} {m['over bound']:7.3f} "
            f"{m['worst over bound']:7.3f} "
            f"{m['messages']:5.0f} {m['selected']:6.3f} {m['total']:8.3f} {1e3 * m['model']:10.2f}"
        )
    lines += [
        "",
        "/topk: step over torch.topk; /bound: payload + control sent over 8k(P-1)/P bytes, mean and worst step;",
        f"{args.gbit:g}G model: exchange, ms, on a network of {args.gbit:g} Gbit/s, {args.latency:g} us (alpha-beta)",
    ]
    return "\n".join(lines)


def _write(args: argparse.Namespace, ranks: int, baseline: float | None, measured: dict[str, Any]) -> None:
    asked = {"ranks": ranks, "options": records.options(args)}
    records.write(args.json, asked, provenance(), {"torch.topk": baseline, "algorithms": measured})
