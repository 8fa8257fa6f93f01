"""Trains a small model under DistributedDataParallel in several ways; `test_ddp` starts it and looks at what it saves.

    python -m torch.distributed.run --standalone --nproc-per-node 3 tests/training/ddp_job.py FOLDER RUN ...
    mpiexec -n 3 python tests/training/ddp_job.py FOLDER RUN ...

Every rank saves what it saw of a run in FOLDER/RUN-rank.pt.
"""

from __future__ import annotations

import io
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from ddp_loops import ALL, EXACT, LOOPS, SGDS, TOP, before_the_group  # they lie beside this script
from ddp_mistakes import mistakes, refused
from ddp_order import ORDERS
from ddp_run import LARGE, SGD, SMALL, STEPS, Run, state_of, straight
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.optim import DistributedOptimizer


class Tables(torch.nn.Module):
    """Embeddings whose gradients are sparse tensors, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.others = (torch.nn.Embedding(1000, 8, sparse=True) for _ in range(2))
        self.bag, self.head = torch.nn.EmbeddingBag(50, 3, sparse=True, mode="sum"), torch.nn.Linear(11, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words = self.words(tokens).mean(1) * self.others(tokens).mean(1)
        return self.head(torch.cat([words, self.bag(tokens % 50)], 1))


def embeddings(options: dict | None) -> dict:
    """Train `Tables`, by torch's own sums of sparse tensors if ``options`` is None."""
    net = Tables()
    model, optimizer = DistributedDataParallel(net), torch.optim.Adagrad(net.parameters(), lr=0.1)
    state = None
    if options is not None:
        state = SparseState(net.named_parameters(), **options)
        model.register_comm_hook(state, sparse_hook)
    assert state is None or state.report is None
    saw: dict = {}
    sent = 0
    for number in range(STEPS):
        draw = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        optimizer.zero_grad()
        cross_entropy(model(torch.randint(1000, (6, 3), generator=draw)), torch.arange(6) % 4).backward()
        optimizer.step()
        sent += state.report.traffic.sent if state is not None else 0
    saw["parameters"] = torch.cat([p.detach().flatten() for p in net.parameters()])
    saw["sparse"] = [p.grad.is_sparse for p in net.parameters()]
    if state is not None:
        assert sent == state.comm.traffic.sent > 0  # reports are of buckets and tables together
        saw |= {"sent": sent, "residuals": sorted(state.residuals())}
        state.load_state_dict(state.state_dict())
        state.flush()
        assert not any(left.any() for left in state.residuals().values())
        saw["flushed"] = [p.grad is not None for p in net.parameters()]
    return saw


