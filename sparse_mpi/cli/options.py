"""Options of several commands, each declared by a call, in ``--help``'s order."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.cli import values

SPELLINGS = f"{', '.join(ALGORITHMS)}, with options if need be, as in oktopk:wire=packed:radix=32"
Option = Callable[[argparse.ArgumentParser], object]  # declares itself


def option(name: str, text: str, kind: Callable[[str], Any] | None = None, default: Any = None, **more: Any) -> Option:
    """Return an option with a ``name`` that may end in its value's placeholder (``"--file FILE"``), or an argument."""
    name, _, metavar = name.partition(" ") if name.startswith("--") else (name, "", "")
    given = {"help": text, "type": kind, "default": default, "metavar": metavar, **more}
    given = {each: value for each, value in given.items() if value not in (None, "")}
    return lambda parser: parser.add_argument(name, **given)


def declare(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    for each in options:
        each(parser)


def count(name: str, default: Any, text: str, least: int = 1, **more: Any) -> Option:
    return option(name, text, values.integer(least), default, **more)
