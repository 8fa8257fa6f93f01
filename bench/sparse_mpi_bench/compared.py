"""A rank of ``bench compare``: run a script, and on rank 0 write loss, bytes and seconds of its steps.

The loss is the number whose ``backward()`` the script calls, a mean where it calls several before a step.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from sparse_mpi.comm.runtime import told_rank
from sparse_mpi.monitor import observe


def record(file: Path) -> None:
    losses: list[torch.Tensor] = []
    backward: Any = torch.autograd.backward  # Tensor.backward calls it, too
    last, lines = perf_counter(), file.open("w")
    sent: int | None = None  # nothing is reduced yet

    def noted(tensors: Any, *args: Any, **options: Any) -> None:
        if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
            losses.append(tensors.detach())
        backward(tensors, *args, **options)

    def reduced(engine: Any) -> None:
        nonlocal sent
        sent = (sent or 0) + engine.report.traffic.sent + engine.report.traffic.control

    def stepped(*_: object) -> None:
        nonlocal last, sent
        if sent is None:
            return
        loss = sum(float(of) for of in losses) / len(losses) if losses else None
        now = perf_counter()
        print(json.dumps({"loss": loss, "bytes": sent, "seconds": now - last}), file=lines, flush=True)
        losses.clear()
        sent, last = 0, now

    observe.meter = reduced
    torch.autograd.backward = noted
    register_optimizer_step_post_hook(stepped)


def main() -> None:
    file, ranks, port, script, *words = sys.argv[1:]
    rank = told_rank()
    # Scripts for torchrun ask for these
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in ({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": ranks} | address).items():
        os.environ.setdefault(name, value)
    # All ways begin alike, unless the script draws from the system
    torch.manual_seed(rank)
    np.random.seed(rank)  # noqa: NPY002
    if rank == 0:
        record(Path(file))
    sys.argv = [script, *words]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
