"""The settings of chaos on a command line, and the faults that a seed draws from them."""

from __future__ import annotations

import random
from argparse import ArgumentTypeError
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from sparse_mpi.checks import meant
from sparse_mpi.cli.values import Value, integer, new_file, positive, where
from sparse_mpi_bench.chaos.faults import KINDS, Fault


@dataclass(frozen=True)
class ChaosSettings:
    mtti: float = 60.0  # mean seconds from one fault to the next, of an exponential distribution
    seed: int = 0
    kinds: tuple[str, ...] = ("kill",)  # names in `KINDS`, equally likely
    lasts: float = 2.0  # mean seconds of a freeze, and that a link is down; uniform from 0 to twice that
    faults: int | None = None  # the most faults
    after: float | Path = 0.0  # seconds after all ranks have loaded MPI, or a file that the job writes
    record: Path = Path("chaos.json")  # the faults, and the fate of the job


def _after(text: str) -> float | Path:
    return float(text) if text.replace(".", "", 1).isdigit() else Path(text)


OPTIONS: dict[str, Value[Any]] = {
    "mtti": positive,
    "seed": integer(0),
    "kinds": where(
        lambda text: tuple(text.split("+")), lambda kinds: {*kinds} <= {*KINDS}, f"some of {', '.join(KINDS)}", "kill"
    ),
    "lasts": positive,
    "faults": integer(1),
    "after": where(_after, lambda value: value != Path(), "seconds >= 0, or a file that the job writes", "first.npy"),
    "record": new_file("chaos.json"),
}


def parse(text: str) -> ChaosSettings:
    """Return the settings of a text like ``mtti=60,seed=1,kinds=kill,freeze``. Raises ValueError: it is wrong."""
    given: dict[str, str] = {}
    name = ""
    for word in text.split(","):
        before, equals, value = word.partition("=")
        if not equals and name == "kinds":  # the list goes on
            given[name] += f"+{word}"
            continue
        name = before
        if not equals or name not in OPTIONS or name in given:
            known = ", ".join(f"{each}=" for each in OPTIONS)
            why = "; it is there twice" if name in given else meant(name, OPTIONS) if equals else ""
            raise ValueError(f"chaos must be some of {known} with commas, got {word!r}{why}")
        given[name] = value
    return ChaosSettings(**{each: _read(each, value) for each, value in given.items()})


def _read(name: str, text: str) -> Any:
    try:
        return OPTIONS[name](text)
    except ArgumentTypeError as error:
        raise ValueError(f"chaos must have another {name}: it {error}") from None


def draw(settings: ChaosSettings, ranks: int) -> Iterator[Fault]:
    """Yield the faults of a job. All of a fault is drawn, so that other kinds leave instants and ranks as they are."""
    random_, second = random.Random(settings.seed), 0.0
    for _ in count() if settings.faults is None else range(settings.faults):
        second += random_.expovariate(1 / settings.mtti)
        rank, lasts = random_.randrange(ranks), random_.uniform(0, 2 * settings.lasts)
        kind = random_.choice(settings.kinds)
        yield Fault(round(second, 3), rank, kind, 0.0 if kind == "kill" else round(lasts, 3))
