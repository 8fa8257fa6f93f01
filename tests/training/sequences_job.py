"""Runs programs with the hook of DistributedDataParallel, or with FSDP2; `test_call_sequences` starts it and judges.

    python -m torch.distributed.run --standalone --nproc-per-node 3 tests/training/sequences_job.py FOLDER

FOLDER/programs has programs, as Python, of as many ranks as there are; each rank saves what it saw in seen-RANK.pt.
"""

from __future__ import annotations

import copy
import sys
import warnings
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path

import sequences  # it lies beside this script
import torch
import torch.distributed as dist
from sequences import Trainee, run
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.fsdp import attach

SECONDS = 120  # that a rank waits for the others


class Hooked(Trainee):
    """With DDP's hook, which reduces in backward passes."""

    def distribute(self) -> None:
        program = self.program
        self.model = DistributedDataParallel(self.net, find_unused_parameters=True)
        self.state = SparseState(
            self.net.named_parameters(),
            density=program.density,
            algorithm=program.algorithm,
            optimizer=self.optimizer,
            momentum=program.momentum,
            dense_steps=0,
            scaler=self.scaler if program.scaled else None,
        )
        self.model.register_comm_hook(self.state, sparse_hook)

    def without_reduction(self) -> AbstractContextManager:
        return self.model.no_sync()

    def flush(self, _: None = None) -> None:
        self.state.flush()
        self.optimizer.step()

    def reload(self, _: None) -> None:
        super().reload(_)
        self.state.load_state_dict(copy.deepcopy(self.state.state_dict()))


class Sharded(Trainee):
    """With FSDP2, of as many replicas as there are ranks."""

    def prepare(self) -> None:
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
        for layer in (*self.net.layers, self.net):
            fully_shard(layer, mesh=self.mesh["shard"])

    def distribute(self) -> None:
        program = self.program
        self.reduction = attach(
            self.net,
            self.mesh["replicate"],
            density=program.density,
            algorithm=program.algorithm,
            optimizer=self.optimizer,
            momentum=program.momentum,
        )

    def whole(self) -> list[torch.Tensor]:
        return [parameter.to_local() for parameter in self.parameters]

    @contextmanager
    def without_reduction(self):
        self.net.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.net.set_requires_gradient_sync(True)

    def flush(self, _: None = None) -> None:
        self.reduction.flush()
        self.optimizer.step()


DOORS = {"ddp": Hooked, "fsdp": Sharded}


def main(folder: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=SECONDS))
    rank, seen = dist.get_rank(), []
    for number, program in enumerate(eval((folder / "programs").read_text(), vars(sequences))):
        (folder / f"at-{rank}").write_text(f"{number}: {program}")
        seen.append(tuple(run(lambda program=program: DOORS[program.door](program, rank), program)))
        dist.barrier()
    torch.save(seen, folder / f"seen-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
