"""Images a second in training, algorithm beside algorithm: the benchmark of ACP-SGD (Zhang et al., ICDCS 2023).

mpiexec -n 4 python train/throughput.py --algos dense powersgd acpsgd --rank 4 --batch-size 16 --image-size 32

Synthetic images, but real forward and backward passes, reductions with error feedback, and updates. Every algorithm
trains a model of its own; after warming up they take turns, one round each, so that a busy machine is busy for all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from argparse import ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from job import Refused, agreed, run, threads_per_rank
from models.vgg import VGG16
from replicas import FlatGradient, broadcast
from sparse_mpi import ALGORITHMS, SparseAllreduce
from sparse_mpi.arguments import takes
from sparse_mpi.comm import Comm
from sparse_mpi.provenance import provenance

CLASSES = 10
MODELS: dict[str, Callable[[], nn.Module]] = {"vgg16": lambda: VGG16(CLASSES)}


class Contestant:
    """A model on its way, with its gradient reduced by one algorithm."""

    def __init__(self, name: str, args: Namespace, comm: Comm) -> None:
        options = {"rank": args.rank} if args.rank and takes(name, "rank") else {}
        torch.manual_seed(args.seed)
        self.model = MODELS[args.model]()
        broadcast(self.model, comm)
        shapes = [tuple(p.shape) for p in self.model.parameters()]
        self.reducer = SparseAllreduce(
            shapes, density=args.density, comm=comm, algorithm=name, in_place=True, **options
        )
        self.gradient = FlatGradient(self.model, keep=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, fused=True)
        self.comm = comm
        self.rates: list[float] = []  # images/s over all ranks, one a round
        self.sent: list[int] = []  # bytes of this rank, control included, one a step

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Forward, backward, reduce, update."""
        cross_entropy(self.model(images), labels).backward()
        self.gradient.check()
        total = self.reducer.step(self.gradient.flat)
        with self.gradient.mean(total, self.comm.size):
            self.optimizer.step()

    def round(self, images: Tensor, labels: Tensor, steps: int, bar: tqdm) -> None:
        """Take ``steps`` steps, and the time of them from when all ranks are there until all are done."""
        self.comm.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self.step(images, labels)
            assert self.reducer.report is not None  # after a step
            traffic = self.reducer.report.traffic
            self.sent.append(traffic.sent + traffic.control)
            bar.update()
        self.comm.barrier()
        self.rates.append(steps * len(images) * self.comm.size / (time.perf_counter() - start))

    def result(self) -> dict[str, Any]:
        """What was measured, in the units of its keys."""
        return {
            "images_per_second": statistics.mean(self.rates),
            "plus_minus": 1.96 * statistics.pstdev(self.rates),
            "bytes_per_step_and_rank": statistics.mean(self.sent),
            "rounds": self.rates,
        }


def main(args: Namespace, comm: Comm) -> None:
    """Measure, and print on rank 0."""
    if args.rank and not any(takes(name, "rank") for name in args.algos):
        raise Refused(f"--rank has no effect on {', '.join(args.algos)}; leave it out")
    writer = args.json if comm.rank == 0 else None
    agreed(comm, lambda: writer.touch() if writer else None)
    args.threads = args.threads or threads_per_rank(comm)
    torch.set_num_threads(args.threads)
    data = torch.Generator().manual_seed(args.seed + comm.rank)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, generator=data)
    labels = torch.randint(CLASSES, (args.batch_size,), generator=data)

    contestants = agreed(comm, lambda: {name: Contestant(name, args, comm) for name in args.algos})
    steps = len(contestants) * (args.warmup + args.rounds * args.iterations)
    with tqdm(total=steps, disable=comm.rank != 0 or not args.progress, unit="step") as bar:
        for name, contestant in contestants.items():
            bar.set_description(f"warm-up, {name}")
            for _ in range(args.warmup):
                contestant.step(images, labels)
                bar.update()
        for number in range(1, args.rounds + 1):
            for name, contestant in contestants.items():
                bar.set_description(f"round {number}/{args.rounds}, {name}")
                contestant.round(images, labels, args.iterations, bar)

    results = {name: contestant.result() for name, contestant in contestants.items()}
    if comm.rank == 0:
        print(report(results, args, comm.size))
    if writer:
        write(results, args, comm.size)


def report(results: dict[str, dict[str, Any]], args: Namespace, ranks: int) -> str:
    """The results as a table, with the first algorithm as the measure of the others."""
    first = next(iter(results))
    size = f"{args.image_size} x {args.image_size}"
    lines = [
        f"{args.model}, {ranks} ranks, {args.batch_size} images of {size} a rank and step; "
        f"mean +- 1.96 sigma of {args.rounds} rounds of {args.iterations} steps",
        f"{'algorithm':<10} {'images/s':>17} {f'/ {first}':>9} {'KB/step and rank':>17}",
    ]
    for name, r in results.items():
        rate = f"{r['images_per_second']:.1f} +- {r['plus_minus']:.1f}"
        ratio = r["images_per_second"] / results[first]["images_per_second"]
        lines.append(f"{name:<10} {rate:>17} {ratio:9.2f} {r['bytes_per_step_and_rank'] / 1e3:17.1f}")
    return "\n".join(lines)


def write(results: dict[str, dict[str, Any]], args: Namespace, ranks: int) -> None:
    """All numbers, with what they were measured on, as JSON."""
    options = {name: value for name, value in vars(args).items() if name != "json"}
    record = {"ranks": ranks, "options": options, **provenance(), "algorithms": results}
    args.json.write_text(json.dumps(record, indent=1) + "\n")


def count(text: str) -> int:
    """A whole number of at least 1, from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return int(text)


def parse(argv: Sequence[str] | None = None) -> Namespace:
    """The options as attributes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def add(option: str, default: int | None, metavar: str, text: str) -> None:
        shown = text if default is None else f"{text} (default: {default})"
        parser.add_argument(option, type=count, default=default, metavar=metavar, help=shown)

    parser.add_argument("--model", choices=list(MODELS), default="vgg16", help="what is trained (default: vgg16)")
    text = "what reduces gradients; the first is what the others are compared with (default: dense powersgd acpsgd)"
    algos = ["dense", "powersgd", "acpsgd"]
    parser.add_argument("--algos", nargs="+", choices=list(ALGORITHMS), default=algos, metavar="NAME", help=text)
    add("--rank", None, "R", "of factors, for low-rank algorithms (default: their own, 4)")
    text = "share of the entries that sparse algorithms send (default: 0.01)"
    parser.add_argument("--density", type=float, default=0.01, metavar="D", help=text)
    add("--batch-size", 16, "B", "images a rank and step")
    add("--image-size", 32, "S", "their height and width")
    add("--warmup", 10, "N", "steps of each algorithm that are not measured")
    add("--rounds", 5, "N", "rounds, of which mean and deviation are taken")
    add("--iterations", 10, "N", "steps a round")
    add("--threads", None, "N", "threads a rank computes with (default: as many as it has CPUs)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of weights and images (default: 0)")
    text = "also write all numbers, with what they were measured on"
    parser.add_argument("--json", type=Path, metavar="FILE", help=text)
    parser.add_argument("--progress", action=BooleanOptionalAction, default=True, help="show a bar (default: yes)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse())
