"""``python -m sparse_mpi plan``: measure which way to reduce a model's gradient is fastest, and write it down."""

from __future__ import annotations

import argparse
from typing import Any

from sparse_mpi.algorithms.base import DENSITY
from sparse_mpi.cli import options, values
from sparse_mpi.cli.options import option
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.comm.conversion import comm_of_job
from sparse_mpi.planning.base import DENSE, Plan
from sparse_mpi.planning.store import save
from sparse_mpi.predict.models import MODELS

EXAMPLES = """examples:
  mpiexec -n 4 python -m sparse_mpi plan --model vgg16 --out plan.json
  mpiexec -n 4 python train/vgg.py --plan plan.json
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="what to leave dense and what to reduce sparsely",
        description="Measure on these ranks how long each way takes to reduce a gradient, and plan the fastest: which "
        "tensors stay dense, which algorithm reduces the others. It says so if all should.",
        epilog=EXAMPLES,
    )
    given = (
        option("--model", "whose tensors are reduced", choices=list(MODELS), required=True),
        option("--density D", "share of the elements that sparse reductions send", values.share, DENSITY),
        option("--out FILE", "write the plan, as JSON", values.new_file("plan.json")),
    )
    options.declare(parser, given)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from sparse_mpi.planning.measure import measure

    comm = comm_of_job()
    plan = measure(MODELS[args.model], args.density, comm, progress=True)
    if comm.rank == 0:
        print(_render(plan))
        if args.out:
            save(plan, args.out)
    return 0


def _render(plan: Plan) -> str:
    table = Table(
        Column("way", -10, lambda of: of[0]),
        Column("seconds", 9, lambda of: of[1], ".4g"),
        Column("/dense", 7, lambda of: of[1] / plan.seconds[DENSE], ".3f"),
    )
    rows = sorted(plan.seconds.items(), key=lambda of: of[1])
    heading = f"{len(plan.tensors)} tensors, density {plan.density:g}, P = {plan.ranks}; of a reduction:"
    return "\n".join([heading, *table.lines(rows), plan.explanation])
