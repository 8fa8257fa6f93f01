"""Converters of values on command lines, each a ``type=`` of `argparse` that knows what it expects and an example."""

from __future__ import annotations

import math
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.network import networks
from sparse_mpi.reduction.arguments import spelled
from sparse_mpi.tools.analysis.gradients import KINDS
from sparse_mpi.tools.emulation import schedule
from sparse_mpi.tools.emulation import schedule as rates

T = TypeVar("T")
SPELLINGS = f"{', '.join(ALGORITHMS)}, with options if need be, as in oktopk:wire=packed:radix=32"
FIGURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Value(Generic[T]):
    """A converter.

    Attributes:
        read: makes the value of its text. Raises ValueError for a wrong one, or ArgumentTypeError that says what is
            wrong with it.
        expected: what it must be, to follow "must be".
        example: the text of a good one.
    """

    read: Callable[[str], T]
    expected: str
    example: str

    def __call__(self, text: str) -> T:
        """Convert; raise ArgumentTypeError for a wrong text."""
        try:
            return self.read(text)
        except ValueError:
            raise ArgumentTypeError(f"must be {self.expected}, got {shlex.quote(text)}") from None


def integer(least: int, most: int | None = None) -> Value[int]:
    """Return a converter to integers from ``least`` to ``most``."""

    def read(text: str) -> int:
        value = int(text)
        if value < least or (most is not None and value > most):
            raise ValueError
        return value

    return Value(read, f"an integer {f'>= {least}' if most is None else f'from {least} to {most}'}", str(max(least, 2)))


def _number(allowed: Callable[[float], bool], expected: str, example: str) -> Value[float]:
    """Return a converter to those numbers that ``allowed`` is true of."""

    def read(text: str) -> float:
        value = float(text)
        if not allowed(value):
            raise ValueError
        return value

    return Value(read, expected, example)


number = _number(lambda value: 0 <= value < math.inf, "a number >= 0", "0.5")
positive = _number(lambda value: 0 < value < math.inf, "a number > 0", "0.5")
finite = _number(math.isfinite, "a number", "0.9")
share = _number(lambda value: 0 < value <= 1, "in (0, 1]", "0.01")
part = _number(lambda value: 0 < value < 1, "in (0, 1)", "0.9")


def _path(allowed: Callable[[Path], bool], expected: str, example: str) -> Value[Path]:
    """Return a converter to those paths that ``allowed`` is true of."""

    def read(text: str) -> Path:
        if not text or not allowed(Path(text)):
            raise ValueError
        return Path(text)

    return Value(read, expected, example)


def file(example: str) -> Value[Path]:
    """Return a converter to the path of a file that is there."""
    return _path(Path.is_file, "a file that is there", example)


def folder(example: str) -> Value[Path]:
    """Return a converter to the path of a folder that is there."""
    return _path(Path.is_dir, "a folder that is there", example)


def new_file(example: str, suffixes: Sequence[str] = ()) -> Value[Path]:
    """Return a converter to the path of a file that can be written: its folder is there, and the suffix is known."""

    def allowed(path: Path) -> bool:
        return path.parent.is_dir() and not path.is_dir() and (not suffixes or path.suffix in suffixes)

    kind = f"a file that ends in {', '.join(suffixes)}" if suffixes else "a file"
    return _path(allowed, f"{kind}, in a folder that is there", example)


def new_folder(example: str) -> Value[Path]:
    """Return a converter to the path of a folder that is there or can be made."""
    return _path(_can_be_made, "a folder that is there or can be made", example)


def _can_be_made(folder: Path) -> bool:
    return all(place.is_dir() for place in (folder, *folder.parents) if place.exists())


record = new_file("record.json")
figure = new_file("figure.png", FIGURES)


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


text = Value(_text, "a text that is not empty", "word")


def _gradients(text: str) -> str:
    """Return a kind of gradients, or the file of recorded ones."""
    if text not in KINDS and not Path(text).is_file():
        raise ValueError
    return text


gradients = Value(_gradients, f"{', '.join(KINDS)}, or a file of train/gradients.py", "independent")


def _output(text: str) -> str:
    """Return the file with the output of a job, or - for standard input."""
    if text != "-" and not Path(text).is_file():
        raise ValueError
    return text


output = Value(_output, "a file that is there, or -", "job.txt")


def checked(check: Callable[[str], object], example: str, subject: str = "") -> Value[str]:
    """Return a converter to the texts that ``check`` takes; a line has what its ValueError says of the subject."""

    def read(text: str) -> str:
        try:
            check(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error).removeprefix(f"{subject} ")) from None
        return text

    return Value(read, "", example)


algorithm = checked(spelled, "oktopk:wire=packed", "algorithm")
network = checked(networks.named, "10gbe", "network")
every = checked(lambda given: [schedule.length(each) for each in given.split(",")], "30s", "every")
turns = checked(lambda given: [schedule.link(each) for each in given.split(",")], "1gbit,50mbit", "rate")
rate = checked(rates.parse, "100mbit", "rate")
