"""``python -m sparse_mpi bench contest``: all algorithms in all wire formats, in turns step by step, against dense."""

from __future__ import annotations

import argparse
import json
import sys

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.bench.comparison import (
    BASELINE,
    OWN,
    Contestant,
    Rules,
    accepts,
    batches,
    contestants,
    peak_memory,
    take_turns,
)
from sparse_mpi.bench.models import MODELS
from sparse_mpi.bench.provenance import provenance
from sparse_mpi.cli.contest_table import render, results
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.costs.break_even import ring_bound
from sparse_mpi.sparse import Layout

WIRES = (OWN, "packed", "packed+bf16")
DESCRIPTION = """\
Whether it pays to send less, on the network this runs on: all contestants take turns, step by step on the same
gradients, with error feedback. A step is compared with that of a dense float32 sum in the same turns.

  mpiexec -n 4 python -m sparse_mpi bench contest --algorithms oktopk topka --n 1000000 --gbit 10 --latency 5

On networks that are emulated on this machine: python -m sparse_mpi bench compare
"""


def add_parser(kinds: argparse._SubParsersAction) -> None:
    """Declare ``bench contest``."""
    parser = kinds.add_parser(
        "contest",
        help="all algorithms and wire formats in turns, against a dense sum on this network",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.add_argument(
        "--gbit", type=float, help="bandwidth of a rank's link, Gbit/s, if known: tells whether dense is fair"
    )
    parser.add_argument("--latency", type=float, default=5.0, help="of a message, microseconds (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="also write all numbers, with what they were measured on")
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is measured: the options that `rules_of` and `entered_of` read."""
    text = "(default: all); dense takes part in any case"
    parser.add_argument(
        "--algorithms", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS), metavar="NAME", help=text
    )
    text = f"formats of the messages; {OWN}: each algorithm's own (default: those of {' '.join(WIRES)} that one takes)"
    parser.add_argument("--wires", nargs="+", choices=[OWN, *WIRES], metavar="FORMAT", help=text)
    gradient = parser.add_mutually_exclusive_group()
    text = "whose tensors make up the gradient (default: vgg16)"
    gradient.add_argument("--model", choices=list(MODELS), help=text)
    gradient.add_argument("--n", type=int, help="elements of a gradient that is one flat tensor")
    parser.add_argument("--density", type=float, default=0.01, help="share of them that is sent (default: 0.01)")
    parser.add_argument("--steps", type=int, default=8, help="steps counted, after --warmup more (default: 8)")
    parser.add_argument("--warmup", type=int, default=2, help="steps not counted (default: 2)")
    text = "a contestant stops when its steps have taken so many seconds and three count (default: 30)"
    parser.add_argument("--seconds", type=float, default=30.0, help=text)
    text = "contestants, besides dense, that take turns and hold a residual each at a time (default: 10)"
    parser.add_argument("--batch", type=int, default=10, help=text)
    parser.add_argument("--seed", type=int, default=0, help="of the gradients (default: 0)")


def check(args: argparse.Namespace) -> list[list[Contestant]]:
    """Who takes turns with whom; raises SystemExit unless the options are good."""
    least = {"steps": 1, "warmup": 0, "batch": 1, "n": 1}
    for option, value in least.items():
        given = getattr(args, option)
        if given is not None and given < value:
            raise SystemExit(f"--{option} must be at least {value}, got {given}")
    if not 0 < args.density <= 1:
        raise SystemExit(f"--density must be in (0, 1], got {args.density:g}; 0.01 keeps one entry in a hundred")
    if not args.seconds > 0:
        raise SystemExit(f"--seconds must be more than 0, got {args.seconds:g}")
    wires = args.wires or [wire for wire in WIRES if any(accepts(name, wire) for name in args.algorithms)]
    try:
        return batches(contestants(args.algorithms, wires), args.batch)
    except ValueError as error:
        raise SystemExit(f"--{error}") from None


def run(args: argparse.Namespace) -> int:
    """Measure, and print on rank 0."""
    groups = check(args)
    if args.latency < 0 or (args.gbit is not None and not args.gbit > 0):
        raise SystemExit(f"--gbit must be above 0 and --latency at least 0, got {args.gbit} and {args.latency:g}")
    comm = as_comm(None)
    comm.guard()
    if args.n is None:
        args.model = args.model or "vgg16"
    layout = Layout.of(args.n or [shape for _, shape in MODELS[args.model]()])
    rules = Rules(args.density, args.steps, args.warmup, args.seconds, args.seed)
    with _Teller(comm, len(groups) * (args.warmup + args.steps)) as tell:
        measured = [take_turns(group, layout, rules, comm, tell) for group in groups]
    memory = peak_memory(comm)
    if comm.rank == 0:
        record = {
            "ranks": comm.size,
            "n": layout.size,
            "options": {key: value for key, value in vars(args).items() if key not in ("run", "json")},
            **provenance(),
            "peak memory": memory,
            "results": results(measured, args.latency * 1e-6),
        }
        if args.gbit is not None:
            bound = ring_bound(4 * layout.size, comm.size, args.gbit * 1e9)
            record["dense over ring"] = record["results"][BASELINE]["step"] / bound if comm.size > 1 else None
        print(render(record), flush=True)
        if args.json:
            with open(args.json, "w") as file:
                json.dump(record, file, indent=1)
                file.write("\n")
    return 0


class _Teller:
    """On rank 0 of a terminal with tqdm a progress bar, else a line a step."""

    def __init__(self, comm: Comm, steps: int) -> None:
        self._silent, self._bar = comm.rank > 0, None
        if not self._silent and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=steps, leave=False, desc="turns")

    def __enter__(self) -> _Teller:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, what: str) -> None:
        if self._bar is not None:
            self._bar.update()
        elif not self._silent:
            print(what, file=sys.stderr, flush=True)
