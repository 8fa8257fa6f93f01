"""Calls `attach` on two ranks with wrong arguments, on both and on one; `test_every_call` starts it under torchrun.

    python -m torch.distributed.run --standalone --nproc-per-node 2 -m tests.arguments.attach_job SHARE

Rank 0 prints what is wrong of each call.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from sparse_mpi.fsdp import attach

from .calls import SHARES, WRONG, call, model, objection, sgd

WAIT = 60  # seconds, after which gloo ends a wait


def legal(mesh: DeviceMesh) -> dict[str, Any]:
    """The arguments of a legal call."""
    net = fully_shard(model(), mesh=mesh["shard"])
    return call(
        attach, model=net, replicas=mesh["replicate"], density=0.5, optimizer=sgd(net), selector="exact"
    ).arguments


def raised(arguments: dict[str, Any]) -> str | Exception | None:
    """What a call raises, as text if it is of a kind that no call is to raise."""
    try:
        attach(**arguments).detach()
    except (TypeError, ValueError) as error:
        return error
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main(share: int) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=WAIT))
    mesh, rank = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")), dist.get_rank()
    assert raised(legal(mesh)) is None
    for place, argument in enumerate(legal(mesh)):
        for value in list(WRONG)[(share + place) % SHARES :: SHARES]:
            # A rank without the others' group cannot tell them
            for culprits in ((0, 1), (1,))[: 1 if argument == "replicas" else 2]:
                wrong = {argument: WRONG[value]()} if rank in culprits else {}
                found: list[Any] = [None, None]
                dist.all_gather_object(found, raised(legal(mesh) | wrong))
                said = objection(found, argument, culprits)
                if said is not None and rank == 0:
                    print(f"{argument}={value} on {culprits}: {said[:300]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]))
