"""torch's NCCL pretended, on the pretended device: over the real gloo of a job, or over the ranks of a `World`.

As strict as NCCL: tensors are on the device, flat and of types that it knows, torch works on CuPy's current stream, the
first call of a group is one of all its ranks, and every array is as long as what comes.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from sparse_mpi.comm import device_group

from .fake_device import DEVICE
from .fake_torch import CudaTensor, host

KNOWN = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64)


def given(x: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor that is given to NCCL, as it is when all that was queued on the stream is done."""
    assert isinstance(x, CudaTensor) and x.dim() == 1 and x.dtype in KNOWN, f"NCCL takes no {x.dtype} {x.shape}"
    assert DEVICE.torch[-1] == DEVICE.stack[-1].ptr, "torch works on another stream than CuPy"
    DEVICE.stack[-1].flush("device")
    DEVICE.stack[-1].work.finish()
    return host(x)


class OverGloo:
    """``torch.distributed`` for `device_group`, of a job whose groups have gloo for tensors on the host."""

    def __init__(self, backend: str) -> None:
        self._backend = backend  # of groups of the job, which pretend to have NCCL

    def __getattr__(self, name: str):
        return getattr(dist, name)

    def get_backend_config(self, group=None) -> str:
        """NCCL's, but of groups that were made beside the default one."""
        return "cpu:gloo,cuda:nccl" if group in (None, dist.group.WORLD) else dist.get_backend_config(group)

    def new_group(self, ranks, backend, use_local_synchronization):
        assert backend == "nccl" and use_local_synchronization
        return dist.new_group(ranks, backend=self._backend, use_local_synchronization=True)

    def all_gather_into_tensor(self, out, send, group):
        dist.all_gather(list(given(out).split(len(send))), given(send), group=group)

    def all_gather(self, parts, send, group):
        """Gloo has none of uneven lengths."""
        for rank, part in enumerate(parts):
            root = dist.get_global_rank(group, rank)
            if root == dist.get_rank():
                given(part).copy_(given(send))
            if len(part):
                dist.broadcast(given(part), root, group=group)

    def all_to_all_single(self, out, send, came, counts, group):
        dist.all_to_all_single(given(out), given(send), came, counts, group=group)

    def all_reduce(self, x, op=dist.ReduceOp.SUM, group=None):
        dist.all_reduce(given(x), op, group=group)

    def broadcast(self, x, root, group):
        dist.broadcast(given(x), root, group=group)

    def P2POp(self, move, x, peer, group):
        return dist.P2POp(move, given(x), peer, group)


def over_gloo() -> None:
    """Have the process's groups pretend to have NCCL, for good."""
    patches = pytest.MonkeyPatch()
    patches.setattr(device_group, "dist", OverGloo("gloo"))
