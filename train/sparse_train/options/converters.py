"""Converters of values that only the training programs have; all others are those of `sparse_mpi.tools.cli.values`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sparse_mpi.tools.cli.values import FIGURES, Value, share


def _norm(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


norm = Value(_norm, "a number > 0, or inf, which clips nothing", "1.0")


class Ramp(NamedTuple):
    """A density that falls from ``start`` to that of the rest of training in ``epochs``."""

    start: float
    epochs: float


def _densities(text: str) -> int | tuple[float, ...] | Ramp:
    """Convert to a number of epochs, to a density for each of the first epochs, or to a density and when it is over."""
    if text.isdecimal():
        return int(text)
    start, at, epochs = text.partition("@")
    if at:
        return Ramp(share(start), norm(epochs))
    return tuple(share(each) for each in text.split(","))


densities = Value(_densities, "densities such as 0.25,0.0625, a number of epochs, or D@E", "0.25,0.0625")


def new_file(example: str, suffixes: Sequence[str]) -> Value[Path]:
    """Return a converter to the path of a file with one of these suffixes, whose folder is made if need be."""

    def read(text: str) -> Path:
        if not text or Path(text).is_dir() or Path(text).suffix not in suffixes:
            raise ValueError
        return Path(text)

    return Value(read, f"a file that ends in {', '.join(suffixes)}", example)


figure = new_file("timeline.png", FIGURES)
