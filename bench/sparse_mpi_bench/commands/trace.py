"""``python -m sparse_mpi bench trace``: the messages of one step of an algorithm, by sender, receiver and time."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

from sparse_mpi.cli import values
from sparse_mpi.cli.options import SPELLINGS, count, option
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import Refused, refusing
from sparse_mpi_bench import networks
from sparse_mpi_bench import options as bench_options
from sparse_mpi_bench.analysis import gradients, message_diagram
from sparse_mpi_bench.analysis.recording import RecordedCall, watched
from sparse_mpi_bench.analysis.replay import Trace, Transfer, replay
from sparse_mpi_bench.benchmark import Benchmark, Output, save
from sparse_mpi_bench.figures.draw_message_diagram import figure as draw_diagram
from sparse_mpi_bench.figures.draw_timeline import trace as figure

RANKS = range(2, 65)
STRIP_RANKS, STRIP_N = 5, 24  # the most ranks and elements of a strip that can be read
DESCRIPTION = """\
Record the calls of one step among ranks that all are in this one process, and lay their messages out in time on a
network of given latency and bandwidth, by the textbook schedule of every call. What ranks compute takes no time; a
message inside a node takes as long as one between nodes.

  python -m sparse_mpi bench trace --algorithms oktopk topka --plot trace.png
  python -m sparse_mpi bench trace --algorithms gtopk --ranks 4 --n 12 --density 0.25 --step 1 --strip strip.svg
  python -m sparse_mpi bench trace --ranks 7 --network piz-daint --gradients layer-skewed --json trace.json
"""


def check(args: argparse.Namespace) -> None:
    if args.strip and (len(args.algorithms) > 1 or args.ranks > STRIP_RANKS or not 1 <= (args.n or 0) <= STRIP_N):
        raise Refused(
            f"--strip takes one of --algorithms, --ranks up to {STRIP_RANKS} and --n up to {STRIP_N}, got "
            f"{' '.join(args.algorithms)}, {args.ranks} and {args.n}; for example --ranks 4 --n 12 --density 0.25"
        )


def measure(args: argparse.Namespace) -> Iterator[Output]:
    with refusing("--"):
        network, of = networks.named(args.network)
        made = gradients.make(
            args.gradients, 100_000 if args.n is None and args.gradients in gradients.KINDS else args.n, args.seed
        )
    traces = [
        Trace(name, args.ranks, replay(record(name, made, args), network), args.ranks_per_node)
        for name in args.algorithms
    ]
    heading = (
        f"P = {args.ranks}, {args.ranks_per_node} a node, n = {made.size:,}, density {args.density:g}, "
        f"step {args.step}, {made.title}; {of}: {network}"
    )
    yield "\n\n".join([heading, *(_table(trace) for trace in traces)])
    yield {"network": {"alpha": network.alpha, "beta": network.beta}, **_record(traces, heading)}
    if args.strip:
        watched = message_diagram.watch(args.algorithms[0], made, args.ranks, args.density, args.step)
        save(partial(draw_diagram, watched, f"{args.algorithms[0]}: {heading.partition(';')[0]}"), args.strip)


def record(name: str, made: gradients.Gradients, args: argparse.Namespace) -> list[list[RecordedCall]]:
    algorithm = bench_options.algorithm(name, args)
    seen = watched(algorithm, made, args.ranks, args.step, lambda step: list(step.comm.record), density=args.density)
    return [steps[-1] for steps in seen]


def _table(trace: Trace) -> str:
    phases: dict[str, list[Transfer]] = {}
    for transfer in trace.transfers:
        phases.setdefault(transfer.phase, []).append(transfer)
    table = Table(
        Column(trace.algorithm, -max(map(len, phases), default=1), lambda of: of[0].phase),
        Column("rounds", 7, lambda of: len({t.round for t in of})),
        Column("messages", 9, len),
        Column("bytes", 11, lambda of: sum(t.bytes for t in of)),
        Column("from, us", 10, lambda of: 1e6 * min(t.start for t in of), ".1f"),
        Column("to, us", 10, lambda of: 1e6 * max(t.end for t in of), ".1f"),
    )
    between = (
        f"between nodes: {sum(t.bytes for t in trace.between)} of {sum(t.bytes for t in trace.transfers)} bytes, "
        f"{len(trace.between)} of {len(trace.transfers)} messages"
    )
    return "\n".join([*table.lines(phases.values()), between])


def _record(traces: list[Trace], heading: str) -> dict[str, Any]:
    steps = {
        trace.algorithm: {
            "seconds": trace.seconds,
            "between nodes": sum(t.bytes for t in trace.between),
            "matrix": trace.matrix.tolist(),
            "transfers": [transfer._asdict() for transfer in trace.transfers],
        }
        for trace in traces
    }
    return {"heading": heading, "algorithms": steps}


TRACE = Benchmark(
    "trace",
    help="who sends what to whom in a step, and when",
    description=DESCRIPTION,
    options=(
        option("--ranks P", f"{RANKS[0]} to {RANKS[-1]}", values.integer(RANKS[0], RANKS[-1]), 8),
        option("--algorithms NAME", SPELLINGS, values.algorithm, ["oktopk"], nargs="+"),
        count("--n", None, "elements of the gradient (default: 100,000)"),
        option("--density", "share of them that is sent", values.share, 0.01),
        bench_options.RANKS_PER_NODE,
        option("--gradients KIND", bench_options.GRADIENTS, bench_options.gradients, "independent"),
        count("--step", 3, "which one, from 1, with error feedback from those before"),
        option("--network NAME", f"{networks.CHOICES}", values.checked(networks.named, "10gbe", "network"), "10gbe"),
        count("--seed", 0, "of all that is drawn at random", 0),
        option("--json FILE", "write the matrices and all messages with their times", values.record),
        option("--plot FILE", "draw the matrix and the timeline of every algorithm", values.figure),
        option(
            "--strip FILE",
            "draw which entries go where, of one algorithm on few ranks and a short vector",
            values.figure,
        ),
    ),
    measure=measure,
    check=check,
    figure=figure,
)
