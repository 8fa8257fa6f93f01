"""``python -m sparse_mpi bench allreduce``: every algorithm on the same gradients, side by side, in one run.

Times are medians over the steps of the slowest rank. All ranks measure ``torch.topk`` on the same vector at the same
time, on one thread each, so that the ratio holds on a shared machine.

``python -m sparse_mpi bench agree``: does a GPU give the results of the CPU, and do both laws hold there?

``python -m sparse_mpi bench elastic``: what it costs to be able to lose a rank, as long as none is lost.

A plain reducer and one of a team take turns on the same gradients, in one run: the ratio holds on a shared machine.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.arrays import Array, leave, namespace, synchronize_device, to_host
from sparse_mpi.checks import present
from sparse_mpi.cli import options, records, values
from sparse_mpi.cli.benchmark import Benchmark, Output
from sparse_mpi.cli.options import count, option
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import local_rank
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.network import Network
from sparse_mpi.fault_tolerance import ElasticAllreduce
from sparse_mpi.monitor.step_report import StepReport
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import algorithm_spelled
from sparse_mpi.reduction.laws import LawError
from sparse_mpi.select import SELECTORS
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.wire import WIRES
from sparse_mpi_bench import options as bench_options
from sparse_mpi_bench.commands import formats
from sparse_mpi_bench.commands.formats import NCCL
from sparse_mpi_bench.comparison import rank_seconds, wrong_entries

OPTIONS = ("selector", "wire", "rank")  # of the algorithms that have them


def measure(args: argparse.Namespace, comm: Comm) -> Iterator[Output]:
    """Yield the table and the record of all algorithms."""
    layout = bench_options.layout_of(args)
    args.n = layout.size
    base = np.random.default_rng([args.seed, comm.rank]).standard_normal(args.n, np.float32)
    if args.device == "gpu":
        base = on_gpu(base, comm)
    baseline = _time_topk(base, args.density, comm)
    measured = {}
    with Bar(len(args.algorithms), "algorithms", comm.rank == 0) as bar:
        for name in args.algorithms:
            bar.say(name)
            measured[name] = _measure(name, base, layout, args, comm)
            bar.update()
    yield _render(measured, baseline, args, comm.size)
    yield {"ranks": comm.size, "torch.topk": baseline, "algorithms": measured}


def on_gpu(base: np.ndarray, comm: Comm) -> Array:
    """Return ``base`` on a GPU of this rank: those of a node take its GPUs in turn. Collective.

    Raises SystemExit: on all ranks, where one has no GPU that CuPy can use.
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
    return float(comm.allreduce(np.array([statistics.median(seconds)], np.float64), "max", control=True)[0])


def _measure(name: str, base: Array, layout: Layout, args: argparse.Namespace, comm: Comm) -> dict[str, Any]:
    """Return medians over steps of maxima over ranks; each gradient is ``base`` shifted by a random distance."""
    taken = options.taken(args, OPTIONS, name)
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
        reports.append(present(reducer.report, "a step was made"))
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
    wrong = wrong_entries(reducer, gradient) if args.format == NCCL else None
    return {**dict(zip(own, most.tolist(), strict=True)), **rank_seconds(seconds, comm), "wrong": wrong}


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
        bench_options.gradient,
        options.share("share of them that is sent"),
        count("--steps", 20, "steps counted, after --warmup more"),
        count("--warmup", 3, "steps not counted", 0),
        options.several("--algorithms", ALGORITHMS),
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
        formats.form(),
        options.json(),
    ),
    measure=measure,
    check=partial(options.check_taken, names=OPTIONS),
    collective=True,
)


SAME = "to the bit"
REORDERED = 1e-6  # a difference, relative to the result, of float32 values that are added in another order
AGREEMENT = Table(
    Column("algorithm", -16, "name"),
    Column("difference", 12, lambda row: format(row["apart"], ".1e") if row["apart"] else SAME),
    Column("bound", 9, lambda row: format(row["bound"], ".0e") if row["bound"] else "-"),
    Column(" laws", -5, lambda row: f" {row['laws']}"),
)


def agree(args: argparse.Namespace, comm: Comm) -> Iterator[Output]:
    """Yield the table, the record, and 1 if a law is broken or results differ by more than the algorithm declares."""
    layout = bench_options.layout_of(args)
    on_gpu(np.zeros(1, np.float32), comm)  # or say what is missing
    rng, found = np.random.default_rng([args.seed, comm.rank]), {}
    gradients = [rng.standard_normal(layout.size, np.float32) for _ in range(args.steps)]
    with Bar(len(args.algorithms), "algorithms", comm.rank == 0) as bar:
        for name in args.algorithms:
            bar.say(name)
            found[name] = _compared(name, layout, args.density, gradients, comm)
            bar.update()
    good = [row for row in found.values() if row["laws"] == "hold" and row["apart"] <= row["bound"]]
    same = sum(row["apart"] == 0 for row in good)
    within = f", {len(good) - same} within their bounds" if same < len(good) else ""
    yield (
        f"{args.model or 'flat'}, n = {layout.size:,}, density {args.density:g}, "
        f"P = {comm.size}, {args.steps} steps: results and residuals of the GPU against the CPU's"
    )
    yield "\n".join(AGREEMENT.lines({"name": name, **row} for name, row in found.items()))
    yield f"{same} of {len(found)} {SAME}{within}, with both laws"
    yield {"ranks": comm.size, "n": layout.size, "results": found}
    yield int(len(good) < len(found))


