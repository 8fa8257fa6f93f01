"""The seconds of a dense allreduce by NCCL, fitted to published measurements: the fair baseline.

`FABRICS` has the constants of two kinds of fabric, for gradients in GPUs' memory. An MPI's own ``Allreduce`` must be
measured.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

MIB = 1 << 20


class Fabric(NamedTuple):
    """The capacity of a kind of fabric. Rates are bytes a second, times are seconds.

    NCCL takes the faster of its protocols for long and short messages. The rates of trees and short messages and the
    steps inside a node are its tuner's (src/graph/tuning.cc at 5067397; 3.4 us on NVLink).
    """

    share: float  # fraction of a link's rate that long messages reach
    step: float  # time of a step between nodes in the protocol for long messages, beside the network's latency
    short_step: float  # time of a step between nodes in the protocol for short messages
    ceiling: float  # the most that all links of a node carry together, whatever their rates
    errors: tuple[tuple[int, float], ...]  # pairs of least bytes and the factor within which fitted points lie
    short_share: float = 0.25  # fraction of a link's rate that short messages reach
    tree: float = 0.92  # the rate of a double binary tree, over that of a ring
    hierarchy: float = 0.63  # the rate between nodes of a hierarchical allreduce, over that of a ring
    inside: float = 235e9  # the rate of a rank's links inside a node
    inside_step: float = 3.4e-6  # time of a step inside a node

    def error(self, nbytes: float) -> float:
        """Return the most by which published allreduces of about ``nbytes`` differ from `dense_seconds`, a factor."""
        return next(factor for least, factor in reversed(self.errors) if nbytes >= least)


# Fitted to the published times in tests/predict/test_fabrics.py. Shares are of peaks as NVIDIA's engineers expect them
# (nccl-tests issues 29, 160, 290); the ceiling is of 4 x 8 V100 on 100 GbE, tuned (nccl issue 450)
FABRICS = {
    "rdma": Fabric(
        share=0.95, step=40e-6, short_step=10e-6, ceiling=inf, errors=((0, 2.0), (16 * MIB, 1.4), (512 * MIB, 1.25))
    ),
    "tcp": Fabric(share=0.89, step=85e-6, short_step=40e-6, ceiling=5e9, errors=((0, 1.3),)),
}


def dense_seconds(
    nbytes: float, ranks: int, rate: float, latency: float, fabric: Fabric, ranks_per_node: int = 1
) -> float:
    """Return the seconds of a dense allreduce of ``nbytes``: the least of ring, tree and hierarchy.

    With P ranks on N nodes of g ranks, r = min(share * g * rate, ceiling) bytes a second for a node, hops of
    latency + step seconds between nodes, s = inside_step, and L = ceil(log2 N):

    - ring: 2 (N - 1) hops, 2 (P - N) s, and 2 (P - 1) / P nbytes at the lesser of r and, if g > 1, inside;
    - double binary tree: 2 L hops, 2 (g - 1) s, and min(N - 1, 2) nbytes at tree * r;
    - hierarchy, if g > 1: 2 L hops, 2 (g - 1) s, and 2 (N - 1) / N nbytes at hierarchy * r;

    each in either protocol. Tree and hierarchy add up inside the nodes at the same time, 2 (g - 1) / g nbytes at
    ``inside``: the longer of the two counts. No time is below 2 (N - 1) / N nbytes / (g * rate).

    Args:
        nbytes: size of the gradient, on each rank.
        ranks: P, which fill their nodes; at one rank the time is 0.
        rate: bytes a second of a rank's own link in each direction; if g ranks share fewer links, a g-th of their sum.
        latency: seconds of a message between nodes.
        fabric: one of `FABRICS`. Its ``inside`` is NVLink's: replace it for GPUs that are joined by PCIe.
        ranks_per_node: g.
    """
    inner = min(ranks, ranks_per_node)
    nodes = ranks // inner
    starts, within = 2 * (inner - 1) * fabric.inside_step, 2 * (inner - 1) / inner * nbytes / fabric.inside
    if nodes == 1:
        return starts + within
    around, levels = 2 * (ranks - 1) / ranks * nbytes, (nodes - 1).bit_length()
    ways = []
    for share, step in ((fabric.share, fabric.step), (fabric.short_share, fabric.short_step)):
        carried, hop = min(share * inner * rate, fabric.ceiling), latency + step
        slowest = carried if inner == 1 else min(carried, fabric.inside)
        ways.append(2 * (nodes - 1) * hop + 2 * (ranks - nodes) * fabric.inside_step + around / slowest)
        between = [min(nodes - 1, 2) * nbytes / (fabric.tree * carried)]
        if inner > 1:
            between.append(2 * (nodes - 1) / nodes * nbytes / (fabric.hierarchy * carried))
        ways.append(2 * levels * hop + starts + max(within, min(between)))
    return min(ways)
