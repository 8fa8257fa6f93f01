"""How command lines spell algorithms with options, and densities."""

from __future__ import annotations

from argparse import ArgumentTypeError

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.reducer.arguments import spelled

HELP = f"{', '.join(ALGORITHMS)}, with options if need be, as in oktopk:wire=packed:radix=32"


def algorithm(text: str) -> str:
    """``text``, if it spells an algorithm; for argparse."""
    try:
        spelled(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def density(text: str) -> float:
    """Convert to a number in (0, 1]; for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"must be a number, got {text!r}") from None
    if not 0 < value <= 1:
        raise ArgumentTypeError(f"must be in (0, 1], got {text}; 0.01 keeps one entry in a hundred")
    return value