class Recomputed(torch.nn.Module):
    """Layers whose activations are computed anew in the backward pass, the middle one ``times`` over.

    One parameter has no elements.
    """

    def __init__(self, times: int, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.middle, self.last = (torch.nn.Linear(*shape) for shape in ((20, 30), (30, 30), (30, 4)))
        self.times, self.reentrant = times, reentrant
        self.none = torch.nn.Parameter(torch.ones(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.none.sum()
        x = self._anew(lambda y: torch.relu(self.first(y)), x.requires_grad_())  # reentrant needs that of an input
        for _ in range(self.times):
            x = self._anew(lambda y: torch.relu(self.middle(y)), x)
        return self.last(x)

    def _anew(self, layer, x: torch.Tensor) -> torch.Tensor:
        return layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)


def recomputed(
    options: dict | None,
    reentrant: bool | None,
    static: bool = True,
    compiled: bool = False,
    cast: bool = False,
    **more: bool | int,
) -> dict:
    """Train `Recomputed`, by torch's own allreduce if ``options`` is None; without a static graph a layer is used once.

    DDP with a static graph hands over the buckets of the first step in a callback at the end of the backward pass.
    """
    net = Recomputed(2 if static else 1, reentrant)
    ddp = DistributedDataParallel(net, **{"bucket_cap_mb": 0.002, "static_graph": static} | more)
    model = torch.compile(ddp, backend="aot_eager") if compiled else ddp
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if options is not None:
        ddp.register_comm_hook(state_of(net, options), sparse_hook)
    for number in range(STEPS):
        draw = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            loss = cross_entropy(model(torch.randn(4, 20, generator=draw)), torch.arange(4))
        loss.backward()
        optimizer.step()
    return {"parameters": torch.cat([p.detach().flatten() for p in net.parameters()])}


def filed(state: dict) -> dict:
    """``state`` as it comes back from `torch.load`."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()))


def resumed(options: dict, at: int = 3, bucket_cap_mb: float = SMALL, **how) -> dict:
    """Stopped after ``at`` steps; what follows knows nothing but what was saved. DDP has its first buckets again."""
    before = Run(options, **how)
    for number in range(at):
        before.step(number)
    saved = [before.net.state_dict(), before.optimizer.state_dict(), filed(before.state.state_dict())]
    after = Run(options, bucket_cap_mb=bucket_cap_mb, **how)
    after.given, after.applied = before.given, before.applied
    for part, state in zip([after.net, after.optimizer, after.state], saved, strict=True):
        part.load_state_dict(state)
    for number in range(at, STEPS):
        after.step(number)
    return after.save()


def by_optimizer(options: dict, momentum: str | None = "local", **how) -> dict:
    """Without DDP: the gradients of all parameters are reduced as one by `DistributedOptimizer`."""
    run = Run(None, **how)
    run.model = run.net
    run.optimizer = DistributedOptimizer(
        run.optimizer,
        run.net.named_parameters(),
        comm=dist.group.WORLD,
        bucket_cap_mb=None,
        momentum=momentum,
        **options,
    )
    for number in range(STEPS):
        run.step(number)
    return run.save()


SPARSE = {"density": 0.05, "check_every": 1, "wire": "packed"}
MOMENTS = {
    "make": partial(torch.optim.AdamW, lr=0.01, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.1),
    "give": lambda optimizer: optimizer,
}
CHECKED = {"check_every": 1}
PLAIN_SGD = {"make": partial(SGD, momentum=0.0)}  # for a rule that has the momentum
RUNS = {
    "plain": lambda: straight(None),
    "dense": lambda: straight({"algorithm": "dense", "check_every": 1}),
    "oktopk": lambda: straight(SPARSE),
    "oktopk-resumed": lambda: resumed(SPARSE),
    "dgc": lambda: straight({"density": 0.05, "feedback": "dgc"}, **PLAIN_SGD),
    "dgc-resumed": lambda: resumed({"density": 0.05, "feedback": "dgc"}, **PLAIN_SGD),
    "moments": lambda: straight(CHECKED, **MOMENTS),
    "moments-resumed": lambda: resumed(CHECKED, **MOMENTS),
    "at once": lambda: straight(SPARSE | {"dense_steps": 0}),
    "other buckets": lambda: resumed(SPARSE, bucket_cap_mb=LARGE),
    "exact": lambda: straight(TOP, bucket_cap_mb=LARGE),
    "optimizer": lambda: by_optimizer(EXACT | {"compression": "topka"}),
    "clipped": lambda: straight({"algorithm": "dense", "clip_norm": 0.01}, bucket_cap_mb=LARGE),
    "bfloat16": lambda: straight({"density": 0.05}, torch.bfloat16),
    "tables": lambda: embeddings(None),
    "tables-hook": lambda: embeddings({"algorithm": "dense"}),
    "tables-sparse": lambda: embeddings({"algorithm": "topka", "density": 0.1}),
    "mistakes": lambda: mistakes(Run, SPARSE, MOMENTS),
    **LOOPS,
    **ORDERS,
}
RUNS["momentum-optimizer"] = partial(by_optimizer, EXACT | {"algorithm": "topka"}, momentum=None, make=SGDS["momentum"])
GRAPHS: dict[str, dict] = {
    "static": {"reentrant": None, "gradient_as_bucket_view": True},
    "static reentrant": {"reentrant": True},
    "anew": {"reentrant": False, "static": False},
    "alone": {"reentrant": None, "static": False, "bucket_cap_mb": 1e-5},  # a bucket for each parameter
    "autocast": {"reentrant": None, "static": False, "cast": True},
    # torch.compile cuts graphs along buckets, of which it wants none smaller than DDP's first one
    "compiled": {"reentrant": None, "static": False, "compiled": True, "bucket_cap_mb": 25},
}
for graph, how in GRAPHS.items():
    RUNS[f"{graph}-plain"] = partial(recomputed, None, **how)
    RUNS[f"{graph}-all"] = partial(recomputed, ALL, **how)


def join(store: Path, rank: int, size: int) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(store), size), rank=rank, world_size=size)


def main(folder: Path, names: list[str]) -> None:
    if dist.is_torchelastic_launched():
        before_the_group()
        dist.init_process_group("gloo")
    else:
        from mpi4py import MPI

        rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        join(folder / "turned", size - 1 - rank, size)
        error = refused(lambda: SparseState(torch.nn.Linear(3, 2).named_parameters()))
        torch.save(error, folder / f"turned-{rank}.pt")
        dist.destroy_process_group()
        join(folder / "store", rank, size)
    for name in names:
        torch.save(RUNS[name](), folder / f"{name}-{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
