"""``python -m sparse_mpi bench steps``: steps of algorithms and message formats, in turns, against a dense sum."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import numpy as np

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.arrays import Array, namespace, to_host
from sparse_mpi.cli import records, values
from sparse_mpi.cli.options import SPELLINGS, count, option
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import refusing
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import local_rank
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.predict.ways import BASELINE
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import make_wire, resolve_k
from sparse_mpi.reduction.laws import LawError
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.wire import WIRES
from sparse_mpi_bench import options as bench_options
from sparse_mpi_bench.benchmark import Benchmark, Output
from sparse_mpi_bench.break_even import FAIR, break_even, ring_bound
from sparse_mpi_bench.candidates import OWN, Candidate, candidates
from sparse_mpi_bench.comparison import batches, cost, peak_memory, shifted, slowest, summarise, take_turns
from sparse_mpi_bench.emulation.probe import below, shortfalls

CHECKED = 3  # steps of each candidate that are checked
SAME = "to the bit"
REORDERED = 1e-6  # a difference, relative to the result, of float32 values that are added in another order
DESCRIPTION = """\
Time a step (selection, exchange, merge) and count its bytes: all candidates take turns, step by step on the same
Gaussian gradients, with error feedback. A step is compared with that of a dense float32 sum in the same turns: whether
it pays to send less on the network that this runs on, and up to which bandwidth.

  mpiexec -n 4 python -m sparse_mpi bench steps --model vgg16 --density 0.01
  mpiexec -n 4 python -m sparse_mpi bench steps --algorithms oktopk topka:selector=dgc --n 1000000 --gbit 10

On networks that are emulated on this machine:

  python -m sparse_mpi bench network --ranks 4 8 --rate 100mbit 1gbit --json FILE -- bench steps --steps 5

--check exits with 1 if a law is broken, or if a GPU's results differ from the CPU's by more than the algorithm
declares. --copy-every needs Open MPI 5 with its failure mitigation, as run --elastic starts it.
"""
LEGEND = (
    "medians of the slowest rank; speedup: over dense, turn by turn; exchange: without waiting for slower ranks;",
    "alone: select and merge in processor time, as on hosts with cores of their own; /bound: sent over 8k(P-1)/P;",
    "even: Gbit/s up to which it is faster than dense, by this machine's compute and by the one alone",
)


def check(args: argparse.Namespace) -> list[list[Candidate]]:
    with refusing("--"):
        entered = candidates(args.algorithms, args.wires)
    return batches(entered, args.batch)


def measure(args: argparse.Namespace, comm: Comm) -> Iterator[Output]:
    groups = check(args)
    comm.job.guard()
    layout = bench_options.layout_of(args)
    drawn = np.random.default_rng([args.seed, comm.rank]).standard_normal(layout.size, np.float32)
    base: Array = on_gpu(drawn, comm) if args.device == "gpu" else drawn
    with Bar(len(groups) * (args.warmup + args.steps), "turns", comm.rank == 0) as bar:
        try:
            measured = [take_turns(group, layout, args, base, comm, bar) for group in groups]
        except ValueError as error:
            raise SystemExit(f"bench steps cannot run here: {error}") from None
    found = results(measured, args.latency * 1e-6, resolve_k(layout.size, None, args.density))
    record = {
        "ranks": comm.size,
        "n": layout.size,
        "options": records.options(args),
        **records.provenance(),
        "peak memory": peak_memory(comm),
        "results": found,
    }
    if args.gbit is not None:
        bound = ring_bound(4 * layout.size, comm.size, args.gbit * 1e9)
        record["dense over ring"] = found[BASELINE]["step"] / bound if comm.size > 1 else None
    yield render(record)
    if args.check:
        entered = [*groups[0], *(each for group in groups[1:] for each in group[1:])]
        checks = checked(entered, layout, args.density, base, comm)
        yield f"\n{render_checks(checks)}"
        record["checks"] = checks
    yield record
    if args.check:
        yield int(not all(row["good"] for row in checks.values()))


def on_gpu(base: np.ndarray, comm: Comm) -> Array:
    """Return ``base`` on a GPU of this rank's node. Collective. Raises SystemExit: on all ranks, where one has none."""
    place, _ = local_rank(comm)
    try:
        with same_on_all_ranks(comm):
            import cupy

            cupy.cuda.Device(place % cupy.cuda.runtime.getDeviceCount()).use()
            return cupy.asarray(base)
    except Exception as error:  # errors of CuPy's own kinds
        raise SystemExit(f"--device gpu needs CuPy and a GPU on every rank: {error}; take --device cpu") from None


