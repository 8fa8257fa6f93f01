"""A cluster, and the time of a step there: ranks' computation and links' transfers, in closed form.

A step of a `Way` is a few calls, which all ranks make at the same time. A rank pays processor time for every message
and byte at either end, shares its node's cores, and waits until its link has carried its bytes and the last message has
arrived. Calls follow MPI's algorithms: an alltoallv sends all messages at once, long allgathers and allreduces go round
a ring, short ones in log2 P rounds, and a root sends to each rank itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import ceil, inf
from typing import NamedTuple

from sparse_mpi.predict.fabrics import FABRICS, Fabric, dense_seconds
from sparse_mpi.predict.ways import Sent, Way

RING = 64 << 10  # bytes of a result from which it goes round a ring
DENSE = {"dense": 4, "dense-bf16": 2}  # bytes an element
POSTED = ("alltoallv", "rounds")  # calls whose messages Python posts, one by one; others are MPI's own
INSIDE = 0.2  # cost of a message that MPI posts within a collective call, relative to others
LINEAR = 7  # messages of a root, beyond which a broadcast goes down a tree
PASSES = 16.0  # bytes an element: a gradient is read, a residual read and written, a sum filled with zeros


class _Gpu(NamedTuple):
    """A GPU, as far as a sparse sum needs it; seconds and bytes a second."""

    name: str
    bandwidth: float  # rate of its memory, as kernels that only copy reach it
    bus: float  # rate between pinned memory of the host and the GPU
    launch: float  # host's time to start a kernel, with the Python around it
    wait: float  # host's time to wait for the GPU once


# Launches and waits are fitted to a rank of two on one H200 and a virtual machine (docs/results/gpu-h200.json), where
# selecting and merging took 1.8 ms with topka, 2.4 with oktopk and 5.3 with elect.
# Bandwidths are 0.8 of the data sheets', and buses 0.8 of PCIe's: not measured, but for the bus of the H200.
GPUS = {
    "h200": _Gpu("H200", 3.8e12, 2.0e10, 9e-5, 1.5e-4),
    "h100": _Gpu("H100", 2.7e12, 2.0e10, 9e-5, 1.5e-4),
    "a100": _Gpu("A100", 1.2e12, 2.0e10, 9e-5, 1.5e-4),
    "v100": _Gpu("V100", 7.2e11, 1.0e10, 9e-5, 1.5e-4),
    "p100": _Gpu("P100", 5.8e11, 1.0e10, 9e-5, 1.5e-4),
}


@dataclass(frozen=True)
class Cluster:
    """Ranks on nodes, each with its own link. Times are seconds."""

    alpha: float  # seconds that a message takes from link to link, whatever its length
    beta: float  # seconds that a byte takes; the inverse of a link's bandwidth in each direction
    burst: float = 0.0  # bytes that an idle link lets pass at once, as emulated ones do
    cores: float = inf  # cores of a node, which its ranks share
    node: int = 1  # consecutive ranks of a node
    message: float = 0.0  # processor time that a message costs at either end
    byte: float = 0.0  # processor time that a byte of a message costs at either end
    # Share by which computing takes longer where ever more ranks compute than there are cores, because they take each
    # other's caches and memory; half of it at twice the cores
    crowding: float = 0.0
    memory: float = 1.0  # times as long as where ways were timed do passes over the whole gradient take
    speed: float = 1.0  # seconds of computing, over the seconds on the core on which ways were timed
    gpu: _Gpu | None = None  # GPU that holds gradients and selects; None: the cores do
    fabric: Fabric | None = None  # time of a dense sum of GPUs; None: `Allreduce` as modelled here

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "burst", "message", "byte", "crowding"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}; see Cluster")
        for name in ("cores", "node", "memory", "speed"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, got {getattr(self, name)}; see Cluster")

    def on(self, gbit: float, burst: float = 0.0) -> Cluster:
        """Return this cluster with links of ``gbit`` Gbit/s of payload and bursts of ``burst`` bytes."""
        if not 0 < gbit < inf:
            raise ValueError(f"gbit must be more than 0, got {gbit}; a link of 100 Mbit/s has 0.1")
        return replace(self, beta=8e-9 / gbit, burst=burst)


class DeviceCost(NamedTuple):
    """An algorithm's steady step on a device, as counted on a pretended one."""

    launches: int  # launches of kernels
    waits: int  # waits of the host for the device
    copies: int  # copies between the memories of the two


