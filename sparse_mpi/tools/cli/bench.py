"""``python -m sparse_mpi bench``: what can be measured, one module a benchmark."""

from __future__ import annotations

import argparse

from sparse_mpi.tools.cli import (
    bench_agree,
    bench_allreduce,
    bench_compare,
    bench_elastic,
    bench_energy,
    bench_interleaved,
    bench_network,
    bench_select,
    bench_sparse,
    bench_sparse_compare,
    bench_sparse_volume,
    bench_volume,
    bench_wire,
)


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Declare ``bench`` and what can be measured."""
    bench = commands.add_parser("bench", help="measure", description="Measure on this machine.")
    kinds = bench.add_subparsers(title="benchmarks", metavar="WHAT", required=True)
    for module in (
        bench_allreduce,
        bench_interleaved,
        bench_compare,
        bench_select,
        bench_sparse,
        bench_sparse_compare,
        bench_sparse_volume,
        bench_wire,
        bench_volume,
        bench_energy,
        bench_elastic,
        bench_agree,
        bench_network,
    ):
        module.add_parser(kinds)
