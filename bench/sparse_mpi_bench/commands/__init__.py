"""Commands of the workbench."""

from __future__ import annotations

from typing import Any

from sparse_mpi_bench.commands import draw
from sparse_mpi_bench.commands.bench_calibrate import CALIBRATE
from sparse_mpi_bench.commands.bench_compare import COMPARE
from sparse_mpi_bench.commands.bench_kernels import KERNELS
from sparse_mpi_bench.commands.bench_network import NETWORK
from sparse_mpi_bench.commands.bench_rivals import RIVALS
from sparse_mpi_bench.commands.bench_sparse import SPARSE
from sparse_mpi_bench.commands.bench_steps import STEPS
from sparse_mpi_bench.commands.bench_volume import VOLUME
from sparse_mpi_bench.commands.trace import TRACE


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure, trace and draw", description="Measure here, and draw records.")
    kinds = parser.add_subparsers(title="benchmarks", metavar="WHAT", required=True)
    for benchmark in (STEPS, KERNELS, SPARSE, VOLUME, NETWORK, COMPARE, RIVALS, CALIBRATE, TRACE):
        benchmark.add_parser(kinds)
    draw.add_parser(kinds)