@cache
def device_costs() -> dict[str, DeviceCost]:
    counted = json.loads(files("sparse_mpi.predict").joinpath("device_costs.json").read_text())
    return {name: DeviceCost(**cost) for name, cost in counted.items()}


class StepTime(NamedTuple):
    computing: float  # waiting for a core included
    exchanging: float

    @property
    def seconds(self) -> float:
        return self.computing + self.exchanging

    def longer(self, factor: float) -> StepTime:
        return StepTime(factor * self.computing, factor * self.exchanging)


def step_time(name: str, way: Way, n: int, density: float, ranks: int, on: Cluster) -> StepTime:
    if name in DENSE and on.fabric is not None:
        return StepTime(
            0.0, dense_seconds(DENSE[name] * n, ranks, 1 / on.beta, on.alpha, on.fabric, min(on.node, ranks))
        )
    crowd = max(1.0, ceil(min(on.node, ranks) / on.cores))  # turns on the cores; the last may have few ranks
    sent = sum(_seconds(of, of.bytes(n, density, ranks), ranks, on, crowd) for of in way.sent) if ranks > 1 else 0.0
    if on.gpu is None:
        slower = crowd * (1 + on.crowding * (1 - 1 / crowd)) * on.speed
        plain = way.computing(n, density, ranks) + (on.memory - 1) * n * way.element
        return StepTime(slower * plain, sent).longer(way.longer)
    cost = device_costs().get(name.split(":")[0])
    if cost is None:
        raise ValueError(f"{name} must be counted on a device; in a checkout, python -m tests.record {name} does it")
    crossing = 2 * sum(of.bytes(n, density, ranks) for of in way.sent) / on.gpu.bus
    started = (cost.launches + cost.copies) * on.gpu.launch + cost.waits * on.gpu.wait + way.fixed
    return StepTime(started + PASSES * n / on.gpu.bandwidth + crossing, sent)


def _seconds(of: Sent, length: float, ranks: int, on: Cluster, crowd: float) -> float:
    levels, message = (ranks - 1).bit_length(), 2 * on.message * crowd
    if of.call not in POSTED:
        message *= INSIDE
    counts = levels * (on.alpha + message) if of.announced else 0.0

    def carried(size: float) -> float:
        return on.beta * max(size - on.burst, 0.0) + 2 * on.byte * crowd * size

    match of.call:
        case "alltoallv" | "alltoall":
            return counts + on.alpha + (ranks - 1) * message + carried(length)
        case "allreduce" if length >= RING:
            return 2 * (ranks - 1) * (on.alpha + message) + carried(2 * (ranks - 1) / ranks * length)
        case "allreduce":
            return 2 * levels * (on.alpha + message) + carried(2 * (ranks - 1) / ranks * length)
        case "bcast":
            sends = min(ranks - 1, max(levels, LINEAR))
            return counts + on.alpha + sends * message + carried(sends * length)
        case "rounds":
            return of.rounds * levels * (on.alpha + message) + carried(length)
        case _:
            rounds = ranks - 1 if ranks * length >= RING else levels
            return counts + rounds * (on.alpha + message) + carried((ranks - 1) * length)


# Fitted to Open MPI over TCP between emulated hosts, of two cores together: 810 steps on 2, 4 and 8 of them
TYPICAL = Cluster(
    alpha=1.56e-05,
    beta=8e-9,
    message=4.57e-05,
    byte=9.99e-11,
    crowding=0.416,
    memory=1.34,
    speed=1.13,
)
# Clusters of GPUs: dense sums as measured of NCCL. The cost of a sparse sum's messages, over an MPI
# that stages them in host memory, is assumed.
OF_GPUS = {
    "tcp": Cluster(alpha=2e-5, beta=8e-9, message=5e-6, byte=1e-10, fabric=FABRICS["tcp"]),
    "rdma": Cluster(alpha=2e-6, beta=8e-9, message=1e-6, fabric=FABRICS["rdma"]),
}
