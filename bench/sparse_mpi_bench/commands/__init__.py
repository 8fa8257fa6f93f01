"""Commands of the workbench."""

from __future__ import annotations

from typing import Any

from sparse_mpi_bench.commands.bench_allreduce import AGREE, ALLREDUCE, ELASTIC
from sparse_mpi_bench.commands.bench_calibrate import CALIBRATE
from sparse_mpi_bench.commands.bench_energy import ENERGY
from sparse_mpi_bench.commands.bench_interleaved import COMPARE, INTERLEAVED
from sparse_mpi_bench.commands.bench_network import NETWORK
from sparse_mpi_bench.commands.bench_published import PUBLISHED
from sparse_mpi_bench.commands.bench_select import SELECT, WIRE_FORMATS
from sparse_mpi_bench.commands.bench_sparse import SPARSE
from sparse_mpi_bench.commands.bench_sparse_compare import SPARSE_COMPARE, SPARSE_VOLUME
from sparse_mpi_bench.commands.bench_volume import VOLUME

BENCHMARKS = (
    *(ALLREDUCE, INTERLEAVED, COMPARE, SELECT, SPARSE, SPARSE_COMPARE, SPARSE_VOLUME),
    *(WIRE_FORMATS, VOLUME, ENERGY, ELASTIC, AGREE, NETWORK, CALIBRATE, PUBLISHED),
)


def add_parser(commands: Any) -> None:
    """Declare ``bench``."""
    parser = commands.add_parser("bench", help="measure", description="Measure on this machine.")
    kinds = parser.add_subparsers(title="benchmarks", metavar="WHAT", required=True)
    for benchmark in BENCHMARKS:
        benchmark.add_parser(kinds)
