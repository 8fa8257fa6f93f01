"""Benchmarks by description: a `Benchmark` has its own measurement; the common part is here."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sparse_mpi.cli import records
from sparse_mpi.cli.options import Option, declare
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.values import Refused
from sparse_mpi.comm.conversion import comm_of_job
from sparse_mpi_bench.figures.style import write

Output = str | dict[str, Any] | int  # a text to print, a record, an exit status


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, or another command that measures, prints a table, writes a record and draws it."""

    name: str
    help: str
    description: str
    options: Sequence[Option]
    measure: Callable[..., Iterator[Output]]  # takes the options, and the communicator if `collective`
    check: Callable[[argparse.Namespace], object] | None = None  # raises Refused, before MPI starts
    figure: Callable[[Sequence[dict[str, Any]]], Any] | None = None  # maker of the figure for --plot
    collective: bool = False  # all ranks of MPI measure; the first one prints and writes

    def add_parser(self, kinds: Any) -> None:
        parser = kinds.add_parser(self.name, help=self.help, description=self.description)
        declare(parser, self.options)
        parser.set_defaults(run=self.run)

    def run(self, args: argparse.Namespace) -> int:
        if self.check is not None:
            self.check(args)
        comm = comm_of_job() if self.collective else None
        status, record = 0, None
        for output in self.measure(args) if comm is None else self.measure(args, comm):
            if isinstance(output, int):
                status = output
            elif comm is not None and comm.rank:
                continue
            elif isinstance(output, str):
                print(output, flush=True)
            else:
                record = {"options": records.options(args), **provenance(), **output}
                if args.json:
                    records.write(args.json, record)
        if record is not None and self.figure is not None and args.plot:
            save(partial(self.figure, [record]), args.plot)
        return status


def save(make: Callable[[], Any], file: Path) -> None:
    """Write the figure that ``make`` draws. Raises Refused: matplotlib is missing, or the file cannot be written."""
    try:
        write(make, file)
    except (ImportError, ValueError) as problem:
        raise Refused(f"--plot: {problem}") from None
    except OSError as problem:
        raise Refused(f"--plot {file} cannot be written: {problem.strerror}; name another file") from None
