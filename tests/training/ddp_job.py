"""Trains a small model under DistributedDataParallel in several ways; `test_ddp` starts it and looks at what it saves.

    python -m torch.distributed.run --standalone --nproc-per-node 3 tests/training/ddp_job.py FOLDER RUN ...
    mpiexec -n 3 python tests/training/ddp_job.py FOLDER RUN ...

Every rank saves what it saw of a run in FOLDER/RUN-rank.pt.
"""

from __future__ import annotations

import io
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint_files
from ddp_mistakes import mistakes, refused  # it lies beside this script
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from sparse_mpi import FEEDBACKS
from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.optim import DistributedOptimizer

STEPS = 6
SMALL, LARGE = 0.03, 25.0  # MB of a bucket, from the second step on: four buckets, or one


class Run:
    """A model, its optimizer and, unless ``options`` is None, the state of the hook.

    With "adamw" among the options that is the optimizer, whose second moments travel.
    """

    def __init__(self, options: dict | None, dtype: torch.dtype = torch.float32, bucket_cap_mb: float = SMALL) -> None:
        torch.manual_seed(1)
        layers = [torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten()]
        layers += [torch.nn.Linear(288, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
        self.net = torch.nn.Sequential(*layers).to(dtype)
        self.dtype, self.options = dtype, options
        self.adamw = dict(options or {}).get("adamw")
        corrected = options is not None and FEEDBACKS[options.get("feedback", "residual")]().traits.momentum > 0
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.0 if corrected else 0.9)
        if self.adamw:
            self.optimizer = torch.optim.AdamW(self.net.parameters(), **self.adamw)
        self.saw: dict = {"losses": [], "buckets": []}
        self.given = [torch.zeros_like(p, dtype=torch.float64) for p in self.net.parameters()]
        self.applied = [torch.zeros_like(p, dtype=torch.float64) for p in self.net.parameters()]
        self.wrap(bucket_cap_mb)

    def wrap(self, bucket_cap_mb: float) -> None:
        """The model in DDP, as if the job had begun anew."""
        self.model = DistributedDataParallel(self.net, bucket_cap_mb=bucket_cap_mb)
        if self.options is not None:
            options = {name: value for name, value in self.options.items() if name != "adamw"}
            adamw = {"optimizer": self.optimizer} if self.adamw else {}
            self.state = SparseState(self.net.named_parameters(), **options, **adamw)
            self.model.register_comm_hook(self.state, self._hook)

    def _hook(self, state, bucket):
        self.saw["buckets"].append(len(bucket.parameters()))
        return sparse_hook(state, bucket)

    def step(self, number: int) -> None:
        draw = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        x = torch.randn(16, 1, 8, 8, generator=draw).to(self.dtype)
        y = torch.randint(10, (16,), generator=draw)
        parameters = list(self.net.parameters())
        for kept, own in zip(self.given, torch.autograd.grad(cross_entropy(self.net(x), y), parameters), strict=True):
            kept += own
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(x), y)
        loss.backward()
        for kept, parameter in zip(self.applied, parameters, strict=True):
            kept += parameter.grad
        self.optimizer.step()
        self.saw["losses"].append(loss.item())
        if self.options is not None:
            self.saw.setdefault("reports", []).append(told(self.state))

    def save(self) -> dict:
        """All that the run came to on this rank, each list flattened into one vector."""
        if self.options is not None:
            left = self.state.residuals()
            self.saw["residual"] = torch.cat([torch.from_numpy(left[n]) for n, _ in self.net.named_parameters()])
            self.saw["sent"] = self.state.comm.traffic.sent
        flat = {"parameters": list(self.net.parameters()), "given": self.given, "applied": self.applied}
        return self.saw | {name: torch.cat([x.detach().flatten() for x in parts]) for name, parts in flat.items()}


def straight(options: dict | None, dtype: torch.dtype = torch.float32, bucket_cap_mb: float = SMALL) -> dict:
    run = Run(options, dtype, bucket_cap_mb)
    for number in range(STEPS):
        run.step(number)
    return run.save()


