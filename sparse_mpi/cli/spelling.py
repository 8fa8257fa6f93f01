"""How command lines spell algorithms with options."""

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
