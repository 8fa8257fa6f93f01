"""The options that say what the link may carry, or how long a step may take, in place of an amount."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from sparse_mpi.budget import Goal, make_goal
from sparse_mpi.budget.goal import EXAMPLES
from sparse_mpi.tools.cli.values import checked, positive

# Options that set the amount themselves, or that need all ranks to stay
EXCLUDED = ("k", "density", "plan", "dense_warmup", "density_warmup", "elastic")


def extend(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument_group("byte budget").add_argument
    text = (
        f"set k in every step, so that a rank sends so much: {EXAMPLES}; more while gradients change fast, and less "
        "later (default: --density)"
    )
    add("--budget", type=checked(make_goal, "5MB/s", "budget"), metavar="AMOUNT/s", help=text)
    text = "set k in every step, so that one takes S seconds; beside --budget, no longer (default: --density)"
    add("--step-seconds", type=positive, metavar="S", help=text)


def is_given(args: Namespace) -> bool:
    """Return True if a budget sets the amount."""
    return args.budget is not None or args.step_seconds is not None


def goal_of(args: Namespace) -> Goal | None:
    """Return what the options ask for, or None."""
    return make_goal(args.budget, args.step_seconds)


def resolve(parser: ArgumentParser, args: Namespace) -> None:
    """Reject what has no effect beside a budget; to be called before defaults are filled in."""
    if not is_given(args):
        return
    option = "step-seconds" if args.budget is None else "budget"
    for name in EXCLUDED:
        if getattr(args, name):
            other = f"--{name.replace('_', '-')}"
            parser.error(f"argument --{option}: cannot be combined with {other}; leave out one of them")
    try:
        goal_of(args)
    except ValueError as error:
        parser.error(f"argument --{option}: {error}")
