"""Measured exchanges, and whether those on few ranks predict those on more: alpha and beta are fitted to the former."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.costs.fit import nearest
from sparse_mpi.costs.model import Network
from sparse_mpi.reducer.arguments import takes

BENCHES = "bench allreduce, bench contest or bench compare"


class Exchange(NamedTuple):
    """What one contestant exchanged in a step, measured."""

    contestant: str
    ranks: int
    messages: float
    bytes: float
    seconds: float
    rate: str = ""  # of the links, where they are emulated


class Prediction(NamedTuple):
    """An exchange, and what was predicted of it."""

    measured: Exchange
    seconds: float

    @property
    def error(self) -> float:
        """By what share of the measured seconds the predicted ones are off; positive: too long."""
        return self.seconds / self.measured.seconds - 1


class Check(NamedTuple):
    """What fitting to some exchanges at one rate predicts of others."""

    rate: str
    ranks: list[int]  # that it was fitted to
    network: Network
    predictions: list[Prediction]

    @property
    def median_error(self) -> float:
        """Without sign."""
        return statistics.median(abs(prediction.error) for prediction in self.predictions)


def read(file: str | Path) -> list[Exchange]:
    """What one of `BENCHES` recorded in ``file``.

    Raises:
        ValueError: the file is none of that kind, or of one rank, which exchanges nothing.
    """
    try:
        record = json.loads(Path(file).read_text())
        found = [exchange for job in record.get("jobs", [record]) for exchange in _of_job(job)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} must be a record that {BENCHES} wrote with --json: {error!r}") from None
    if alone := [exchange for exchange in found if exchange.ranks < 2]:
        raise ValueError(f"{file} must be of 2 ranks or more, got {alone[0].ranks}; run it under mpiexec")
    if wrong := [exchange for exchange in found if not exchange.seconds > 0]:
        raise ValueError(f"{file} must have exchanges of more than 0 seconds, got {wrong[0]}")
    return found


def _of_job(job: dict[str, Any]) -> list[Exchange]:
    contestants = job["algorithms"] if "algorithms" in job else job["results"]
    return [
        Exchange(
            name,
            int(job["ranks"]),
            float(of["messages"]),
            float(of["bytes"]),
            float(of["exchange"]),
            str(job.get("rate", "")),
        )
        for name, of in contestants.items()
        if not takes(name.split()[0], "ranks_per_node")  # whose messages do not all go over the network
    ]


def fitted(measured: Sequence[Exchange]) -> Network:
    """The network nearest to the measured seconds, see `nearest`."""
    return nearest([e.messages for e in measured], [e.bytes for e in measured], [e.seconds for e in measured])


def held_out(measured: Iterable[Exchange], ranks: Sequence[int]) -> tuple[list[Exchange], list[Exchange]]:
    """The exchanges on other numbers of ranks, and those on these.

    Raises:
        ValueError: there is none on one of these, or none on others.
    """
    measured = list(measured)
    had = sorted({exchange.ranks for exchange in measured})
    if lacking := sorted(set(ranks) - set(had)):
        raise ValueError(f"ranks must be some of those measured, {', '.join(map(str, had))}, got {lacking[0]}")
    if set(had) <= set(ranks):
        raise ValueError(f"ranks must leave some to fit to, got all that were measured, {', '.join(map(str, had))}")
    return [e for e in measured if e.ranks not in ranks], [e for e in measured if e.ranks in ranks]


def check(known: Sequence[Exchange], others: Sequence[Exchange]) -> list[Check]:
    """What ``known`` exchanges predict of ``others``, a rate at a time.

    Raises:
        ValueError: fewer than two exchanges are known at a rate of ``others``, for two numbers.
    """
    checks = []
    for rate in dict.fromkeys(exchange.rate for exchange in others):
        base = [exchange for exchange in known if exchange.rate == rate]
        if len(base) < 2:
            raise ValueError(f"exchanges to fit to must be 2 or more at rate {rate or 'unknown'}, got {len(base)}")
        network = fitted(base)
        predictions = [
            Prediction(exchange, network.alpha * exchange.messages + network.beta * exchange.bytes)
            for exchange in others
            if exchange.rate == rate
        ]
        checks.append(Check(rate, sorted({exchange.ranks for exchange in base}), network, predictions))
    return checks
