"""Options that several commands have, each declared by a call, in the order in which ``--help`` shows them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.cli import values
from sparse_mpi.reduction.arguments import spelled, takes

SPELLINGS = f"{', '.join(ALGORITHMS)}, with options if need be, as in oktopk:wire=packed:radix=32"
Option = Callable[[argparse.ArgumentParser], object]  # declares itself


def option(name: str, text: str, kind: Callable[[str], Any] | None = None, default: Any = None, **more: Any) -> Option:
    """Return an option, whose ``name`` may end in what stands for its value (``"--file FILE"``), or an argument."""
    name, _, metavar = name.partition(" ") if name.startswith("--") else (name, "", "")
    given = {"help": text, "type": kind, "default": default, "metavar": metavar, **more}
    given = {each: value for each, value in given.items() if value not in (None, "")}
    return lambda parser: parser.add_argument(name, **given)


def declare(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    for each in options:
        each(parser)


def count(name: str, default: Any, text: str, least: int = 1, **more: Any) -> Option:
    return option(name, text, values.integer(least), default, **more)


def share(text: str, default: Any = 0.01, **more: Any) -> Option:
    return option("--density", text, values.share, default, **more)


def several(name: str, choices: Iterable[str], text: str = "(default: all)", nargs: str = "+") -> Option:
    known = list(choices)
    return option(name if " " in name else f"{name} NAME", text, default=known, nargs=nargs, choices=known)


def seed(text: str = "of all that is drawn at random") -> Option:
    return count("--seed", 0, text, 0)


def json(text: str = "also write all numbers, with what they were measured on") -> Option:
    return option("--json FILE", text, values.record)


def plot(text: str) -> Option:
    return option("--plot FILE", text, values.figure)


def taken(args: argparse.Namespace, names: Iterable[str], algorithm: str) -> dict[str, Any]:
    """Return those of the options ``names`` that are given and that an algorithm takes."""
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return {name: value for name, value in given.items() if takes(spelled(algorithm)[0], name, value)}
