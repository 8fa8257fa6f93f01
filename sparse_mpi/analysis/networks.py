"""Networks by name, and networks fitted to what was measured: alpha and beta."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sparse_mpi.costs import Network
from sparse_mpi.network_fit import nearest

NETWORKS = {
    "1gbe": (Network.of(1, 30), "Gigabit Ethernet, TCP"),
    "10gbe": (Network.of(10, 15), "10 Gigabit Ethernet, TCP"),
    "100gb": (Network.of(100, 2), "100 Gbit/s with RDMA: InfiniBand EDR or RoCE"),
    # OSU micro-benchmarks on Piz Daint (Cray XC50, Aries, Cray MPT 7.7.2) as CSCS published them in the cookbook of the
    # container engine Sarus: 8 bytes in 1.09 us, 4 MiB in 431.85 us one way. Li and Hoefler measured Ok-Topk on Piz
    # Daint; their paper has neither figure.
    "piz-daint": (Network(1.09e-6, (431.85e-6 - 1.09e-6) / (1 << 22)), "Piz Daint, Cray Aries"),
}
CHOICES = f"{', '.join(NETWORKS)}, GBIT/MICROSECONDS such as 25/5, or a file of predict --fit"


class Exchange(NamedTuple):
    """What one algorithm exchanged in a step, measured."""

    algorithm: str
    ranks: int
    messages: float
    bytes: float
    seconds: float


def named(text: str) -> tuple[Network, str]:
    """A network and what it is, by one of `CHOICES`.

    Raises:
        ValueError: none of these.
    """
    if text in NETWORKS:
        return NETWORKS[text]
    try:
        gigabits, microseconds = map(float, text.split("/"))
    except ValueError:
        return _of_file(text)
    return Network.of(gigabits, microseconds), text


def _of_file(text: str) -> tuple[Network, str]:
    try:
        fitted = json.loads(Path(text).read_text())
        return Network(float(fitted["alpha"]), float(fitted["beta"])), f"fitted, {Path(text).name}"
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"network must be {CHOICES}, got {text!r}") from None


def exchanges(file: str | Path) -> list[Exchange]:
    """What ``bench allreduce --json`` recorded in ``file``, an entry an algorithm.

    Raises:
        ValueError: the file is none of that kind, or of one rank, which exchanges nothing.
    """
    try:
        record = json.loads(Path(file).read_text())
        ranks = record["ranks"]
        found = [
            Exchange(name, ranks, of["messages"], of["bytes"], of["exchange"])
            for name, of in record["algorithms"].items()
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} must be a record of bench allreduce --json: {error!r}") from None
    if ranks < 2:
        raise ValueError(f"{file} must be of 2 ranks or more, got {ranks}; run it under mpiexec")
    return found


def fitted(measured: Sequence[Exchange]) -> Network:
    """The network nearest to the measured seconds, in relative error, with neither latency nor bandwidth below zero."""
    return nearest([e.messages for e in measured], [e.bytes for e in measured], [e.seconds for e in measured])
