"""Train a program with algorithms, all in one start of mpiexec, and resume each from its half-way checkpoint.

    mpiexec -n 4 python -m tests.train.every_algorithm FOLDER ALGORITHM,ALGORITHM PROGRAM [options of the program]

Rank 0 appends a line to FOLDER/records.jsonl after each training, in the order of the command line.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
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
    """Train the program ``args.name`` with each of ``args.algorithms``.

    Raises:
        JobError: in the end, if ranks were not alike or a run from a checkpoint ended in other bits.
    """
    bad, program = [], import_module(args.name).PROGRAM
    for algorithm in args.algorithms:
        if comm.rank == 0:
            print(f"training {args.name} with {algorithm}", file=sys.stderr, flush=True)
        folder = args.folder / f"{args.name}-{algorithm}"
        record = trained_twice(program, [*OPTIONS, "--algo", algorithm, *args.options], folder, comm)
        if comm.rank == 0:
            with (args.folder / "records.jsonl").open("a") as file:
                print(json.dumps({"algorithm": algorithm, **record, "mpi": provenance()["versions"]["mpi"]}), file=file)
        if not (record["identical"] and record["resumed"]):
            bad.append(algorithm)
    if bad:
        raise job.JobError(f"ranks, or the run from a checkpoint, end in other bits: {args.name} with {', '.join(bad)}")
    if comm.rank == 0:
        print(f"{len(args.algorithms)} trainings, alike on all ranks and from a checkpoint")


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


if __name__ == "__main__":
    folder, algorithms, name, *options = sys.argv[1:]
    args = Namespace(folder=Path(folder), algorithms=algorithms.split(","), name=name, options=options)
    job.run(train, args)
