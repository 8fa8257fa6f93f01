"""A cluster as the simulation of a step sees it: links, cores, and what messages cost those who send and receive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf


@dataclass(frozen=True)
class Cluster:
    """Ranks on nodes, each rank with a link of its own. Times are seconds.

    Args:
        alpha: a message takes from link to link, whatever its length.
        beta: a byte takes; the inverse of a link's bandwidth in each direction.
        burst: bytes that an idle link lets pass at once before it holds to its rate, as links emulated by a token
            bucket do; 0 on real ones.
        cores: of a node, which its ranks share.
        node: ranks of a node; consecutive ones share it.
        others: processes of a node beside its ranks that take cores all the time, as those of other jobs.
        message: of processor time that a message costs at either end.
        byte: of processor time that a byte of a message costs at either end.
        crowding: share by which computing takes longer where ever more ranks compute than there are cores, because
            they take each other's caches; half of it where twice as many do.
        slice: seconds that a rank computes before another has its turn, where cores are shared.
        polling: share of a core that a rank takes while it waits.
        speed: of computing, over the seconds where the program was recorded.

    Raises:
        ValueError: a number is negative or not a number, or there is no core, no rank a node or no speed.
    """

    alpha: float
    beta: float
    burst: float = 0.0
    cores: float = inf
    node: int = 1
    others: float = 0.0
    message: float = 0.0
    byte: float = 0.0
    polling: float = 0.0
    crowding: float = 0.0
    slice: float = 0.0
    speed: float = 1.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "burst", "others", "message", "byte", "polling", "crowding", "slice"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}; see Cluster")
        for name in ("cores", "node", "speed"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, got {getattr(self, name)}; see Cluster")

    def on(self, gbit: float, burst: float = 0.0) -> Cluster:
        """Return the same cluster with links of so many Gbit/s of payload that let so many bytes pass at once."""
        if not 0 < gbit < inf:
            raise ValueError(f"gbit must be more than 0, got {gbit}; a link of 100 Mbit/s has 0.1")
        return replace(self, beta=8e-9 / gbit, burst=burst)


# Fitted to Open MPI over TCP between emulated hosts; what `predict --advise` takes where there are no records
TYPICAL = Cluster(alpha=2e-5, beta=8e-9, message=6e-5, byte=4e-10, polling=0.5)
