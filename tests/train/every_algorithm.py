"""Train programs with algorithms, all in one start of mpiexec, and resume each from its half-way checkpoint.

    mpiexec -n 4 python -m tests.train.every_algorithm FOLDER ALGORITHM,ALGORITHM PROGRAM [options of the program]
    mpiexec -n 4 python -m tests.train.every_algorithm FOLDER ALGORITHM PROGRAM [options] + ALGORITHM PROGRAM [options]

Rank 0 appends a line to FOLDER/records.jsonl after each training, in the order of the command line.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

from sparse_mpi.cli.records import provenance
from sparse_mpi.comm import Comm
from sparse_train.ranks import job

HALF, STEPS = 2, 4
OPTIONS = f"--tiny --max-steps {STEPS} --check-every {HALF} --checkpoint-every {HALF} --threads 1 --no-progress".split()


def train(args: Namespace, comm: Comm) -> None:
    """Train the programs of all ``args.jobs`` ``(algorithm, program, options)``.

    Raises:
        JobError: in the end, if ranks were not alike or a run from a checkpoint ended in other bits.
    """
    bad = []
    for number, (algorithm, name, options) in enumerate(args.jobs):
        if comm.rank == 0:
            print(f"training {name} with {algorithm}", file=sys.stderr, flush=True)
        program = import_module(name).PROGRAM
        folder = args.folder / f"{number}-{name}-{algorithm}"
        record = trained_twice(program, [*OPTIONS, "--algo", algorithm, *options], folder, comm)
        if comm.rank == 0:
            with (args.folder / "records.jsonl").open("a") as file:
                print(json.dumps({"algorithm": algorithm, **record, "mpi": provenance()["versions"]["mpi"]}), file=file)
        if not (record["identical"] and record["resumed"]):
            bad.append(f"{name} with {algorithm}")
    if bad:
        raise job.JobError(f"ranks, or the run from a checkpoint, end in other bits: {', '.join(bad)}")
    if comm.rank == 0:
        print(f"{len(args.jobs)} trainings, alike on all ranks and from a checkpoint")


def trained_twice(program: Any, options: list[str], folder: Path, comm: Comm) -> dict[str, Any]:
    """How training ended, and whether it ends in the same bits from its checkpoint on."""

    def outcome(name: str, *more: str) -> Any:
        return program.train(program.parse([*options, "--out", str(folder / name), *more]), comm)

    straight = outcome("straight")
    resumed = outcome("resumed", "--resume", str(folder / "straight" / "checkpoints" / f"step-{HALF:08d}"))
    return {
        "headline": straight.headline,
        "score": straight.score,
        "loss": straight.loss,
        "steps": straight.steps,
        "seconds": straight.seconds,
        "step_seconds": straight.step_seconds,
        "identical": straight.identical and resumed.identical,
        "resumed": (resumed.digest, resumed.loss, resumed.score) == (straight.digest, straight.loss, straight.score),
    }


def jobs(words: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield algorithm, program and options of each training that the command line ``words`` asks for."""
    while words:
        end = words.index("+") if "+" in words else len(words)
        algorithms, name, *options = words[:end]
        yield from ((algorithm, name, options) for algorithm in algorithms.split(","))
        words = words[end + 1 :]


if __name__ == "__main__":
    job.run(train, Namespace(folder=Path(sys.argv[1]), jobs=list(jobs(sys.argv[2:]))))
