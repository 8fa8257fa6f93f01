"""``python -m sparse_mpi bench interleaved``: all algorithms and wire formats, in turns step by step, against dense.

``python -m sparse_mpi bench compare``: `bench interleaved` on emulated networks of several sizes and speeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.cli import options, records, values
from sparse_mpi.cli.benchmark import Benchmark, Output
from sparse_mpi.cli.options import count, option
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import refusing
from sparse_mpi.comm import Comm
from sparse_mpi.predict.ways import BASELINE
from sparse_mpi_bench import options as bench_options
from sparse_mpi_bench.break_even import FAIR, break_even, ring_bound
from sparse_mpi_bench.candidates import OWN, Candidate, accepts, candidates
from sparse_mpi_bench.commands import bench_network, formats
from sparse_mpi_bench.commands.formats import NCCL
from sparse_mpi_bench.comparison import FIELDS, batches, cost, peak_memory, slowest, summarise, take_turns
from sparse_mpi_bench.emulation.probe import Link, below, shortfalls
from sparse_mpi_bench.figures.compare import all_of

WIRES = (OWN, "packed", "packed+bf16")
DESCRIPTION = """\
Whether it pays to send less, on the network this runs on: all candidates take turns, step by step on the same
gradients, with error feedback. A step is compared with that of a dense float32 sum in the same turns.

  mpiexec -n 4 python -m sparse_mpi bench interleaved --algorithms oktopk topka --n 1000000 --gbit 10 --latency 5

On networks that are emulated on this machine: python -m sparse_mpi bench compare
"""
LEGEND = (
    "medians of the slowest rank; speedup: over dense, turn by turn; exchange: without waiting for slower ranks;",
    "alone: select and merge in processor time, as on hosts with cores of their own;",
    "even: Gbit/s up to which it is faster than dense, by this machine's compute and by the one alone",
)
MEASURED = (
    options.several("--algorithms", ALGORITHMS, "(default: all); dense takes part in any case"),
    option(
        "--wires FORMAT",
        f"formats of the messages; {OWN}: each algorithm's own (default: those of {' '.join(WIRES)} that one takes)",
        nargs="+",
        choices=[OWN, *WIRES],
    ),
    bench_options.gradient,
    options.share("share of them that is sent"),
    count("--steps", 8, "steps counted, after --warmup more"),
    count("--warmup", 2, "steps not counted", 0),
    option(
        "--seconds",
        "a candidate stops when its steps have taken so many seconds and three count",
        values.positive,
        30.0,
    ),
    count("--batch", 10, "candidates, besides dense, that take turns and hold a residual each at a time"),
    options.seed("of the gradients"),
)


def check(args: argparse.Namespace) -> list[list[Candidate]]:
    """Return who takes turns with whom; raises Refused unless the options are good."""
    wires = args.wires or [wire for wire in WIRES if any(accepts(name, wire) for name in args.algorithms)]
    with refusing("--"):
        return batches(candidates(args.algorithms, wires), args.batch)


def measure(args: argparse.Namespace, comm: Comm) -> Iterator[Output]:
    """Yield the table and the record of all candidates."""
    groups = check(args)
    comm.job.guard()
    layout = bench_options.layout_of(args)
    wrong: dict[str, int] | None = {} if args.format == NCCL else None
    with Bar(len(groups) * (args.warmup + args.steps), "turns", comm.rank == 0) as bar:
        measured = [take_turns(group, layout, args, comm, bar, wrong) for group in groups]
    memory = peak_memory(comm)
    record = {
        "ranks": comm.size,
        "n": layout.size,
        "options": records.options(args),
        **provenance(),
        "peak memory": memory,
        "results": results(measured, args.latency * 1e-6, wrong or {}),
    }
    if args.gbit is not None:
        bound = ring_bound(4 * layout.size, comm.size, args.gbit * 1e9)
        record["dense over ring"] = record["results"][BASELINE]["step"] / bound if comm.size > 1 else None
    yield render(record)
    yield record


def results(
    measured: list[dict[str, np.ndarray]], alpha: float, wrong: Mapping[str, int] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """Summarise every candidate beside the dense sum of its own turns, and dense itself over all turns.

    ``over dense`` is the median over the turns in which both took part. Break-even bandwidths are bits a second; None:
    faster than dense on any network. ``wrong`` has the wrong entries of those that were checked.
    """
    found: dict[str, dict[str, Any]] = {}
    for samples in [{BASELINE: np.concatenate([turns[BASELINE] for turns in measured], 1)}, *measured]:
        dense = summarise(samples[BASELINE])
        for name in samples.keys() - found.keys():
            mine = summarise(samples[name])
            even = {
                title: break_even(cost(mine, alone), cost(dense, alone), alpha)
                for title, alone in (("break even", False), ("break even alone", True))
            }
            found[name] = {
                **mine,
                "over dense": _ratio(samples[name], samples[BASELINE]),
                **{title: None if bandwidth == inf else bandwidth for title, bandwidth in even.items()},
                "steps": slowest(samples[name]).tolist(),
                "rank seconds": samples[name][:, :, FIELDS.index("step")].mean(1).tolist(),
                "iterations": samples[name].shape[1],
                "wrong": wrong.get(name),
            }
    return dict(sorted(found.items(), key=lambda item: item[1]["step"]))


def _ratio(samples: np.ndarray, baseline: np.ndarray) -> float:
    both = min(samples.shape[1], baseline.shape[1])
    return float(np.median(slowest(samples)[:both] / slowest(baseline)[:both]))


def render(record: dict[str, Any]) -> str:
    """Return the table as text."""
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
        Column("msgs", 5, "messages", ".0f"),
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


INTERLEAVED = Benchmark(
    "interleaved",
    help="all algorithms and wire formats in turns, against a dense sum on this network",
    description=DESCRIPTION,
    options=(
        *MEASURED,
        option("--gbit", "bandwidth of a rank's link, Gbit/s, if known: tells whether dense is fair", values.positive),
        option("--latency", "of a message, microseconds", values.number, 5.0),
        formats.form(),
        options.json(),
    ),
    measure=measure,
    check=check,
    collective=True,
)


PASSED = ("model", "n", "density", "steps", "warmup", "seconds", "batch", "seed", "algorithms", "wires", "format")
COMPARING = """\
When does it pay to send less? For each number of ranks and each rate: hosts that are emulated on this machine (see
bench network), and on them one job (bench interleaved) in which all algorithms, in all wire formats that they take,
take turns step by step, with selection and merging. Prints what each took, against dense in the same turns; whether
dense was a fair baseline; and up to which bandwidth it pays.

  python -m sparse_mpi bench compare --ranks 4 8 --rate 100mbit 1gbit none --json compare.json --plot compare.png
  python -m sparse_mpi bench compare --ranks 4 --rate 1gbit --algorithms oktopk topka --n 1000000 --steps 5