def _compared(name: str, layout: Layout, density: float, gradients: Sequence[np.ndarray], comm: Comm) -> dict[str, Any]:
    """Return whether the laws hold on the GPU, how far its results are from the CPU's on any rank, and may be."""
    here, there = (SparseAllreduce(layout, density=density, comm=comm, algorithm=name) for _ in range(2))
    apart, laws = 0.0, "hold"
    for gradient in gradients:
        expected = here.step(gradient)
        try:
            total = there.step(on_gpu(gradient, comm), check=True)
        except LawError as error:  # on all ranks
            laws = str(error)
            break
        pairs = [(_dense(total), _dense(expected)), (to_host(there.residual), here.residual)]
        apart = max(apart, *(_distance(a, b) for a, b in pairs))
    most = comm.allreduce(np.array([apart]), "max", control=True)
    # Device pointers may take another way through MPI, on which more than two values are added in another order
    reordered = comm.size > 2 and not comm.job.staged and not here.algorithm.exact_order(layout, here.k)
    bound = max(here.algorithm.traits.device_difference, REORDERED if reordered else 0.0)
    return {"laws": laws, "apart": float(most[0]), "bound": bound}


def _dense(total: SparseVector | Array) -> np.ndarray:
    return np.asarray(to_host(total.to_dense() if isinstance(total, SparseVector) else total))


def _distance(a: Array, b: Array) -> float:
    """Return the norm of ``a - b`` over that of ``b``, both float32; 0 if they have the same bits."""
    if np.array_equal(a.view(np.int32), b.view(np.int32)):
        return 0.0
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), np.finfo(np.float32).tiny))


AGREE = Benchmark(
    "agree",
    help="results of a GPU against those of the CPU, and both laws",
    description="Every algorithm takes the same steps on the CPU and on a GPU, with error feedback, on Gaussian "
    "gradients of a model's shapes. Both laws are asserted on the GPU, and results and residuals compared. They must "
    "be the same to the bit, but for algorithms that declare a bound, of the norm of the difference over that of the "
    "CPU's result: products of matrices and means are rounded by each device in an order of its own. Exits with 1 if "
    "any break a law or are further apart. Example: mpiexec -n 2 python -m sparse_mpi bench agree",
    options=(
        bench_options.gradient,
        options.several("--algorithms", ALGORITHMS),
        options.share("share of the elements that is sent"),
        count("--steps", 2, "of each algorithm"),
        options.seed("of the gradients"),
        options.json(),
    ),
    measure=agree,
    collective=True,
)


SURVIVING = """\
Time a step of a reducer that survives the loss of ranks over one that does not, and count what it sends more. Both take
turns on the same Gaussian gradients. Needs Open MPI 5 with its failure mitigation.

  python -m sparse_mpi run --elastic -n 4 -m sparse_mpi bench elastic --n 1000000
  python -m sparse_mpi bench network --elastic --ranks 8 --rate 1gbit -- bench elastic --copy-every 200
"""


def measure_elastic(args: argparse.Namespace, comm: Comm) -> Iterator[Output]:
    """Yield the times of both, and the record."""
    density, algorithm = args.density, algorithm_spelled(args.algorithm)
    plain = SparseAllreduce(args.n, density=density, comm=comm, algorithm=algorithm)
    try:
        team = ElasticAllreduce(
            args.n, density=density, comm=comm.duplicate(), algorithm=algorithm, copy_every=args.copy_every
        )
    except ValueError as error:
        raise SystemExit(f"bench elastic cannot run here: {error}") from None
    base = np.random.default_rng([args.seed, comm.rank]).standard_normal(args.n, np.float32)
    seconds: dict[str, list[float]] = {"plain": [], "elastic": []}
    sent = dict.fromkeys(seconds, 0)
    with Bar(args.warmup + args.steps, "steps", comm.rank == 0) as bar:
        for step in range(args.warmup + args.steps):
            gradient = np.roll(base, 7919 * step)
            turns = [("plain", plain), ("elastic", team)]
            for name, reducer in turns if step % 2 else reversed(turns):
                comm.barrier()
                start = perf_counter()
                reducer.step(gradient)
                spent = comm.allreduce(np.array([perf_counter() - start]), "max")[0]  # by the slowest rank
                if step >= args.warmup:
                    seconds[name].append(float(spent))
                    traffic = present(reducer.report, "a step was made").traffic
                    sent[name] += traffic.sent + traffic.control
            bar.update()
    for name, times in seconds.items():
        usual, megabytes = 1e3 * statistics.median(times), sent[name] / args.steps / 1e6
        yield f"{name:8}{usual:9.2f} ms a step (median), {megabytes:8.3f} MB sent by rank 0"
    ratio = statistics.median(b / a for a, b in zip(seconds["plain"], seconds["elastic"], strict=True))
    yield f"ratio of a step to the other of its turn: {ratio:.3f} (median)"
    yield records.options(args) | {"seconds": seconds, "sent": sent, "ratio": ratio, "ranks": comm.size}


ELASTIC = Benchmark(
    "elastic",
    help="what it costs to be able to lose a rank",
    description=SURVIVING,
    options=(
        option("--algorithm NAME", f"default: elect; {options.SPELLINGS}", values.algorithm, "elect"),
        count("--n", 14_728_266, "elements of the gradient (default: 14728266, those of VGG-16)"),
        options.share("k over n"),
        count("--copy-every T", 200, "steps in which residuals are copied", 0),
        count("--steps", 20, "steps of each that count, after --warmup more"),
        count("--warmup", 5, "steps of each that do not count", 0),
        options.seed(),
        options.json(),
    ),
    measure=measure_elastic,
    collective=True,
)
