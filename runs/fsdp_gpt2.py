"""Train GPT-2 tiny with sparse sums over replicas, each of them sharded by FSDP2, or whole.

    python -m torch.distributed.run --nproc-per-node 4 runs/fsdp_gpt2.py --shards 2 --seed 31 --json fsdp.jsonl
    python -m torch.distributed.run --nproc-per-node 2 runs/fsdp_gpt2.py --shards 1 --seed 31 --json fsdp.jsonl
    python -m torch.distributed.run --nproc-per-node 2 runs/fsdp_gpt2.py --shards 1 --whole --seed 31 --json fsdp.jsonl

Replicas of two shards have two processes with half of the batch each, so that all learn from the same batches. A
replica of one shard is reduced unit by unit, as theirs are; --whole has no units, but the hook of DDP and one bucket.
--density 1 is dense. A line of the file is a run. `--plot lanes.svg` draws who talks to whom.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.cli.progress import progress
from sparse_mpi.cli.records import provenance
from sparse_mpi.comm import as_comm
from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.fsdp import attach
from sparse_mpi_bench.figures.style import COLOURS, GREY, INK, PAPER, WIDTH, matplotlib, paper, write

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
BLOCKS = 34  # in the batch of a replica
LENGTH = 59  # tokens of a block: the text has 1,700, so that all parts of all batches have the same number
RATE = 3e-3


def trained(shards: int, whole: bool, density: float | None, seed: int, epochs: int) -> dict[str, Any]:
    """Train, and return the test loss after each epoch and the bytes that this rank has sent to other replicas."""
    from gpt2 import PROGRAM

    comm = as_comm()
    words = ["--tiny", "--seed", str(seed), "--batch-size", str(BLOCKS // shards), "--block", str(LENGTH)]
    task = PROGRAM.make(PROGRAM.parse(words), comm)
    model: Any = task.model
    if not whole:
        mesh = init_device_mesh("cpu", (comm.size // shards, shards), mesh_dim_names=("replicate", "shard"))
        for layer in (*model.model.transformer.h, model):
            fully_shard(layer, mesh=mesh["shard"])
        optimizer = torch.optim.AdamW(model.parameters(), RATE)
        reduction: Any = attach(model, mesh["replicate"].get_group(), density=density, optimizer=optimizer)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), RATE)
        reduction = SparseState(model.named_parameters(), density=density, optimizer=optimizer, dense_steps=0)
        task.model = DistributedDataParallel(model)
        task.model.register_comm_hook(reduction, sparse_hook)
    losses = []
    for epoch in progress(range(epochs), "epochs", comm.rank == 0):
        for batch in task.train(epoch):
            optimizer.zero_grad()
            task.forward_and_loss(batch)[0].backward()
            optimizer.step()
        with torch.no_grad():
            found = sum(task.forward_and_loss(batch)[1] for batch in task.test())
        dist.all_reduce(found)
        losses.append(round(task.scores(found)["loss"], 4))
    return {"losses": losses, "steps": epochs * task.steps, "sent": reduction.comm.traffic.sent}


def draw() -> Any:
    """Draw nodes as rows of shards, and between them the lanes of ranks with the same shard."""
    replicas, shards = 2, 4
    figure = paper(WIDTH, 2.6)
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set(xlim=(-1.6, shards + 2.2), ylim=(1.42, -0.42))
    boxed = matplotlib("patches").FancyBboxPatch
    for node in range(replicas):
        box = {"boxstyle": "round,pad=0.12", "facecolor": "none", "edgecolor": GREY, "linewidth": 0.8}
        axes.add_patch(boxed((-0.25, node - 0.2), shards - 0.5, 0.4, **box))
        axes.plot([0, shards - 1], [node, node], color=INK, linewidth=1)
        axes.text(-0.5, node, f"node {node}\na replica", ha="right", va="center")
        inside = "inside a node: dense,\nn numbers reduced and scattered"
        axes.text(shards - 0.4, node, inside, va="center", fontsize=7.5, color=INK)
        for shard in range(shards):
            style = {"marker": "s", "markersize": 26, "markeredgecolor": COLOURS[shard], "color": PAPER}
            axes.plot(shard, node, markeredgewidth=1.6, zorder=3, **style)
            axes.text(shard, node, f"shard\n{shard}", ha="center", va="center", fontsize=7, zorder=4)
    for shard in range(shards):
        axes.plot([shard, shard], [0.16, 0.84], color=COLOURS[shard], linewidth=1.8)
    words = "between nodes: sparse,\nk / 4 entries of n / 4 in each lane"
    axes.text(shards - 0.4, 0.5, words, va="center", fontsize=7.5, color=COLOURS[0])
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=2, help="processes of a replica (default: 2)")
    parser.add_argument("--whole", action="store_true", help="the hook of DDP on one process a replica, without units")
    parser.add_argument("--density", type=float, help="share of the entries (default: that of the optimizer)")
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--json", type=Path, help="file to add a line to")
    parser.add_argument("--plot", type=Path, help="draw who talks to whom, and do no more")
    args = parser.parse_args()
    if args.plot:
        return write(draw, args.plot)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run = trained(args.shards, args.whole, args.density, args.seed, args.epochs)
    if dist.get_rank() == 0:
        given = {"shards": args.shards, "whole": args.whole, "density": args.density, "seed": args.seed}
        print(json.dumps(given | run), flush=True)
        if args.json:
            with args.json.open("a") as file:
                file.write(json.dumps(given | run | {"provenance": provenance()}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