def with_moments(options: dict) -> dict:
    """In dense steps weights move by the mean over the root of the ranks' mean squares, worked out beside it."""
    run, (_, beta) = Run(options), options["adamw"]["betas"]
    ranks, rate = dist.get_world_size(), options["adamw"]["lr"]
    weights = [p.detach().clone() for p in run.net.parameters()]
    squares = [torch.zeros_like(p) for p in weights]
    for number in range(STEPS):
        before = [kept.clone() for kept in run.given]
        run.step(number)
        for p, square, given, old in zip(weights, squares, run.given, before, strict=True):
            gradient = (given - old).float()
            mean, moment = gradient.clone(), square.mul_(beta).add_((1 - beta) * gradient**2).clone()
            dist.all_reduce(mean)
            dist.all_reduce(moment)
            second = moment / (1 - beta ** (number + 1)) / ranks**2
            p.mul_(1 - rate * options["adamw"]["weight_decay"])
            p.sub_(rate * mean / ranks / (second.sqrt() + options["adamw"]["eps"]))
    return run.save() | {"expected": torch.cat([p.flatten() for p in weights])}


def told(state: SparseState) -> dict:
    """The report of a step, in plain values."""
    return state.report._asdict() | vars(state.report.traffic)


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


def embeddings(options: dict | None, make=torch.optim.Adagrad) -> dict:
    """Train `Tables`, by torch's own sums of sparse tensors if ``options`` is None."""
    net = Tables()
    model, optimizer = DistributedDataParallel(net), make(net.parameters(), lr=0.1)
    state = SparseState(net.named_parameters(), **options) if options is not None else None
    if state is not None:
        model.register_comm_hook(state, sparse_hook)
    assert state is None or state.report is None
    saw: dict = {"reports": []}
    for number in range(STEPS):
        draw = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        optimizer.zero_grad()
        cross_entropy(model(torch.randint(1000, (6, 3), generator=draw)), torch.arange(6) % 4).backward()
        optimizer.step()
        saw["reports"] += [told(state)] if state is not None else []
    saw["parameters"] = torch.cat([p.detach().flatten() for p in net.parameters()])
    saw["sparse"] = [p.grad.is_sparse for p in net.parameters()]
    if state is not None:
        saw |= {"sent": state.comm.traffic.sent, "residuals": sorted(state.residuals())}
        state.load_state_dict(state.state_dict())
        state.flush()
        saw["flushed"] = [p.grad is not None for p in net.parameters()]
    return saw


class Recomputed(torch.nn.Module):
    """Layers whose activations are computed anew in the backward pass, the middle one ``times`` over."""

    def __init__(self, times: int, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.middle, self.last = (torch.nn.Linear(*shape) for shape in ((20, 30), (30, 30), (30, 4)))
        self.times, self.reentrant = times, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self._anew(lambda y: torch.relu(self.first(y)), x.requires_grad_())  # reentrant needs that of an input
        for _ in range(self.times):
            x = self._anew(lambda y: torch.relu(self.middle(y)), x)
        return self.last(x)

    def _anew(self, layer, x: torch.Tensor) -> torch.Tensor:
        return layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)


def recomputed(options: dict | None, reentrant: bool | None, static: bool = True, **more: bool) -> dict:
    """Train `Recomputed`, by torch's own allreduce if ``options`` is None; without a static graph a layer is used once.

    DDP with a static graph hands over the buckets of the first step in a callback at the end of the backward pass.
    """
    net = Recomputed(2 if static else 1, reentrant)
    model = DistributedDataParallel(net, bucket_cap_mb=0.002, static_graph=static, **more)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if options is not None:
        model.register_comm_hook(SparseState(net.named_parameters(), **options), sparse_hook)
    for number in range(STEPS):
        draw = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(4, 20, generator=draw)), torch.arange(4)).backward()
        optimizer.step()
    return {"parameters": torch.cat([p.detach().flatten() for p in net.parameters()])}


def flushed(options: dict) -> dict:
    run = Run(options)
    for number in range(STEPS):
        run.step(number)
    run.state.flush()
    for kept, parameter in zip(run.applied, run.net.parameters(), strict=True):
        kept += parameter.grad
    run.optimizer.step()
    return run.save()


