"""Ways to reduce, as the command line of a study spells them: elect:votes=0.5:feedback=gmc."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from importlib.util import find_spec

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.reduction.arguments import spelled
from sparse_train.options.reduction import AUTO

SHARDS = ("shuffled", "sorted")


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


def check_program(text: str) -> None:
    """Raise ValueError unless there is a program of this name."""
    if not text.isidentifier() or find_spec(text) is None:
        raise ValueError(f"must be a program of train/, without .py, got {text!r}")


def check_way(text: str) -> None:
    """Raise ValueError unless the text begins with an algorithm, and goes on with options that have names."""
    _, algorithm, *others = arguments(text)
    if algorithm != AUTO:
        spelled(algorithm)
    if "--" in others:
        raise ValueError(f"must be ALGORITHM[:OPTION=VALUE..], got {text}")


def check_shards(text: str) -> None:
    """Raise ValueError unless the text begins with a kind of shards."""
    if text.partition(":")[0] not in SHARDS:
        raise ValueError(f"must be one of {', '.join(SHARDS)}, with options if need be, got {text}")
