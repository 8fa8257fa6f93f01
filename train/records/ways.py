"""Ways to reduce, as the command line of a study spells them: elect:votes=0.5:feedback=gmc."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from sparse_mpi.algorithms import ALGORITHMS


def arguments(way: str) -> list[str]:
    """Return a way as the command line of a training program: its algorithm, and the program's other options."""
    name, *given = way.split(":")
    own = [field.name for field in fields(ALGORITHMS[name])] if name in ALGORITHMS else []
    algorithm = [name, *(option for option in given if option.split("=")[0] in own)]
    others = [option for option in given if option not in algorithm]
    return ["--algo", ":".join(algorithm), *_words(others)]


def dealing(shards: str) -> list[str]:
    """Return a kind of shards, and options that go with it, as the command line of a training program."""
    kind, *given = shards.split(":")
    options = [] if kind == "shuffled" else ["--shards", kind]  # not every program has that option
    return [*options, *_words(given)]


def _words(options: Iterable[str]) -> list[str]:
    """Return options, each NAME or NAME=VALUE, as words of a command line."""
    return [word for option in options for word in f"--{option}".split("=", 1)]
