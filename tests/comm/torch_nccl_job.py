"""Device arrays over torch's own NCCL group and over gloo: calls, algorithms, optimizer, hook and FSDP2 agree.

    torchrun --standalone --nproc-per-node 2 -m tests.comm.torch_nccl_job
    torchrun --standalone --nproc-per-node 2 -m tests.fakes -m tests.comm.torch_nccl_job

The second one rehearses it on the pretended device: DDP and FSDP2 compute on the CPU, and what they send travels as
device arrays. NCCL takes several ranks on a GPU from 2.30 on. Of two ranks all sums have the same bits, of more dense
ones may differ by rounding. It ends with 1 if a case differs or fails, and by itself after ``LIMIT`` seconds.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import cupy
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi import ALGORITHMS, Layout
from sparse_mpi.comm import as_comm
from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.fsdp import attach
from sparse_mpi.optim import DistributedOptimizer

from ..fakes import fake_torch_nccl
from ..training.loops import net
from .laws import assert_as_in_a_world, stepped
from .on_device import OnDevice

LIMIT = 240.0  # seconds
PRETENDED = not hasattr(cupy, "__file__")
LAYOUT, K, STEPS = Layout(((40, 30), (20, 25)) if PRETENDED else ((400, 300), (200, 250))), 170, 4
WHERE, WIDTHS = "cpu" if PRETENDED else "cuda", (64, 96, 64, 8)  # of models
Found = list[bytes] | list[np.ndarray]


def calls(comm: Any) -> Found:
    """Every call of `Comm`, also on a part and a duplicate, against a World."""

    def run(fn: Callable[[Any], Any]) -> list[Any]:
        results: list[Any] = [None] * comm.size
        dist.all_gather_object(results, fn(comm), group=BESIDE)
        return results

    assert_as_in_a_world(SimpleNamespace(size=comm.size, run=run), OnDevice)
    found = []
    for name in ("int8", "int16", "uint16", "uint32", "uint64", "float64"):
        own = (np.arange(-3, 4) << comm.rank).astype(name)  # without a sign, large ones
        found += [OnDevice(comm).allreduce(own, op) for op in ("sum", "max")]
    return found


def algorithm(name: str) -> Callable[[Any], Found]:
    return lambda comm: stepped(comm, name, LAYOUT, K, STEPS, cupy.asarray)


def trained(model: Any, optimizer: Any, rank: int) -> Found:
    for step in range(STEPS):
        drawn = torch.from_numpy(np.random.default_rng([rank, step, 7]).standard_normal((16, 64), np.float32))
        optimizer.zero_grad()
        model(drawn.to(WHERE)).square().mean().backward()
        optimizer.step()
    return [getattr(p, "to_local", lambda p=p: p)().detach().cpu().numpy() for p in model.parameters()]


def optimizer(comm: Any) -> Found:
    model = net(1, WIDTHS).to(WHERE)
    inner = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return trained(model, DistributedOptimizer(inner, density=0.05, comm=comm), comm.rank)


def hook(comm: Any) -> Found:
    bare = net(1, WIDTHS).to(WHERE)
    model, inner = DistributedDataParallel(bare, bucket_cap_mb=0.02), torch.optim.AdamW(bare.parameters(), 0.01)
    state = SparseState(bare.named_parameters(), density=0.05, comm=comm, dense_steps=1, optimizer=inner)
    model.register_comm_hook(state, sparse_hook)
    return trained(model, inner, comm.rank)


def sharded(comm: Any) -> Found:
    mesh = init_device_mesh(WHERE, (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    model = net(1, WIDTHS).to(WHERE)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh["shard"])
    inner = torch.optim.AdamW(model.parameters(), 0.01)
    replicas = comm if PRETENDED or comm.job.staged else mesh["replicate"]
    attach(model, replicas, optimizer=inner, density=0.05, dense_steps=1)
    return trained(model, inner, comm.rank)


def differs(one: Found, other: Found, exact: bool) -> str:
    if all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True)):
        return ""
    most = max(float(np.abs(np.asarray(a, float) - b).max()) for a, b in zip(one, other, strict=True))
    return "" if most < 1e-5 and not exact else f"differs by {most:.3g}"


def main() -> int:
    """Run all cases over NCCL and over gloo, and return how many of them are wrong, at most 1."""
    nccl, gloo = as_comm(dist.group.WORLD), as_comm(BESIDE)
    assert (nccl.job.staged, gloo.job.staged) == (False, True), "the group has no NCCL for CUDA"
    doors, wrong = {"optimizer": optimizer, "DDP's hook": hook, "FSDP2": sharded}, 0
    for name, case in ({"calls": calls} | {name: algorithm(name) for name in ALGORITHMS} | doors).items():
        since = perf_counter()
        try:
            moved = OnDevice if PRETENDED and name in doors else lambda comm: comm
            text = differs(case(moved(gloo)), case(moved(nccl)), exact=nccl.size == 2)  # gloo first: it loads kernels
        except Exception:
            text = traceback.format_exc()
        texts: list[str] = [""] * nccl.size
        dist.all_gather_object(texts, text, group=BESIDE)
        wrong += any(texts)
        if nccl.rank == 0:
            print(f"{name}: {max(texts) or 'agrees'} ({perf_counter() - since:.1f} s)", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")  # where ranks share a GPU
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if PRETENDED:
        fake_torch_nccl.over_gloo()
        dist.init_process_group("gloo")
    else:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timedelta(seconds=60))
    BESIDE = dist.new_group(backend="gloo")
    status = main()
    sys.stdout.flush()
    with suppress(Exception):
        dist.barrier(group=BESIDE)
    os._exit(status)  # without destroying communicators, which may wait for the other ranks
