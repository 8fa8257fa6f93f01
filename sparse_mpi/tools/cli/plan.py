"""``python -m sparse_mpi plan``: what to leave dense and what to reduce sparsely, as a plan file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

from sparse_mpi.algorithms.base import DENSITY
from sparse_mpi.comm import as_comm
from sparse_mpi.comm.runtime import LAUNCHERS
from sparse_mpi.tools.bench.models import MODELS
from sparse_mpi.tools.cli import values
from sparse_mpi.tools.cli.figures import save as save_figure
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.figures.plan import figure
from sparse_mpi.tools.plan.base import Plan, Profile, Tensor
from sparse_mpi.tools.plan.explain import explain
from sparse_mpi.tools.plan.planners import ORACLES, PLANNERS, best
from sparse_mpi.tools.plan.store import load_profile, save, save_profile
from sparse_mpi.tools.plan.timeline import simulate

EXAMPLES = """examples:
  mpiexec -n 4 python -m sparse_mpi plan --model vgg16 --backward 0.4 --out plan.json --save-profile profile.json
  python -m sparse_mpi plan --profile profile.json --compare
  python -m sparse_mpi plan --profile profile.json --overlap --planner greedy --plot timeline.svg
"""


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "plan",
        help="what to leave dense and what to reduce sparsely",
        description="Measure what reductions cost on these ranks, or read it from a file, and plan for the shortest "
        "training step: which tensors stay dense, which algorithm reduces the others. It says so if all should.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", choices=list(MODELS), help="measure here, for the tensors of this model")
    source.add_argument(
        "--profile",
        type=values.file("profile.json"),
        metavar="FILE",
        help="plan for what --save-profile has written; needs no MPI",
    )
    text = f"share of the elements that sparse reductions send (default: {DENSITY}, or the profile's)"
    add("--density", type=values.share, metavar="D", help=text)
    text = "seconds of a training step {} (default: 0); only with --model"
    add("--before", type=values.number, metavar="SECONDS", help=text.format("before the backward pass"))
    add("--backward", type=values.number, metavar="SECONDS", help=text.format("in the backward pass"))
    add("--update", type=values.number, metavar="SECONDS", help=text.format("in the optimizer"))
    names = ("best", *PLANNERS)
    text = f"one of {', '.join(names)}; best (default) is the best of all but {', '.join(ORACLES)}"
    add("--planner", choices=names, default="best", metavar="NAME", help=text)
    add("--overlap", action="store_true", help="plan for reductions that begin during the backward pass")
    add("--cpu-lane", action="store_true", help="plan for selection and merging beside the training's own computing")
    add("--compare", action="store_true", help="also print what every planner would do")
    add("--out", type=values.new_file("plan.json"), metavar="FILE", help="write the plan, as JSON")
    add("--save-profile", type=values.new_file("profile.json"), metavar="FILE", help="write what was measured, as JSON")
    add(
        "--plot",
        type=values.figure,
        metavar="FILE",
        help="draw the step all dense and as planned, as PNG or SVG (needs matplotlib)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure or read, plan, and print on rank 0."""
    _check(args)
    try:
        profile = _read(args) if args.profile else _measure(args)
        if profile is None:
            return 0
        plan = {"best": best, **PLANNERS}[args.planner](profile, args.overlap, args.cpu_lane)
        print(_render(profile, plan))
        if args.compare:
            print("\n" + _compare(profile, args.overlap, args.cpu_lane))
        if args.save_profile:
            save_profile(profile, args.save_profile)
        if args.out:
            save(plan, args.out)
    except (ValueError, OSError) as problem:
        raise SystemExit(str(problem)) from None
    if args.plot:
        save_figure(partial(figure, profile, plan), args.plot)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot be meant, before anything is measured."""
    times = {name: getattr(args, name) for name in ("before", "backward", "update")}
    for name, seconds in times.items():
        if seconds is not None and args.profile:
            raise Refused(f"--{name} has no effect with --profile, which says how long it takes; leave it out")
    launched = [name for name in LAUNCHERS if os.environ.get(name, "1") not in ("", "0", "1")]
    if args.profile and launched:
        raise Refused(f"--profile plans in one process, got several ({launched[0]}); leave the launcher out")


def _read(args: argparse.Namespace) -> Profile:
    profile = load_profile(args.profile)
    return replace(profile, density=args.density) if args.density else profile


def _measure(args: argparse.Namespace) -> Profile | None:
    """Measure on all ranks; return it on rank 0."""
    from sparse_mpi.tools.plan.measure import measure

    comm = as_comm(None)
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
    """Return the parts, and the plan in words."""
    kind = "with" if plan.overlap else "without"
    lines = [
        f"{len(plan.tensors)} tensors, {profile.size:,} elements, density {plan.density:g}, P = {plan.ranks}, "
        f"{kind} overlap{', CPU lane' if plan.cpu_lane else ''}",
        "",
        f"{'part':>4}  {'option':<12} {'tensors':>7} {'elements':>13} {'k':>13} {'partitions':>10}",
    ]
    for number, part in enumerate(plan.parts, 1):
        elements = sum(profile.tensors[i].size for i in part.tensors)
        lines.append(
            f"{number:>4}  {part.option:<12} {len(part.tensors):>7} {elements:>13,} {part.k:>13,} {part.partitions:>10}"
        )
    return "\n".join([*lines, "", explain(profile, plan)])


def _compare(profile: Profile, overlap: bool, cpu_lane: bool) -> str:
    """Return the plan of every planner but the oracles."""
    lines = [f"{'planner':<10} {'step s':>9} {'exposed s':>9} {'parts':>5} {'dense %':>7} {'/dense':>6}"]
    baseline = PLANNERS["dense"](profile, overlap, cpu_lane).predicted
    for name, planner in PLANNERS.items():
        if name in ORACLES:
            continue
        plan = planner(profile, overlap, cpu_lane)
        exposed = simulate(profile, plan.parts, overlap, cpu_lane).exposed
        kept = [part for part in plan.parts if profile.option(part.option).dense]
        share = sum(profile.tensors[i].size for part in kept for i in part.tensors) / profile.size
        lines.append(
            f"{name:<10} {plan.predicted:9.4g} {exposed:9.4g} {len(plan.parts):>5} {100 * share:7.2f} "
            f"{plan.predicted / baseline if baseline else 1:6.3f}"
        )
    lines.append("/dense: step over that of all dense; dense %: share of the elements that stay dense")
    return "\n".join(lines)
