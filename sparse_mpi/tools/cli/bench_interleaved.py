"""``python -m sparse_mpi bench interleaved``: all algorithms and wire formats, in turns step by step, against dense."""

from __future__ import annotations

import argparse
import warnings

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.comm import as_comm
from sparse_mpi.network.break_even import ring_bound
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.comparison import (
    BASELINE,
    OWN,
    Candidate,
    Rules,
    accepts,
    batches,
    candidates,
    peak_memory,
    take_turns,
)
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.cli import gradient_options, values
from sparse_mpi.tools.cli.interleaved_table import render, results
from sparse_mpi.tools.cli.parsing import Refused

DEPRECATED = "contest"
WIRES = (OWN, "packed", "packed+bf16")
DESCRIPTION = """\
Whether it pays to send less, on the network this runs on: all candidates take turns, step by step on the same
gradients, with error feedback. A step is compared with that of a dense float32 sum in the same turns.

  mpiexec -n 4 python -m sparse_mpi bench interleaved --algorithms oktopk topka --n 1000000 --gbit 10 --latency 5

On networks that are emulated on this machine: python -m sparse_mpi bench compare
"""


def add_parser(kinds: argparse._SubParsersAction) -> None:
    """Declare ``bench interleaved``, and its old name."""
    text = "all algorithms and wire formats in turns, against a dense sum on this network"
    new = kinds.add_parser("interleaved", help=text, description=DESCRIPTION)
    old = kinds.add_parser(DEPRECATED, description=f"The old name of bench interleaved.\n\n{DESCRIPTION}")
    for parser, function in ((new, run), (old, _run_by_old_name)):
        add_options(parser)
        text = "bandwidth of a rank's link, Gbit/s, if known: tells whether dense is fair"
        parser.add_argument("--gbit", type=values.positive, help=text)
        parser.add_argument(
            "--latency", type=values.number, default=5.0, help="of a message, microseconds (default: 5)"
        )
        parser.add_argument(
            "--json", type=values.record, metavar="FILE", help="also write all numbers, with what they were measured on"
        )
        parser.set_defaults(run=function)


def _run_by_old_name(args: argparse.Namespace) -> int:
    """Warn of the old name, and measure."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # or nobody at the command line would see it
        warnings.warn(f"bench {DEPRECATED} is now bench interleaved", DeprecationWarning, stacklevel=1)
    return run(args)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what is measured: the options that `rules_of` and `entered_of` read."""
    text = "(default: all); dense takes part in any case"
    parser.add_argument(
        "--algorithms", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS), metavar="NAME", help=text
    )
    text = f"formats of the messages; {OWN}: each algorithm's own (default: those of {' '.join(WIRES)} that one takes)"
    parser.add_argument("--wires", nargs="+", choices=[OWN, *WIRES], metavar="FORMAT", help=text)
    gradient_options.declare(parser)
    parser.add_argument("--density", type=values.share, default=0.01, help="share of them that is sent (default: 0.01)")
    parser.add_argument(
        "--steps", type=values.integer(1), default=8, help="steps counted, after --warmup more (default: 8)"
    )
    parser.add_argument("--warmup", type=values.integer(0), default=2, help="steps not counted (default: 2)")
    text = "a candidate stops when its steps have taken so many seconds and three count (default: 30)"
    parser.add_argument("--seconds", type=values.positive, default=30.0, help=text)
    text = "candidates, besides dense, that take turns and hold a residual each at a time (default: 10)"
    parser.add_argument("--batch", type=values.integer(1), default=10, help=text)
    parser.add_argument("--seed", type=values.integer(0), default=0, help="of the gradients (default: 0)")


def check(args: argparse.Namespace) -> list[list[Candidate]]:
    """Return who takes turns with whom; raises Refused unless the options are good."""
    wires = args.wires or [wire for wire in WIRES if any(accepts(name, wire) for name in args.algorithms)]
    try:
        return batches(candidates(args.algorithms, wires), args.batch)
    except ValueError as error:
        raise Refused(f"--{error}") from None


def run(args: argparse.Namespace) -> int:
    """Measure, and print on rank 0."""
    groups = check(args)
    comm = as_comm(None)
    comm.job.guard()
    layout = gradient_options.layout_of(args)
    rules = Rules(args.density, args.steps, args.warmup, args.seconds, args.seed)
    with Bar(len(groups) * (args.warmup + args.steps), "turns", comm.rank == 0) as bar:
        measured = [take_turns(group, layout, rules, comm, bar) for group in groups]
    memory = peak_memory(comm)
    if comm.rank == 0:
        record = {
            "ranks": comm.size,
            "n": layout.size,
            "options": records.options(args),
            **provenance(),
            "peak memory": memory,
            "results": results(measured, args.latency * 1e-6),
        }
        if args.gbit is not None:
            bound = ring_bound(4 * layout.size, comm.size, args.gbit * 1e9)
            record["dense over ring"] = record["results"][BASELINE]["step"] / bound if comm.size > 1 else None
        print(render(record), flush=True)
        if args.json:
            records.write(args.json, record)
    return 0
