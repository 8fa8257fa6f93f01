"""What mpiexec runs: one program, trained with one algorithm after the other, each resumed from where it was half done.

    mpiexec -n 4 python -m tests.train.every_algorithm FOLDER ALGORITHM,ALGORITHM PROGRAM [options of the program]

Rank 0 leaves a line for each algorithm in FOLDER/records.jsonl as it comes.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

from ranks import job
from sparse_mpi.bench.provenance import provenance
from sparse_mpi.comm import Comm

HALF, STEPS = 3, 6
OPTIONS = f"--tiny --max-steps {STEPS} --check-every {HALF} --checkpoint-every {HALF} --threads 1 --no-progress".split()


def train(program: Any, options: list[str], args: Namespace, comm: Comm) -> None:
    """Train ``program`` with each of ``args.algorithms``."""
    for algorithm in args.algorithms:
        record = trained_twice(program, [*OPTIONS, "--algo", algorithm, *options], args.folder / algorithm, comm)
        if comm.rank == 0:
            with (args.folder / "records.jsonl").open("a") as file:
                print(json.dumps({"algorithm": algorithm, **record, "mpi": provenance()["versions"]["mpi"]}), file=file)


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
    place, algorithms, name, *rest = sys.argv[1:]
    asked = Namespace(folder=Path(place), algorithms=algorithms.split(","))
    job.run(partial(train, import_module(name).PROGRAM, rest), asked)
