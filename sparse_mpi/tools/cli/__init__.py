"""The command line: one module a command, each with ``add_parser`` that says what it takes and ``run`` that does it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from sparse_mpi.tools.bench.records import program, versions
from sparse_mpi.tools.cli import doctor, draw, gpu_check, plan, run, tables, top
from sparse_mpi.tools.cli.bench_allreduce import AGREE, ALLREDUCE, ELASTIC
from sparse_mpi.tools.cli.bench_energy import ENERGY
from sparse_mpi.tools.cli.bench_interleaved import COMPARE, INTERLEAVED
from sparse_mpi.tools.cli.bench_network import NETWORK
from sparse_mpi.tools.cli.bench_select import SELECT, WIRE_FORMATS
from sparse_mpi.tools.cli.bench_sparse import SPARSE
from sparse_mpi.tools.cli.bench_sparse_compare import SPARSE_COMPARE, SPARSE_VOLUME
from sparse_mpi.tools.cli.bench_volume import VOLUME
from sparse_mpi.tools.cli.predict import DESCRIPTION, PREDICTIONS
from sparse_mpi.tools.cli.predict_published import PUBLISHED
from sparse_mpi.tools.cli.predict_records import QUESTIONS
from sparse_mpi.tools.cli.trace import TRACE
from sparse_mpi.tools.values import Parser, Refused

BENCHMARKS = (
    *(ALLREDUCE, INTERLEAVED, COMPARE, SELECT, SPARSE, SPARSE_COMPARE, SPARSE_VOLUME),
    *(WIRE_FORMATS, VOLUME, ENERGY, ELASTIC, AGREE, NETWORK),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` (default: the process's arguments) names; returns the exit code."""
    known = parser()
    args = known.parse_args(argv)
    if args.run is None:
        known.print_help()
        return 0
    try:
        return args.run(args)
    except Refused as refused:
        known.refuse(refused, argv)


def _shown(parser: Parser, _: argparse.Namespace) -> int:
    parser.print_help()
    return 0


def parser() -> Parser:
    """Return the parser of all commands."""
    made = Parser(prog=program(), description="Sparse allreduce over MPI.")
    made.add_argument(
        "--version", action="version", version=f"sparse_mpi {versions().get('sparse_mpi', 'that is not installed')}"
    )
    made.set_defaults(run=None)
    commands = made.add_subparsers(title="commands", metavar="COMMAND")
    run.add_parser(commands)
    tables.add_parser(commands)
    bench = commands.add_parser("bench", help="measure", description="Measure on this machine.")
    kinds = bench.add_subparsers(title="benchmarks", metavar="WHAT", required=True)
    for benchmark in BENCHMARKS:
        benchmark.add_parser(kinds)
    predict = commands.add_parser("predict", help="does it pay on a cluster, and what to use", description=DESCRIPTION)
    predict.set_defaults(run=partial(_shown, predict))
    questions = predict.add_subparsers(title="questions", metavar="WHAT")
    for prediction in (*PREDICTIONS, *QUESTIONS, PUBLISHED):
        prediction.add_parser(questions)
    for command in (top, TRACE, plan, draw, doctor, gpu_check):
        command.add_parser(commands)
    return made
