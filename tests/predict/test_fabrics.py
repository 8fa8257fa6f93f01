"""Dense allreduces on fabrics: no faster than links allow, monotone, and as long as published ones took."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest

from sparse_mpi.predict.fabrics import FABRICS, MIB, dense_seconds

SIZES = (1, 10**3, 10**5, 10**6, 3e7, 10**8, 3e9)  # bytes
RATES = (1.25e7, 1.25e9, 3.125e9, 1.25e10, 5e10)  # bytes a second: 100 Mbit/s to 400 Gbit/s


class Curve(NamedTuple):
    """Published times of one cluster: microseconds by MiB, or GB/s of nccl-tests' busbw by MiB."""

    fabric: str
    nodes: int
    inner: int  # GPUs a node
    gbit: float  # of the links of a GPU
    latency: float  # microseconds
    inside: float | None  # GB/s that one such node reaches alone, where published
    microseconds: dict[float, float]
    busbw: dict[float, float]


CURVES = {
    # Notes on Slurm and two AWS g7e.8xlarge, in Korean: NCCL 2.29.2, aws-ofi-nccl 1.18 without GPUDirect, which says
    # "Internode latency set at 35.0 us"
    "efa-100-2x1": Curve(
        *("rdma", 2, 1, 100, 35, None),
        {1e-3: 45.46, 0.0625: 61.91, 0.25: 136.4, 1: 272.8, 2: 459.2, 4: 747.6, 8: 742.4, 16: 1397.1, 32: 2790.4}
        | {64: 5539.7, 128: 10928, 256: 21722, 512: 43330, 1024: 86786},
        {},
    ),
    # github.com/NVIDIA/nccl-tests/issues/232: an H100 each, 400 Gb/s
    "ndr-400-2x1": Curve("rdma", 2, 1, 400, 2, None, {2: 113.2, 4: 154.4, 8: 231.4, 16: 420.5, 32: 812.3}, {}),
    # github.com/stas00/ml-engineering, network/README.md: AWS P6-B200, NCCL 2.27.7
    "efa-400-4x8-b200": Curve(
        *("rdma", 4, 8, 400, 35, 740.64),
        {},
        {1: 5.37, 2: 10.38, 4: 18.9, 8: 35.12, 16: 64.43, 32: 91.19, 64: 156.74, 128: 197.94, 256: 229.09, 512: 326.9}
        | {1024: 361.99, 2048: 372.42, 4096: 377.34, 8192: 380.39, 16384: 381.8},
    ),
    # The same page: AWS p5en, 4 nodes by ring, 2 nodes by NVLSTree
    "efa-400-4x8-h200": Curve("rdma", 4, 8, 400, 35, 367.61, {}, {4096: 364.87}),
    "efa-400-2x8-h200": Curve("rdma", 2, 8, 400, 35, 367.61, {}, {4096: 486.8}),
    # github.com/ROCm/rccl/issues/1490: 4 MI250X of 2 dies and 4 links of 200 Gb/s a node, ROCm 6.2.1. Left out is
    # 8 MiB, which took longer than 16: 1184.5 us.
    "slingshot-100-4x8": Curve(
        *("rdma", 4, 8, 100, 2, None),
        {0.0625: 78.91, 0.125: 101.6, 0.25: 157.8, 0.5: 202.4, 1: 289.5, 2: 265.7, 4: 366.0, 16: 760.7, 32: 1326.7}
        | {64: 2444.7, 128: 3486.7, 256: 6326.1, 512: 11268, 1024: 22500, 2048: 44867, 4096: 89585},
        {},
    ),
    # N. Almasri, Télécom Paris, 2026: ConnectX-5 back to back, RTX 3060. Longer ones are limited by PCIe: 6.33 GB/s.
    "roce-100-2x1": Curve("rdma", 2, 1, 100, 0.83, None, {8 / MIB: 20.9, 4096 / MIB: 21.9}, {}),
    "tcp-100-2x1": Curve("tcp", 2, 1, 100, 12.28, None, {8 / MIB: 112, 4096 / MIB: 92}, {}),
    # github.com/zqming-cs/ADTopk, "one GPU per node": 1.4 ms + 1.7 ns a byte
    "tcp-10-8x1": Curve(
        "tcp", 8, 1, 10, 15, None, {size: 1400 + 1.7e-3 * size * MIB for size in (1, 4, 16, 64, 256, 1024)}, {}
    ),
    # github.com/NVIDIA/nccl/issues/209, 4 June 2019: NCCL 2.4.7, Gbit/s from these sizes on, the median of three
    "tcp-32-2x1": Curve("tcp", 2, 1, 32, 15, None, {}, {32: 31.0 / 8}),
    "tcp-32-4x1": Curve("tcp", 4, 1, 32, 15, None, {}, {128: 30.8 / 8}),
    "tcp-32-4x8": Curve("tcp", 4, 8, 32 / 8, 15, None, {}, {128: 22.4 / 8}),
    # github.com/NVIDIA/nccl/issues/450: 4 to 6 GB/s at 8 to 128 MiB, V100
    "tcp-100-4x8": Curve("tcp", 4, 8, 100 / 8, 15, None, {}, {128: 5.0}),
}
HELD_OUT = {  # nothing was fitted to these
    # Notes on two AWS p5.48xlarge: torch.distributed, EFA. Left out is the first, 1 MiB, longer than 4: 320 us.
    "efa-400-2x8-h100": Curve("rdma", 2, 8, 400, 35, 367.61, {4: 140, 16: 350, 64: 610, 256: 1840, 1024: 6090}, {}),
}


