"""The small program as torchrun starts it, for `restarts`: rank 0 prints the checkpoint that the ranks will go on from.

Each process writes its number to a file of its place in the folder ``$FOLDER``, and rank 0 appends a byte to ``TRAINS``
there when its first batch is asked for.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparse_mpi.checkpoint import latest, manifest
from tests.fault_tolerance.victim import PROCESS
from tests.train.small_program import PROGRAM, make, slowed

PAUSE = 0.03  # seconds of each step, so that most faults meet ranks that train
TRAINS = "trains"
MOST = 10  # processes of a node


def place_of(node: int, number: int) -> int:
    return MOST * node + number


def made(args: Any, comm: Any) -> Any:
    def begun() -> None:
        if comm.rank == 0:
            with Path(os.environ["FOLDER"], TRAINS).open("a") as file:
                file.write(".")

    return slowed(make(args, comm), PAUSE, begun)


def main() -> None:
    place = place_of(int(os.environ["NODE"]), int(os.environ["LOCAL_RANK"]))
    Path(os.environ["FOLDER"], f"{PROCESS}{place}").write_text(f"{os.getpid()}\n")
    program = replace(PROGRAM, make=made)
    if os.environ["RANK"] == "0":
        found = latest(program.parse(sys.argv[1:]).checkpoint_dir)
        number, step = (manifest.read(found).number, manifest.read(found).step) if found else (0, 0)
        generation = {"ranks": int(os.environ["WORLD_SIZE"]), "number": number, "step": step}
        print(json.dumps(generation), flush=True)
    program.run()


if __name__ == "__main__":
    main()