def results(measured: list[dict[str, np.ndarray]], alpha: float, k: int) -> dict[str, dict[str, Any]]:
    """Summarise every candidate beside dense in its turns; break-even is bits a second, None where always faster."""
    found: dict[str, dict[str, Any]] = {}
    for samples in [{BASELINE: np.concatenate([turns[BASELINE] for turns in measured], 1)}, *measured]:
        dense = summarise(samples[BASELINE])
        ranks = len(samples[BASELINE])
        for name in samples.keys() - found.keys():
            mine = summarise(samples[name])
            even = {
                title: break_even(cost(mine, alone), cost(dense, alone), alpha)
                for title, alone in (("break even", False), ("break even alone", True))
            }
            found[name] = {
                **mine,
                "over dense": _ratio(samples[name], samples[BASELINE]),
                "over bound": mine["sent"] / max(8 * k * (ranks - 1) / ranks, 1),
                **{name: mine[name] / k for name in ("selected", "total")},
                **{title: None if bandwidth == inf else bandwidth for title, bandwidth in even.items()},
                "steps": slowest(samples[name]).tolist(),
            }
    return dict(sorted(found.items(), key=lambda item: item[1]["step"]))


def _ratio(samples: np.ndarray, baseline: np.ndarray) -> float:
    both = min(samples.shape[1], baseline.shape[1])
    return float(np.median(slowest(samples)[:both] / slowest(baseline)[:both]))


def render(record: dict[str, Any]) -> str:
    asked = record["options"]
    found = record["results"]
    even = {"break even": "-", "break even alone": "-"}  # nothing breaks even with itself
    rows = [
        {"name": name} | m | (even if name == BASELINE else {title: _gigabits(m[title]) for title in even})
        for name, m in found.items()
    ]
    table = Table(
        Column("candidate", -max(map(len, found)), "name"),
        Column("step ms", 9, "step", ".1f", 1e3),
        Column("speedup", 8, lambda m: 1 / m["over dense"], ".2f"),
        Column("select", 8, "select", ".1f", 1e3),
        Column("exchange", 9, "exchange", ".1f", 1e3),
        Column("merge", 8, "merge", ".1f", 1e3),
        Column("alone", 8, "processor", ".1f", 1e3),
        Column("KB/rank", 10, lambda m: m["bytes"] / 1e3, ".1f"),
        Column("/bound", 7, "over bound", ".3f"),
        Column("msgs", 5, "messages", ".0f"),
        Column("sel/k", 6, "selected", ".3f"),
        Column("total/k", 8, "total", ".3f"),
        Column("even", 9, "break even"),
        Column("alone", 9, "break even alone"),
    )
    heading = (
        f"{asked['model'] or 'one tensor'}, n = {record['n']:,}, density {asked['density']:g}, "
        f"P = {record['ranks']}; {record['cpus']} x {record['cpu']}; "
        f"peak memory of all ranks {record['peak memory'] / 1e9:.1f} GB"
    )
    return "\n".join([heading, _fairness(record), "", *table.lines(rows), "", *LEGEND])


def _fairness(record: dict[str, Any]) -> str:
    ratio = record.get("dense over ring")
    if ratio is None:
        return "dense: not compared with its bound; --gbit tells the network's bandwidth"
    verdict = "fair" if ratio <= FAIR else f"above {FAIR:g}: not the network limits it, or it is no fair baseline"
    gbit = record["options"]["gbit"]
    return f"dense: {ratio:.2f} times its ring bound, 2(P-1)/P of its bytes at {gbit:.3g} Gbit/s: {verdict}"


def _gigabits(bandwidth: float | None) -> str:
    return "any" if bandwidth is None else "none" if bandwidth == 0 else f"{bandwidth / 1e9:.3g}"


def checked(
    entered: Sequence[Candidate], layout: Layout, density: float, base: Array, comm: Comm
) -> dict[str, dict[str, Any]]:
    """Return whether the laws hold, how far a GPU's results are from the CPU's (None without GPU), and may be."""
    found = {}
    with Bar(len(entered), "checks", comm.rank == 0) as bar:
        for each in entered:
            bar.say(each.name)
            found[each.name] = _checked(each, layout, density, base, comm)
            bar.update()
    return found


