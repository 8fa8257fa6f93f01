"""What `run --chaos` takes from the workbench: how its text is checked, and the job that suffers the faults."""

from __future__ import annotations

from sparse_mpi.cli.values import Refused
from sparse_mpi_bench.chaos.drawing import parse
from sparse_mpi_bench.chaos.job import ChaosJob
from sparse_mpi_bench.options import chaos as text

__all__ = ["job", "text"]


def job(text: str, ranks: int, elastic: bool, mpi: str) -> ChaosJob:
    """Return the faults of a job under the library version ``mpi``. Raises Refused: links are to fail."""
    settings = parse(text)
    if "link" in settings.kinds:
        raise Refused("--chaos with kinds=link needs emulated hosts: start the program by `bench network --chaos`")
    return ChaosJob(settings, ranks, elastic, mpi)
