"""The small program as torchrun starts it, for `restarts`: rank 0 prints the checkpoint that the ranks will go on from.

Each process writes its number to a file ``NODE-LOCAL_RANK`` of the folder ``$FOLDER``, and rank 0 appends a byte to
``TRAINS`` there when its first batch is asked for.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparse_mpi.checkpoint import latest, manifest
from tests.train.small_program import PROGRAM, make

PAUSE = 0.03  # seconds of each step, so that most faults meet ranks that train
TRAINS = "trains"


def made(args: Any, comm: Any) -> Any:
    task = make(args, comm)
    plain = task.train
    begun: list[bool] = []

    def train(epoch: int, first: int = 0) -> Iterator[Any]:
        for batch in plain(epoch, first):
            if comm.rank == 0 and not begun:
                with Path(os.environ["FOLDER"], TRAINS).open("a") as file:
                    file.write(".")
            begun.append(True)
            time.sleep(PAUSE)
            yield batch

    task.train = train  # type: ignore[method-assign]
    return task


def main() -> None:
    name = f"{os.environ['NODE']}-{os.environ['LOCAL_RANK']}"
    Path(os.environ["FOLDER"], name).write_text(f"{os.getpid()}\n")
    program = replace(PROGRAM, make=made)
    if os.environ["RANK"] == "0":
        found = latest(program.parse(sys.argv[1:]).checkpoint_dir)
        number, step = (manifest.read(found).number, manifest.read(found).step) if found else (0, 0)
        generation = {"ranks": int(os.environ["WORLD_SIZE"]), "number": number, "step": step}
        print(json.dumps(generation), flush=True)
    program.run()


if __name__ == "__main__":
    main()
