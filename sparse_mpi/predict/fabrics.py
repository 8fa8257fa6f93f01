"""The seconds of a dense allreduce as NCCL makes it, fitted to published measurements: the fair baseline.

`FABRICS` has the constants of two kinds of fabric. They are NCCL's figures, for gradients in GPUs' memory; large
messages of an MPI library between hosts were found nowhere, so an MPI's own ``Allreduce`` has to be measured.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

MIB = 1 << 20
NCCL = (
    "Tree, short messages' share and steps inside a node: constants of NCCL's tuner (src/graph/tuning.cc at 5067397: "
    "0.92, 1/3.8, 3.4 us on NVLink). Hierarchy: NVLSTree 310.07, ring 364.87 GB/s on 4 nodes of 8 H200. Inside: 8 "
    "A100, 234.89 GB/s (both github.com/stas00/ml-engineering, network/README.md at 744d01e)."
)


class Fabric(NamedTuple):
    """What a kind of fabric lets through. Rates are bytes a second, times are seconds.

    NCCL has a protocol for long messages and another one for short ones, and takes the faster.
    """

    share: float  # of a link's rate, which long messages reach
    step: float  # of a step between nodes in the protocol for long messages, beside the network's latency
    short_share: float  # of a link's rate, in the protocol for short messages
    short_step: float  # of a step between nodes in that protocol
    ceiling: float  # the most that all links of a node carry together, whatever their rates
    tree: float  # the rate of a double binary tree, over that of a ring
    hierarchy: float  # the rate between nodes of a hierarchical allreduce, over that of a ring
    inside: float  # the rate of a rank's links inside a node
    inside_step: float  # of a step inside a node
    errors: tuple[tuple[int, float], ...]  # from so many bytes on, the points that were fitted lie within this factor
    source: str

    def error(self, nbytes: float) -> float:
        """Return the factor by which published allreduces of about ``nbytes`` differ from `dense_seconds` at most."""
        return next(factor for least, factor in reversed(self.errors) if nbytes >= least)


FABRICS = {
    "rdma": Fabric(
        share=0.95,
        step=40e-6,
        short_share=0.25,
        short_step=10e-6,
        ceiling=inf,
        tree=0.92,
        hierarchy=0.63,
        inside=235e9,
        inside_step=3.4e-6,
        errors=((0, 2.0), (16 * MIB, 1.4), (512 * MIB, 1.25)),
        source="Peaks, as NVIDIA's engineers expect them: 12.2 of 12.5 GB/s on EDR (nccl-tests issue 29), 24 of 25 on "
        "HDR (160), 46 to 48 of 50 on NDR (290). Curves: EFA 100 Gb/s, 2 x 1 GPU; 400 Gb/s, 2 x 1 H100 (nccl-tests "
        "issue 232); EFA 400 Gb/s, 4 x 8 B200, and H200 (stas00/ml-engineering); Slingshot, 4 x 8 MI250X dies (rccl "
        f"issue 1490); RoCE 100 Gb/s, 2 x 1 RTX 3060 (N. Almasri, Télécom Paris, 2026). {NCCL}",
    ),
    "tcp": Fabric(
        share=0.89,
        step=85e-6,
        short_share=0.25,
        short_step=40e-6,
        ceiling=5e9,
        tree=0.92,
        hierarchy=0.63,
        inside=235e9,
        inside_step=3.4e-6,
        errors=((0, 1.3),),
        source="10 GbE, 8 x 1 GPU: 1.4 ms + 1.7 ns a byte (zqming-cs/ADTopk, examples/hv_distributed_optimizer_op.py). "
        "32 GbE, 2 x 1 and 4 x 1 GPU: 31.0 and 30.8 Gbit/s, 4 x 8: 22.4 (nccl issue 209). 100 GbE, 4 x 8 V100, tuned: "
        "4 to 6 GB/s, the ceiling (nccl issue 450). Not tuned, 2 x 1 RTX 3060 on 100 GbE: 112 us at 8 bytes, but no "
        f"more than 1.29 GB/s, a quarter of the ceiling (N. Almasri, Télécom Paris, 2026). {NCCL}",
    ),
}


def dense_seconds(
    nbytes: float, ranks: int, rate: float, latency: float, fabric: Fabric, ranks_per_node: int = 1
) -> float:
    """Return the seconds that a dense allreduce of ``nbytes`` takes: the least of ring, tree and hierarchy.

    With P ranks on N nodes of g ranks, r = min(share * g * rate, ceiling) bytes a second for a node, hops of
    latency + step seconds between nodes, s = inside_step, and L = ceil(log2 N):

    - ring: 2 (N - 1) hops, 2 (P - N) s, and 2 (P - 1) / P nbytes at the lesser of r and, if g > 1, inside;
    - double binary tree: 2 L hops, 2 (g - 1) s, and min(N - 1, 2) nbytes at tree * r;
    - hierarchy, if g > 1: 2 L hops, 2 (g - 1) s, and 2 (N - 1) / N nbytes at hierarchy * r;

    each in either protocol. Tree and hierarchy add up inside the nodes at the same time, 2 (g - 1) / g nbytes at
    ``inside``: the longer of the two counts. No time is below 2 (N - 1) / N nbytes / (g * rate). `Fabric.error` says
    how far published times are off.

    Args:
        nbytes: of the gradient, on each rank.
        ranks: P; at one rank the time is 0.
        rate: bytes a second that a rank's own link carries in each direction. Where the g ranks of a node share fewer
            links, a g-th of what they carry together.
        latency: seconds of a message between nodes.
        fabric: one of `FABRICS`. Its ``inside`` is NVLink's: replace it for GPUs that are joined by PCIe.
        ranks_per_node: g.

    Raises:
        ValueError: an argument is out of range, or the ranks do not fill their nodes.
    """
    if nbytes < 0 or latency < 0 or not 0 < rate < inf:
        raise ValueError(f"nbytes and latency must be 0 or more and rate more, got {nbytes}, {latency} and {rate}")
    inner = min(ranks, ranks_per_node)
    if inner < 1 or ranks % inner:
        raise ValueError(f"ranks must be 1 or more and fill nodes of ranks_per_node, got {ranks} and {ranks_per_node}")
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
