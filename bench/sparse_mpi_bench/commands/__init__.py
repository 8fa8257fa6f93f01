"""Commands of the workbench."""

from __future__ import annotations

from typing import Any

from sparse_mpi_bench.commands.bench_calibrate import CALIBRATE
from sparse_mpi_bench.commands.bench_kernels import KERNELS
from sparse_mpi_bench.commands.bench_network import NETWORK
from sparse_mpi_bench.commands.bench_sparse import SPARSE
from sparse_mpi_bench.commands.bench_steps import STEPS
from sparse_mpi_bench.commands.bench_volume import VOLUME


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure", description="Measure on this machine.")
    kinds = parser.add_subparsers(title="benchmarks", metavar="WHAT", required=True)
    for benchmark in (STEPS, KERNELS, SPARSE, VOLUME, NETWORK, CALIBRATE):
        benchmark.add_parser(kinds)
