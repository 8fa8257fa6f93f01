"""Computation and traffic of a step of each algorithm, in closed form: a *way* is an algorithm with a message format.

``ways.json`` has the numbers: bytes counted among the ranks of a `World`, at two densities on 2 to 16 ranks, and a
rank's computation between calls timed, alone on a core. `python -m runs.ways` makes it anew. Bytes are interpolated
between these numbers of ranks, and grow by the kind of call beyond.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.cli.extensions import hook
from sparse_mpi.reduction.arguments import algorithm_spelled, spelled, takes
from sparse_mpi.sparse import Layout

BASELINE = "dense"
# Seconds for each element of a gradient that is made factors of rank 2 to 8, on a core of an Intel Xeon: 5.5 to 7.2 ns
# with VGG-16, ResNet-50 and GPT-2
FACTORS = 6.5e-9
RANKS = (2, 4, 8, 16)  # numbers of ranks on which bytes were counted
DENSITIES = (0.01, 0.001)  # densities at which bytes were counted
SHARES: dict[str, Callable[[int], float]] = {  # share of a rank's data for all, sent in one call on P ranks
    "whole": lambda ranks: 1.0,  # all of it to each rank
    "rest": lambda ranks: (ranks - 1) / ranks,  # each rank's part to it
    "part": lambda ranks: 1.0 / ranks,  # the own part to each rank
    "levels": lambda ranks: float((ranks - 1).bit_length()),  # one part in each of log2 P rounds
}


class Sent(NamedTuple):
    call: str  # call of `Comm`; "rounds" for messages between pairs of ranks, one after the other
    fixed: float  # bytes that do not grow with the gradient: control
    element: float  # bytes for each element of the gradient
    entry: tuple[tuple[float, ...], ...]  # bytes for each entry that a rank selects, by density and by ranks
    share: str  # share of these bytes: one of `SHARES`
    announced: bool = False  # True: counts are exchanged first
    rounds: float = 0.0  # bytes for each of log2 P rounds

    def bytes(self, n: int, density: float, ranks: int) -> float:
        """Return the bytes that the busiest rank sends or receives, whichever are more."""
        if ranks == 1:
            return 0.0
        share = SHARES[self.share](ranks)
        at = [float(np.interp(math.log(ranks), np.log(RANKS), of)) for of in self.entry]
        # Numbers of entries are written as differences, which are longer where fewer entries are selected.
        thin = math.log(DENSITIES[0] / density) / math.log(DENSITIES[0] / DENSITIES[1])
        entry = max(at[0] + (at[1] - at[0]) * min(max(thin, -1.0), 2.0), 0.0) if at else 0.0
        return self.fixed + share * n * (self.element + density * entry)


class Way(NamedTuple):
    sent: tuple[Sent, ...]
    element: float  # seconds on a core for each element of the gradient
    entry: float  # seconds for each entry that a rank selects
    received: float  # seconds for each byte that comes from other ranks
    fixed: float  # seconds in each step
    longer: float = 1.0  # median factor of measured steps on emulated hosts over this model

    def computing(self, n: int, density: float, ranks: int) -> float:
        """Return a rank's seconds of computing on the core on which ways were timed."""
        own = n * (self.element + density * self.entry) + self.fixed
        return own + self.received * arriving(self.sent, n, density, ranks)


def arriving(sent: Iterable[Sent], n: int, density: float, ranks: int) -> float:
    found = 0.0
    for of in sent:
        if of.call != "allreduce" and not of.fixed:
            found += of.bytes(n, density, ranks) * (ranks - 1 if of.call.startswith("allgather") else 1)
    return found


@cache
def table() -> dict[str, Way]:
    """Return all measured ways, as spelled on a command line: ``oktopk:wire=packed``."""
    record = json.loads(files("sparse_mpi.predict").joinpath("ways.json").read_text())
    return {name: _read(**of) for name, of in record["ways"].items()}


@cache
def way_of(name: str, shapes: Layout | None = None) -> Way:
    """Return the way of an algorithm as spelled on a command line: from the table, or now measured by the workbench.

    A low-rank algorithm's way follows from the tensors' ``shapes``.

    Raises:
        ValueError: an unknown algorithm, or a low-rank one without shapes.
        Refused: it is not in the table, and the workbench is not installed.
    """
    if low_rank(name):
        return _of_factors(name, shapes)
    known = table().get(name)
    return hook("way", f"predicting {name}")(name) if known is None else known


def predictable(name: str) -> bool:
    """Tell if the gradient's length determines an algorithm's traffic, all over the network."""
    name = spelled(name)[0]
    return not (takes(name, "rank") or takes(name, "ranks_per_node"))


def low_rank(name: str) -> bool:
    return takes(spelled(name)[0], "rank")


def _of_factors(name: str, shapes: Layout | None) -> Way:
    if shapes is None:
        raise ValueError(f"algorithms must not have {name} without shapes; name a model, or give a torch module")
    bound = algorithm_spelled(name).bound(shapes, 1, 2)  # a ring of two ranks sends as much as it adds up
    calls = int(bound.messages) // 2
    return Way((Sent("allreduce", 4 * bound.values / calls, 0.0, (), "whole"),) * calls, FACTORS, 0.0, 0.0, 0.0)


def _read(sent: list[list[Any]], computing: list[float], longer: float = 1.0) -> Way:
    calls = (Sent(*of)._replace(entry=tuple(map(tuple, of[3]))) for of in sent)
    element, entry, received, fixed = computing
    return Way(tuple(calls), element, entry, received, fixed, longer)
