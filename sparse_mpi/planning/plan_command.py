"""``python -m sparse_mpi plan``: what to leave dense and what to reduce sparsely, as a plan file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from sparse_mpi.algorithms.base import DENSITY
from sparse_mpi.cli import options, values
from sparse_mpi.cli.options import option
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import Refused
from sparse_mpi.comm.conversion import comm_of_job
from sparse_mpi.comm.runtime import LAUNCHERS
from sparse_mpi.planning.base import Plan, Profile, Tensor
from sparse_mpi.planning.planners import PLANNERS, best, explain
from sparse_mpi.planning.store import load, save
from sparse_mpi.planning.timeline import load as load_of
from sparse_mpi.predict.models import MODELS

EXAMPLES = """examples:
  mpiexec -n 4 python -m sparse_mpi plan --model vgg16 --backward 0.4 --out plan.json --save-profile profile.json
  python -m sparse_mpi plan --profile profile.json --compare
  python -m sparse_mpi plan --profile profile.json --planner greedy --out plan.json
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="what to leave dense and what to reduce sparsely",
        description="Measure what reductions cost on these ranks, or read it from a file, and plan for the shortest "
        "training step: which tensors stay dense, which algorithm reduces the others. It says so if all should.",
        epilog=EXAMPLES,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", choices=list(MODELS), help="measure here, for the tensors of this model")
    text = "plan for what --save-profile has written; needs no MPI"
    source.add_argument("--profile", type=values.file("profile.json"), metavar="FILE", help=text)
    text = "seconds of a training step {} (default: 0); only with --model"
    names = ("best", *PLANNERS)
    planners = f"one of {', '.join(names)}; best (default) is the best of all"
    given = (
        options.share(
            f"share of the elements that sparse reductions send (default: {DENSITY}, or the profile's)",
            None,
            metavar="D",
        ),
        option("--before SECONDS", text.format("before the backward pass"), values.number),
        option("--backward SECONDS", text.format("in the backward pass"), values.number),
        option("--update SECONDS", text.format("in the optimizer"), values.number),
        option("--planner NAME", planners, choices=names, default="best"),
        option("--compare", "also print what every planner would do", action="store_true"),
        option("--out FILE", "write the plan, as JSON", values.new_file("plan.json")),
        option("--save-profile FILE", "write what was measured, as JSON", values.new_file("profile.json")),
    )
    options.declare(parser, given)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    _check(args)
    try:
        profile = load(args.profile, Profile) if args.profile else _measure(args)
        if profile is None:
            return 0
        if args.profile and args.density:
            profile = replace(profile, density=args.density)
        plan = {"best": best, **PLANNERS}[args.planner](profile)
        print(_render(profile, plan))
        if args.compare:
            print("\n" + _compare(profile))
        if args.save_profile:
            save(profile, args.save_profile)
        if args.out:
            save(plan, args.out)
    except (ValueError, OSError) as problem:
        raise SystemExit(str(problem)) from None
    return 0


def _check(args: argparse.Namespace) -> None:
    times = {name: getattr(args, name) for name in ("before", "backward", "update")}
    for name, seconds in times.items():
        if seconds is not None and args.profile:
            raise Refused(f"--{name} has no effect with --profile, which says how long it takes; leave it out")
    launched = [name for name in LAUNCHERS if os.environ.get(name, "1") not in ("", "0", "1")]
    if args.profile and launched:
        raise Refused(f"--profile plans in one process, got several ({launched[0]}); leave the launcher out")


def _measure(args: argparse.Namespace) -> Profile | None:
    from sparse_mpi.planning.measure import measure

    comm = comm_of_job()
    before, backward, update = (seconds or 0.0 for seconds in (args.before, args.backward, args.update))
    tensors = spread(MODELS[args.model](), backward)
    profile = measure(
        tensors, args.density or DENSITY, comm, before=before, backward=backward, update=update, progress=True
    )
    return profile if comm.rank == 0 else None


def spread(tensors: Sequence[tuple[str, tuple[int, ...]]], backward: float) -> tuple[Tensor, ...]:
    """Return tensors that become ready one by one, the last first, each after a time in proportion to its size."""
    bare = [Tensor(name, shape) for name, shape in tensors]
    passed = list(accumulate(tensor.size for tensor in reversed(bare)))
    shares = [size / passed[-1] for size in reversed(passed)]
    return tuple(tensor._replace(ready=backward * share) for tensor, share in zip(bare, shares, strict=True))


def _render(profile: Profile, plan: Plan) -> str:
    heading = f"{len(plan.tensors)} tensors, {profile.size:,} elements, density {plan.density:g}, P = {plan.ranks}"
    table = Table(
        Column("part", 4, lambda of: of[0]),
        Column(" option", -13, lambda of: f" {of[1].option}"),
        Column("tensors", 7, lambda of: len(of[1].tensors)),
        Column("elements", 13, lambda of: sum(profile.tensors[i].size for i in of[1].tensors), ","),
        Column("k", 13, lambda of: of[1].k, ","),
        Column("partitions", 10, lambda of: of[1].partitions),
    )
    return "\n".join([heading, "", *table.lines(enumerate(plan.parts, 1)), "", explain(profile, plan)])


def _compare(profile: Profile) -> str:
    plans = {name: planner(profile) for name, planner in PLANNERS.items()}
    baseline = plans["dense"].predicted

    def dense(plan: Plan) -> float:
        parts = [part for part in plan.parts if profile.option(part.option).dense]
        return sum(profile.tensors[i].size for part in parts for i in part.tensors) / profile.size

    def exchanging(plan: Plan) -> float:
        return sum(part.partitions * load_of(profile, part).exchange for part in plan.parts)

    table = Table(
        Column("planner", -10, lambda of: of[0]),
        Column("step s", 9, lambda of: of[1].predicted, ".4g"),
        Column("exchange s", 10, lambda of: exchanging(of[1]), ".4g"),
        Column("parts", 5, lambda of: len(of[1].parts)),
        Column("dense %", 7, lambda of: 100 * dense(of[1]), ".2f"),
        Column("/dense", 6, lambda of: of[1].predicted / baseline if baseline else 1, ".3f"),
    )
    legend = "/dense: step over that of all dense; dense %: share of the elements that stay dense"
    return "\n".join([*table.lines(plans.items()), legend])
