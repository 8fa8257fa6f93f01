"""Trains under DistributedDataParallel with the hook in the ways that loops have; `test_ddp_habits` starts it.

    python -m torch.distributed.run --standalone --nproc-per-node 2 tests/training/ddp_habits_job.py FOLDER WAY ...

Every rank saves what it saw of each way in FOLDER/WAY-rank.pt, "-plain" where torch itself adds up, "-all" where the
hook sends everything, and "-sparse" where it does not.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.ddp import SparseState, sparse_hook

STEPS, PARTS = 30, 3
LARGEST = 0.1  # norm of a clipped gradient
HOW: dict[str, dict | None] = {
    "plain": None,
    "all": {"algorithm": "topka", "density": 1.0, "dense_steps": 0},
    "sparse": {"density": 0.05, "check_every": 1},
}


class Net(nn.Module):
    """Three layers. torch.compile does not look into what torch's own file of ``nn.Sequential`` does by itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1000 * number + dist.get_rank())
    x = torch.randn(16, 20, generator=draw)
    return x, x[:, :4].argmax(1)


def trained(way: str, options: dict | None) -> dict:
    """Train in a way of ``WAYS``; by torch's own allreduce if ``options`` is None."""
    net = Net()
    graph = {"static_graph": way == "static", "gradient_as_bucket_view": way == "static"}
    # torch.compile cuts graphs along buckets, of which it wants none smaller than DDP's first one
    ddp = DistributedDataParallel(net, bucket_cap_mb=25 if way == "compiled" else 0.005, **graph)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.5 if way == "clipped" else 0.3, momentum=0.5)
    state = None
    if options is not None:
        state = SparseState(net.named_parameters(), **options)
        ddp.register_comm_hook(state, sparse_hook)
    graphs = []  # what is compiled

    def compiled(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return aot_eager(graph, inputs)

    model = torch.compile(ddp, backend=compiled) if way == "compiled" else ddp
    saw: dict = {"losses": [], "sent": [], "norms": []}
    for number in range(STEPS):
        optimizer.zero_grad()
        parts = PARTS if way == "accumulated" else 1
        losses = []
        for part in range(parts):
            x, y = batch(number * parts + part)
            later = ddp.no_sync() if part < parts - 1 else nullcontext()
            cast = torch.autocast("cpu", torch.bfloat16) if way == "autocast" else nullcontext()
            with later:
                with cast:
                    loss = nn.functional.cross_entropy(model(x), y) / parts
                loss.backward()
            losses.append(loss.item())
        if way == "clipped":
            saw["norms"].append(nn.utils.clip_grad_norm_(net.parameters(), LARGEST).item())
        optimizer.step()
        saw["losses"].append(sum(losses))
        saw["sent"] += [state.report.traffic.sent] if state is not None else []
    saw |= {"steps": state.steps if state is not None else 0, "graphs": len(graphs)}
    return saw | {"parameters": torch.cat([p.detach().flatten() for p in net.parameters()])}


def main(folder: Path, ways: list[str]) -> None:
    dist.init_process_group("gloo")
    for way in ways:
        for how, options in HOW.items():
            torch.save(trained(way, options), folder / f"{way}-{how}-{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
