"""The algorithms and message formats that are compared with a dense sum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.predict.ways import BASELINE, predictable
from sparse_mpi.reduction.arguments import make_algorithm, spelled, takes

OWN = "own"  # the wire format that an algorithm has if none is asked for
WIRES = (OWN, "packed", "packed+bf16")  # formats in the table of predict
TEAM = " in a team"  # suffix of the names of candidates that survive the loss of ranks


@dataclass(frozen=True)
class Candidate:
    """An algorithm as a command line spells it, and the format of its messages."""

    algorithm: str
    wire: str = OWN

    @property
    def name(self) -> str:
        return self.algorithm if self.wire == OWN else f"{self.algorithm} {self.wire}"

    def make(self) -> Algorithm:
        name, options = spelled(self.algorithm)
        return make_algorithm(name, options if self.wire == OWN else options | {"wire": self.wire})


def accepts(algorithm: str, wire: str) -> bool:
    name, options = spelled(algorithm)
    return wire == OWN or ("wire" not in options and takes(name, "wire", wire))


def candidates(algorithms: Iterable[str], wires: Iterable[str]) -> list[Candidate]:
    """Return every algorithm in every format that it accepts, led by dense. Raises ValueError: a format suits none."""
    names = [BASELINE, *(name for name in algorithms if name != BASELINE)]
    wires = list(wires)
    if idle := [wire for wire in wires if not any(accepts(name, wire) for name in names)]:
        raise ValueError(f"wires must be accepted by one of {', '.join(names)}, got {idle[0]}; {OWN} suits them all")
    found: dict[Algorithm, Candidate] = {Candidate(BASELINE).make(): Candidate(BASELINE)}
    for name in names:
        for wire in wires:
            if accepts(name, wire):
                found.setdefault(Candidate(name, wire).make(), Candidate(name, wire))
    return list(found.values())


def everything() -> list[str]:
    """Return every way to reduce that needs neither shapes nor nodes, as a command line spells it."""
    names = [name for name in ALGORITHMS if predictable(name)]
    wires = [wire for wire in WIRES if any(accepts(name, wire) for name in names)]
    return [c.algorithm if c.wire == OWN else f"{c.algorithm}:wire={c.wire}" for c in candidates(names, wires)]