The ranks share this machine's cores: what they compute takes longer than on hosts of their own; columns "alone" have
the processor time instead. A link lets a millisecond's worth pass at once before it holds to its rate.
"""


def compare(args: argparse.Namespace) -> Iterator[Output]:
    """Run a job for each number of ranks and each rate; yield the table and the record."""

    def command(ranks: int, link: Link, file: Path) -> list[str]:
        return interleaved_command(args, link.rate / 1e9, link.trip / 2 * 1e6, file)

    jobs = list(bench_network.jobs("bench compare", args, command))
    yield summary(jobs)
    yield {"jobs": jobs}


def interleaved_command(args: argparse.Namespace, gbit: float, latency: float, file: Path) -> list[str]:
    """Return the command line of the interleaved benchmark, after ``python -m sparse_mpi``."""
    given = ["--gbit", repr(gbit), "--latency", repr(latency), "--json", str(file)]
    return ["bench", "interleaved", *given, *options.command(args, PASSED)]


def summary(jobs: list[dict[str, Any]]) -> str:
    """Return the speedups over dense, a row a candidate and a column a job."""
    names = list(dict.fromkeys(name for job in jobs for name in job["results"] if name != BASELINE))
    titles = [f"P={job['ranks']} {job['rate']}{'*' * below(job)}" for job in jobs]
    width = max(map(len, [BASELINE, *names]))
    columns = [Column(title, 12, str(at), ".2f") for at, title in enumerate(titles)]
    rows: dict[str, list[float]] = {name: [1 / job["results"][name]["over dense"] for job in jobs] for name in names}
    rows["dense over ring bound"] = [job["dense over ring"] for job in jobs]
    table = Table(Column("", -width, "name"), *columns)
    lines = [
        "speedup of a step over dense",
        *table.lines({"name": n, **{str(at): ratio for at, ratio in enumerate(r)}} for n, r in rows.items()),
    ]
    return "\n".join([*lines, *shortfalls(jobs)])


COMPARE = Benchmark(
    "compare",
    help="all algorithms and wire formats against dense, on networks emulated on this machine",
    description=COMPARING,
    options=(
        *bench_network.networks([4, 8], ["100mbit", "1gbit"], 3600),
        *MEASURED,
        formats.form(),
        options.json(),
        options.plot("also draw step over bandwidth (needs matplotlib)"),
    ),
    measure=compare,
    check=check,
    figure=all_of,
)
