"""``python -m sparse_mpi bench``: what can be measured, one module a benchmark."""

from __future__ import annotations

import argparse

from sparse_mpi.tools.cli.bench_allreduce import AGREE, ALLREDUCE, ELASTIC
from sparse_mpi.tools.cli.bench_energy import ENERGY
from sparse_mpi.tools.cli.bench_interleaved import COMPARE, INTERLEAVED
from sparse_mpi.tools.cli.bench_network import NETWORK
from sparse_mpi.tools.cli.bench_select import SELECT, WIRE_FORMATS
from sparse_mpi.tools.cli.bench_sparse import SPARSE
from sparse_mpi.tools.cli.bench_sparse_compare import SPARSE_COMPARE, SPARSE_VOLUME
from sparse_mpi.tools.cli.bench_volume import VOLUME
from sparse_mpi.tools.values import Parser

BENCHMARKS = (
    *(ALLREDUCE, INTERLEAVED, COMPARE, SELECT, SPARSE, SPARSE_COMPARE, SPARSE_VOLUME),
    *(WIRE_FORMATS, VOLUME, ENERGY, ELASTIC, AGREE, NETWORK),
)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Declare ``bench`` and what can be measured."""
    bench = commands.add_parser("bench", help="measure", description="Measure on this machine.")
    kinds = bench.add_subparsers(title="benchmarks", metavar="WHAT", required=True)
    for benchmark in BENCHMARKS:
        benchmark.add_parser(kinds)
