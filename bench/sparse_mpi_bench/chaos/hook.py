"""The workbench's part of `run --chaos`: the job that suffers the faults."""

from __future__ import annotations

import sys

from sparse_mpi.cli.launch import start
from sparse_mpi.cli.launch.launch_command import LaunchCommand
from sparse_mpi.cli.values import Refused, refusing
from sparse_mpi_bench.chaos.drawing import parse
from sparse_mpi_bench.chaos.job import ChaosJob


def run(text: str, command: LaunchCommand) -> int:
    """Run a job with the faults of ``text``; return its status. Raises Refused: they cannot be played."""
    with refusing("--"):
        settings = parse(text)
    if sys.platform != "linux":
        raise Refused("--chaos needs Linux")
    if "link" in settings.kinds:
        raise Refused("--chaos with kinds=link needs emulated hosts: start the program by `bench network --chaos`")
    chaos = ChaosJob(settings, command.job.ranks, command.job.elastic, command.library.version)
    return start.run(command, chaos.play(), chaos.end)