def _checked(candidate: Candidate, layout: Layout, density: float, base: Array, comm: Comm) -> dict[str, Any]:
    here, there = (SparseAllreduce(layout, density=density, comm=comm, algorithm=candidate.make()) for _ in range(2))
    host = isinstance(base, np.ndarray)
    apart, laws = 0.0, "hold"
    for gradient in shifted(base, 0, CHECKED):
        try:
            total = there.step(gradient, check=True)
        except LawError as error:  # raised on all ranks
            laws = str(error)
            break
        if not host:
            expected = here.step(namespace(gradient).asnumpy(gradient))
            pairs = [(_dense(total), _dense(expected)), (to_host(there.residual), here.residual)]
            apart = max(apart, *(_distance(a, b) for a, b in pairs))
    most = float(comm.allreduce(np.array([apart]), "max", control=True)[0])
    # Device pointers may take another way through MPI, on which more than two values are added in another order
    reordered = not host and comm.size > 2 and not comm.job.staged and not here.algorithm.exact_order(layout, here.k)
    bound = max(here.algorithm.traits.device_difference, REORDERED if reordered else 0.0)
    good = laws == "hold" and most <= bound
    return {"laws": laws, "apart": None if host else most, "bound": bound, "good": good}


def render_checks(checks: dict[str, dict[str, Any]]) -> str:
    table = Table(
        Column("candidate", -24, "name"),
        Column(
            "GPU against CPU",
            15,
            lambda row: SAME if row["apart"] == 0 else row["apart"] and format(row["apart"], ".1e"),
        ),
        Column("may be", 9, lambda row: format(row["bound"], ".0e") if row["bound"] else SAME),
        Column(" laws", -5, lambda row: f" {row['laws']}"),
    )
    good = [row for row in checks.values() if row["good"]]
    same = sum(not row["apart"] for row in good)
    within = f", {len(good) - same} within their bounds" if same < len(good) else ""
    rows = table.lines({"name": name, **row} for name, row in checks.items())
    return "\n".join([*rows, f"{same} of {len(checks)} {SAME}{within}, with both laws"])


def _dense(total: SparseVector | Array) -> np.ndarray:
    return np.asarray(to_host(total.to_dense() if isinstance(total, SparseVector) else total))


def _distance(a: Array, b: Array) -> float:
    if np.array_equal(a.view(np.int32), b.view(np.int32)):
        return 0.0
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), np.finfo(np.float32).tiny))


def summary(jobs: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for job in jobs for name in job["results"] if name != BASELINE))
    titles = [f"P={job['ranks']} {job['rate']}{'*' * below(job)}" for job in jobs]
    columns = [Column(title, 12, str(at), ".2f") for at, title in enumerate(titles)]
    rows: dict[str, list[float]] = {name: [1 / job["results"][name]["over dense"] for job in jobs] for name in names}
    rows["dense over ring bound"] = [job["dense over ring"] for job in jobs]
    table = Table(Column("", -max(map(len, rows)), "name"), *columns)
    lines = [
        "speedup of a step over dense",
        *table.lines({"name": n, **{str(at): ratio for at, ratio in enumerate(r)}} for n, r in rows.items()),
    ]
    return "\n".join([*lines, *shortfalls(jobs)])


STEPS = Benchmark(
    "steps",
    help="time and bytes of a step of algorithms and message formats, in turns with a dense sum",
    description=DESCRIPTION,
    options=(
        option("--algorithms NAME", f"{SPELLINGS} (default: all)", values.algorithm, list(ALGORITHMS), nargs="+"),
        option(
            "--wires FORMAT",
            f"formats of the messages, of algorithms that take one: {', '.join(WIRES)}; {OWN}: each algorithm's own",
            values.checked(lambda name: name == OWN or make_wire(name), "packed", "wire"),
            [OWN],
            nargs="+",
        ),
        bench_options.gradient,
        option("--density", "share of them that is sent", values.share, 0.01),
        count("--steps", 8, "steps counted, after --warmup more"),
        count("--warmup", 2, "steps not counted", 0),
        option(
            "--seconds",
            "a candidate stops when its steps have taken so many seconds and three count",
            values.positive,
            30.0,
        ),
        count("--batch", 10, "candidates, besides dense, that take turns and hold a residual each at a time"),
        count("--copy-every T", None, "each also in a team that survives lost ranks, copying residuals so often", 0),
        option("--device", "where the gradients lie", choices=("cpu", "gpu"), default="cpu"),
        option("--check", "assert both laws, and a GPU's results against the CPU's", action="store_true"),
        count("--seed", 0, "of the gradients", 0),
        option("--gbit", "bandwidth of a rank's link, Gbit/s, if known: tells whether dense is fair", values.positive),
        option("--latency", "of a message, microseconds", values.number, 5.0),
        option("--json FILE", "also write all numbers, with what they were measured on", values.record),
    ),
    measure=measure,
    check=check,
    collective=True,
)
