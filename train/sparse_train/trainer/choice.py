"""``--algo auto``: keep the algorithms that the library has chosen, and choose the same ones when a run is resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.reduction.arguments import algorithm_spelled, takes
from sparse_mpi.training.reduction import GradientReduction
from sparse_mpi.wire import WIRES


def choices_of(reduction: GradientReduction) -> list[str]:
    """Return the algorithm of every bucket as a command line spells it: ``oktopk:wire=packed``."""
    return [spelling(algorithm) for algorithm in reduction.algorithms]


def reduce_with(reduction: GradientReduction, choices: Sequence[str]) -> None:
    """Reduce every bucket by the algorithm that `choices_of` returned for it; collective.

    Raises:
        ValueError: they are of another number of buckets, or of algorithms that do not exist any more.
    """
    reduction.use([algorithm_spelled(choice) for choice in choices])


def spelling(algorithm: Algorithm) -> str:
    """Return the text from which `spelled` makes ``algorithm``, whose options but the wire are the defaults.

    Raises:
        ValueError: it has other options than the defaults.
    """
    with_wire = [f"{name}:wire={wire}" for name, wire in product(ALGORITHMS, WIRES) if takes(name, "wire", wire)]
    for text in (*ALGORITHMS, *with_wire):
        if algorithm_spelled(text) == algorithm:
            return text
    raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)} with its default options, got {algorithm!r}")


def summary(choices: Sequence[str]) -> str:
    """Return one phrase about all buckets: ``oktopk for 2 of 3 buckets, dense for 1 of 3 buckets``."""
    counts = Counter(choices).most_common()
    if len(counts) == 1:
        return choices[0]
    return ", ".join(f"{choice} for {count} of {len(choices)} buckets" for choice, count in counts)