def filed(state: dict) -> dict:
    """``state`` as it comes back from `torch.load`, out of a checkpoint of torch.distributed that all ranks share."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    file, key = io.BytesIO(), f"hook of rank {dist.get_rank()}"
    torch.save(state, file)
    checkpoint_files.save({key: file.getvalue()}, checkpoint_id=folder[0])
    found = {key: b""}
    checkpoint_files.load(found, checkpoint_id=folder[0])
    return torch.load(io.BytesIO(found[key]))


def resumed(options: dict, at: int = 3, bucket_cap_mb: float = SMALL) -> dict:
    """Stopped after ``at`` steps; what follows knows nothing but what was saved. DDP has its first buckets again."""
    before = Run(options)
    for number in range(at):
        before.step(number)
    saved = [before.net.state_dict(), before.optimizer.state_dict(), filed(before.state.state_dict())]
    after = Run(options)
    after.given, after.applied = before.given, before.applied
    after.wrap(bucket_cap_mb)
    for part, state in zip([after.net, after.optimizer, after.state], saved, strict=True):
        part.load_state_dict(state)
    for number in range(at, STEPS):
        after.step(number)
    return after.save()


def by_optimizer(options: dict) -> dict:
    """Without DDP: the gradients of all parameters are reduced as one by `DistributedOptimizer`.

    The hook knows no optimizer, so that momentum stays where it is.
    """
    run = Run(None)
    run.model = run.net
    run.optimizer = DistributedOptimizer(
        run.optimizer,
        run.net.named_parameters(),
        comm=dist.group.WORLD,
        bucket_cap_mb=None,
        momentum="local",
        **options,
    )
    for number in range(STEPS):
        run.step(number)
    return run.save()


EXACT = {"density": 0.05, "selector": "exact"}  # the same entries in whatever order parameters stand
SPARSE = {"density": 0.05, "check_every": 1, "wire": "packed"}
MOMENTS = {"check_every": 1, "adamw": {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-4, "weight_decay": 0.1}}
RUNS = {
    "plain": lambda: straight(None),
    "dense": lambda: straight({"algorithm": "dense", "check_every": 1}),
    "everything": lambda: straight({"algorithm": "topka", "density": 1.0, "dense_steps": 0}),
    "oktopk": lambda: straight(SPARSE),
    "oktopk-resumed": lambda: resumed(SPARSE),
    "dgc": lambda: straight({"density": 0.05, "feedback": "dgc", "algorithm": "gtopk"}),
    "dgc-resumed": lambda: resumed({"density": 0.05, "feedback": "dgc", "algorithm": "gtopk"}),
    "ef21": lambda: straight({"density": 0.05, "feedback": "ef21"}),
    "ef21-resumed": lambda: resumed({"density": 0.05, "feedback": "ef21"}),
    "leaky": lambda: straight({"density": 0.05, "feedback": "leaky"}),
    "leaky-resumed": lambda: resumed({"density": 0.05, "feedback": "leaky"}),
    "moments": lambda: straight(MOMENTS),
    "moments-resumed": lambda: resumed(MOMENTS),
    "moments-dense": lambda: with_moments(MOMENTS | {"dense_steps": STEPS}),
    "flushed": lambda: flushed(SPARSE),
    "at once": lambda: straight(SPARSE | {"dense_steps": 0}),
    "other buckets": lambda: resumed(SPARSE, bucket_cap_mb=LARGE),
    "exact": lambda: straight(EXACT | {"algorithm": "topka", "dense_steps": 0}, bucket_cap_mb=LARGE),
    "optimizer": lambda: by_optimizer(EXACT | {"compression": "topka"}),
    "bfloat16": lambda: straight({"density": 0.05}, torch.bfloat16),
    "float16": lambda: straight({"density": 0.05}, torch.float16),
    "tables": lambda: embeddings(None),
    "tables-hook": lambda: embeddings({"algorithm": "dense"}),
    "tables-sparse": lambda: embeddings({"algorithm": "topka", "density": 0.1}),
    "mistakes": lambda: mistakes(Run, SPARSE),
}
ALL = {"algorithm": "topka", "density": 1.0, "dense_steps": 0}
GRAPHS: dict[str, dict] = {
    "static": {"reentrant": None},
    "static views": {"reentrant": None, "gradient_as_bucket_view": True},
    "static reentrant": {"reentrant": True},
    "static anew": {"reentrant": False},
    "reentrant": {"reentrant": True, "static": False},
    "anew": {"reentrant": False, "static": False},
}
RUNS["static-sparse"] = partial(recomputed, SPARSE, reentrant=None)
for graph, how in GRAPHS.items():
    RUNS[f"{graph}-plain"] = partial(recomputed, None, **how)
    RUNS[f"{graph}-all"] = partial(recomputed, ALL, **how)


def join(store: Path, rank: int, size: int) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(store), size), rank=rank, world_size=size)


def main(folder: Path, names: list[str]) -> None:
    if dist.is_torchelastic_launched():
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
