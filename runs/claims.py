"""Claims of the pages that fit in an hour together, by the jobs that prove them: ``claims.json``.

A claim's numbers are read at a path of its job's record, for example ``volumes > algorithm=topka, oktopk > words``.
Each step is a member, ``*`` for all members, a place in a list, or ``member=value`` for the items that have this value.
Members and values with commas are taken one after another, lists item by item.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import cycle
from operator import sub, truediv
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi_bench.emulation import hosts

Band = tuple[float, float]  # the least and the most that a number may be
Record = Any  # of a job: its JSON, the list of the ones in a folder, or how many tests have failed and passed
TAKEN: dict[str, Callable[[list[float]], list[float]]] = {
    "all": list,
    "inverse": lambda values: [1 / value for value in values],
    "median": lambda values: [statistics.median_high(values)],
    "most": lambda values: [max(values)],
    "mean": lambda values: [statistics.fmean(values)],
    "ends": lambda values: [min(values), max(values)],
}
PROGRAMS = ("mpiexec", "g++")


class Job(NamedTuple):
    command: str  # of Python; OUT in it is the file or the folder of its record
    minutes: float  # on two cores that nothing else uses
    needs: tuple[str, ...] = ()  # names for `missing`


class Reading(NamedTuple):
    """Numbers of a record."""

    read: str  # path to them
    minus: str = ""  # path to one number for each, or one for all, to subtract
    over: str = ""  # path to one number for each, or one for all, to divide by
    times: float = 1
    take: str = "all"  # of TAKEN

    def __call__(self, record: Record) -> list[float]:
        values = found(record, self.read)
        for path, operation in ((self.minus, sub), (self.over, truediv)):
            if path:
                others = found(record, path)
                values = list(map(operation, values, cycle(others) if len(others) == 1 else others))
        return TAKEN[self.take]([self.times * value for value in values])


class Claim(NamedTuple):
    """A number of a page: its place, and the band that a job must reach."""

    what: str
    page: str
    says: str  # as it stands on the page
    job: str
    readings: tuple[Reading, ...]
    bands: tuple[Band, ...]
    why: str  # the bands are as wide as they are
    origin: str  # the record that the page has it from

    def read(self, record: Record) -> list[float]:
        return [value for reading in self.readings for value in reading(record)]


def missing(need: str) -> str:
    """Return why there is no ``need``, "" if there is: root, one of PROGRAMS, or a module of Python."""
    if need == "root":
        return "; ".join(hosts.missing())
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    there = shutil.which(need, path=folders) if need in PROGRAMS else find_spec(need)
    return "" if there else f"no {need}"


def found(record: Record, path: str) -> list[Any]:
    """Return the numbers, or other values, at a path. Raises KeyError or IndexError: the record lacks it."""
    nodes = [record]
    for step in path.split(" > "):
        name, picks, values = step.partition("=")
        if picks:
            nodes = [node for value in values.split(", ") for node in items(nodes) if str(node[name]) == value]
        elif step == "*":
            nodes = [value for node in items(nodes) for value in node.values()]
        elif step.lstrip("-").isdigit():
            nodes = [node[int(step)] for node in nodes]
        else:
            nodes = [member(node, name) for name in step.split(", ") for node in items(nodes)]
    return items(nodes)


def items(nodes: list[Any]) -> list[Any]:
    """Return nodes, with the items of a list in its place."""
    return [item for node in nodes for item in (node if isinstance(node, list) else [node])]


def member(node: dict[str, Any], name: str) -> Any:
    """Return a member, or a number that `bench volume` does not write: the words that each rank must send."""
    return node["k"] * (node["ranks"] - 1) / node["ranks"] if name == "k(P-1)/P" else node[name]


def claim(job: str, entry: dict[str, Any]) -> Claim:
    """Return the claim of an entry of the file.

    Bands are shares ``within`` of the numbers ``near`` to both sides of them, or ``between``, where null is no end.
    """
    reading = {name: entry.pop(name) for name in Reading._fields if name in entry}
    several = reading["read"] if isinstance(reading["read"], list) else [reading]
    share = entry.pop("within", 0)
    bands = [(value - share * abs(value), value + share * abs(value)) for value in entry.pop("near", [])]
    bands += [(low, math.inf if high is None else high) for low, high in entry.pop("between", [])]
    return Claim(job=job, readings=tuple(Reading(**each) for each in several), bands=tuple(bands), **entry)


FILE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())
JOBS = {name: Job(job["command"], job["minutes"], tuple(job.get("needs", ()))) for name, job in FILE.items()}
CLAIMS = {name: claim(job, entry) for job, of in FILE.items() for name, entry in of["claims"].items()}
