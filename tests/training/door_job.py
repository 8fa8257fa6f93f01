"""Goes through the checks of a door that has process groups, and through programs; `test_doors` starts it.

    python -m torch.distributed.run --standalone --nproc-per-node 3 -m tests.training.door_job FOLDER DOOR CHECK ...
    mpiexec -n 3 python -m tests.training.door_job FOLDER DOOR CHECK ...

Each rank saves in FOLDER/said-RANK.pt what was wrong, by check, and what it saw of the programs in FOLDER/programs.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from . import calls, ddp_checks, fsdp_checks  # noqa: F401  whose checks are among those of their doors
from .check_door import Ground, checks
from .doors import DOORS
from .programs import Seen, run

SECONDS = 30  # that a rank waits for the others


def main(folder: Path, door: str, names: list[str]) -> None:
    if not dist.is_torchelastic_launched():
        ddp_checks.among_the_ranks_of_mpi(folder)
    else:
        ddp_checks.before_the_group()
        dist.init_process_group("gloo", timeout=timedelta(seconds=SECONDS))
    rank, seen = dist.get_rank(), list[Seen]()
    said, at, ground = dict[str, str](), folder / f"at-{dist.get_rank()}", Ground(door, dist.group.WORLD, folder)
    try:
        for name in names:
            at.write_text(name)
            try:
                checks(door)[name](ground)
                said[name] = ""
            except Exception:
                said[name] = traceback.format_exc()
            dist.barrier()
        for program in eval((folder / "programs").read_text(), vars(calls)):
            at.write_text(repr(program))
            seen.append(run(lambda program=program: DOORS[door](program, dist.group.WORLD), program))
            dist.barrier()
    finally:
        torch.save((said, [tuple(one) for one in seen]), folder / f"said-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