def points(curve: Curve):
    """Return size in bytes, published seconds and our seconds of each point."""
    ranks, fabric = curve.nodes * curve.inner, FABRICS[curve.fabric]
    if curve.inside:
        fabric = fabric._replace(inside=curve.inside * 1e9)
    times = {size: 1e-6 * taken for size, taken in curve.microseconds.items()}
    times |= {size: 2 * (ranks - 1) / ranks * size * MIB / (1e9 * speed) for size, speed in curve.busbw.items()}
    rate, latency = curve.gbit * 1e9 / 8, curve.latency * 1e-6
    return [
        (size * MIB, taken, dense_seconds(size * MIB, ranks, rate, latency, fabric, curve.inner))
        for size, taken in times.items()
    ]


@pytest.mark.parametrize("name", CURVES | HELD_OUT)
def test_every_published_point_lies_within_the_error_that_is_told(name):
    curve = (CURVES | HELD_OUT)[name]
    for nbytes, taken, ours in points(curve):
        error = FABRICS[curve.fabric].error(nbytes)
        assert 1 / error <= ours / taken <= error, f"{nbytes / MIB} MiB: {ours * 1e6:.0f}, not {taken * 1e6:.0f} us"


@pytest.mark.parametrize("fabric", FABRICS.values(), ids=FABRICS)
@pytest.mark.parametrize("inner", [1, 4, 8])
def test_no_allreduce_is_faster_than_the_links(fabric, inner):
    for nodes in (2, 3, 5, 16, 100):
        for rate in RATES:
            for nbytes in SIZES:
                bound = 2 * (nodes - 1) / nodes * nbytes / (inner * rate)
                assert dense_seconds(nbytes, nodes * inner, rate, 0.0, fabric, inner) > bound


def grows(values):
    return all(earlier <= later for earlier, later in pairwise(values))


@pytest.mark.parametrize("fabric", FABRICS.values(), ids=FABRICS)
@pytest.mark.parametrize("inner", [1, 8])
def test_time_grows_with_bytes_and_ranks_and_falls_with_the_rate(fabric, inner):
    many = [inner * nodes for nodes in range(1, 70)]
    for rate in RATES:
        for nbytes in SIZES:
            assert grows([dense_seconds(nbytes, ranks, rate, 2e-6, fabric, inner) for ranks in many])
    for ranks in many:
        for rate in RATES:
            assert grows([dense_seconds(nbytes, ranks, rate, 2e-6, fabric, inner) for nbytes in SIZES])
        for nbytes in SIZES:
            assert grows([dense_seconds(nbytes, ranks, rate, 2e-6, fabric, inner) for rate in reversed(RATES)])


@pytest.mark.parametrize("fabric", FABRICS.values(), ids=FABRICS)
def test_one_rank_takes_no_time_and_one_node_no_network(fabric):
    assert dense_seconds(1e9, 1, 1e9, 1.0, fabric) == 0
    assert dense_seconds(1e9, 1, 1e9, 1.0, fabric, ranks_per_node=8) == 0
    alone = dense_seconds(1e9, 8, 1e9, 1.0, fabric, ranks_per_node=8)
    assert alone == dense_seconds(1e9, 8, 1e3, 9.0, fabric, ranks_per_node=8) < dense_seconds(1e9, 8, 1e9, 0.0, fabric)
