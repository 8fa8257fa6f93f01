"""Images a second in training, algorithm beside algorithm: the benchmark of ACP-SGD (Zhang et al., ICDCS 2023).

mpiexec -n 4 python train/throughput.py --algos dense powersgd acpsgd --rank 4 --batch-size 16 --image-size 32
mpiexec -n 4 python train/throughput.py --algos dense topka oktopk --plans sparse secopa partial greedy best

Synthetic images, but real forward and backward passes, reductions with error feedback, and updates, of one model. After
warming up, algorithms and plans take turns, one round each, so that a busy machine is busy for all. Plans are made of a
profile of the first algorithm's steps, and predicted seconds stand beside the measured ones.
"""

from __future__ import annotations

import json
import statistics
import time
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.cli import values
from sparse_mpi.cli.options import SPELLINGS
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.values import Parser, integer, positive, record, share
from sparse_mpi.comm import Comm
from sparse_mpi.optim import broadcast_parameters
from sparse_mpi.planning.base import PlannedPart, Profile
from sparse_mpi.planning.planners import PLANNERS, best
from sparse_mpi.planning.store import algorithm_of
from sparse_mpi.planning.timeline import simulate
from sparse_mpi.reduction.arguments import make_algorithm, spelled, takes
from sparse_mpi.training.reduction import GradientReduction
from sparse_train.models.vision import VGG16
from sparse_train.options.arguments import DEVICES
from sparse_train.ranks.device import choose, finish
from sparse_train.ranks.job import agreed, run, threads_per_rank
from sparse_train.records.metrics import Stamps
from sparse_train.trainer.planning import Profiler

CLASSES = 10
MODELS: dict[str, Callable[[], nn.Module]] = {"vgg16": lambda: VGG16(CLASSES)}
NAMED = PLANNERS | {"best": best}


class Workshop:
    """One model that the candidates train in turns, and the batch it is trained on."""

    def __init__(self, args: Namespace, comm: Comm) -> None:
        self.device = choose(args.device, comm)
        torch.manual_seed(args.seed)
        self.model, self.comm, self.args = MODELS[args.model]().to(self.device), comm, args
        broadcast_parameters(self.model.state_dict(), comm=comm)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, fused=True)
        data = torch.Generator().manual_seed(args.seed + comm.rank)
        images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, generator=data)
        labels = torch.randint(CLASSES, (args.batch_size,), generator=data)
        self.images, self.labels = images.to(self.device), labels.to(self.device)
        self.candidates: dict[str, Candidate] = {}

    def enter(self, name: str, algorithm: Algorithm, predicted: float | None = None) -> None:
        """Add a candidate of that name; with --overlap, two, of which the second overlaps."""
        self.candidates[name] = Candidate(self, algorithm, predicted)
        if self.args.overlap:
            self.candidates[f"{name}, overlap"] = Candidate(self, algorithm, predicted, overlap=True)


class Candidate:
    """A way to reduce gradients, with a residual of its own that waits while other candidates have their turn.

    Args:
        workshop: has the model, the batch and the options.
        algorithm: of all its buckets.
        predicted: seconds of a step by a profile, or None.
        overlap: whether to reduce while the backward pass still runs.
    """

    def __init__(
        self, workshop: Workshop, algorithm: Algorithm, predicted: float | None = None, overlap: bool = False
    ) -> None:
        self.workshop, self.predicted, args = workshop, predicted, workshop.args
        self.reduction = GradientReduction(
            workshop.model.parameters(),
            density=args.density,
            comm=workshop.comm,
            algorithm=algorithm,
            bucket_cap_mb=args.bucket_mb if args.overlap else None,
            overlap=overlap,
        )
        self.reduction.close()
        self.rates: list[float] = []  # images/s over all ranks, one a round
        self.seconds: list[float] = []  # of this rank's steps
        self.exposed: list[float] = []  # seconds of them after the backward pass, until all is reduced
        self.sent: list[int] = []  # bytes of this rank, control included, one a step

    def step(self) -> Stamps:
        """Compute, reduce and update once; return when each phase ended."""
        work, start = self.workshop, time.perf_counter()
        work.optimizer.zero_grad()
        loss = cross_entropy(work.model(work.images), work.labels)
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        self.reduction.synchronize()
        reduced = time.perf_counter()
        work.optimizer.step()
        return Stamps(start, forward, backward, reduced, time.perf_counter())

    def round(self, steps: int, bar: Bar) -> None:
        """Take ``steps`` steps; measure from when all ranks are there until all are done."""
        self.reduction.open()
        self.workshop.comm.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            stamps = self.step()
            traffic = self.reduction.report.traffic
            self.sent.append(traffic.sent + traffic.control)
            self.seconds.append(stamps.updated - stamps.start)
            self.exposed.append(stamps.reduced - stamps.backward)
            bar.update()
        finish(self.workshop.device)
        self.workshop.comm.barrier()
        images = steps * len(self.workshop.images) * self.workshop.comm.size
        self.rates.append(images / (time.perf_counter() - start))
        self.reduction.close()

    def warm_up(self, steps: int, bar: Bar, profiler: Profiler | None = None) -> None:
        """Take ``steps`` steps that are not measured, but may be profiled."""
        self.reduction.open()
        for _ in range(steps):
            stamps = self.step()
            if profiler is not None:
                profiler.add(stamps)
            bar.update()
        self.reduction.close()

    def result(self) -> dict[str, Any]:
        """Return what was measured, in the units of its keys; collective."""
        medians = [statistics.median(self.seconds), statistics.median(self.exposed)]
        step, exposed = self.workshop.comm.allreduce(np.array(medians), control=True) / self.workshop.comm.size
        return {
            "images_per_second": statistics.mean(self.rates),
            "plus_minus": 1.96 * statistics.pstdev(self.rates),
            "bytes_per_step_and_rank": statistics.mean(self.sent),
            "step_seconds": float(step),
            "exposed_seconds": float(exposed),
            "predicted_seconds": self.predicted,
            "rounds": self.rates,
        }


def main(args: Namespace, comm: Comm) -> None:
    """Measure, and print on rank 0."""
    named = {text: spelled(text) for text in args.algos}
    writer = args.json if comm.rank == 0 else None
    agreed(comm, lambda: writer.touch() if writer else None)
    args.threads = args.threads or threads_per_rank(comm)
    torch.set_num_threads(args.threads)
    workshop = Workshop(args, comm)
    for text, (name, options) in named.items():
        rank = {"rank": args.rank} if args.rank and takes(name, "rank") else {}
        algorithm = make_algorithm(name, rank | options)
        agreed(comm, lambda text=text, algorithm=algorithm: workshop.enter(text, algorithm))  # type: ignore[misc]

    entries = len(workshop.candidates) + len(args.plans)
    steps = entries * (args.warmup + args.rounds * args.iterations)
    with Bar(steps, "warm-up", comm.rank == 0 and args.progress, stay=True) as bar:
        profiler = Profiler(workshop.model) if args.plans else None
        for name, candidate in list(workshop.candidates.items()):
            bar.title(f"warm-up, {name}")
            candidate.warm_up(args.warmup, bar, profiler)
            if profiler is not None:
                profiler.close()
                add_plans(workshop, profiler.profile(args.density, comm, args.progress))
                profiler = None
        for name in args.plans:
            bar.title(f"warm-up, plan {name}")
            workshop.candidates[f"plan {name}"].warm_up(args.warmup, bar)
        for number in range(1, args.rounds + 1):
            for name, candidate in workshop.candidates.items():
                bar.title(f"round {number}/{args.rounds}, {name}")
                candidate.round(args.iterations, bar)

    results = {name: candidate.result() for name, candidate in workshop.candidates.items()}
    if comm.rank == 0:
        print(report(results, args, comm.size))
    if writer:
        write(results, args, comm.size)


def add_plans(workshop: Workshop, profile: Profile) -> None:
    """Add the plans that are asked for as candidates, and set what the profile predicts of the algorithms."""
    everything = tuple(range(len(profile.tensors)))
    for option in profile.options:
        if option.name in workshop.candidates:
            part = PlannedPart(option.name, everything, profile.size if option.dense else profile.k)
            workshop.candidates[option.name].predicted = simulate(profile, [part]).step
    for name in workshop.args.plans:
        plan = NAMED[name](profile, False, False)
        workshop.enter(f"plan {name}", algorithm_of(plan), plan.predicted)


def report(results: dict[str, dict[str, Any]], args: Namespace, ranks: int) -> str:
    """Return the results as a table, in which all are compared with the first one."""
    first = next(iter(results))
    size, wide = f"{args.image_size} x {args.image_size}", max(map(len, [*results, "algorithm"]))
    lines = [
        f"{args.model}, {ranks} ranks, {args.batch_size} images of {size} a rank and step; "
        f"mean +- 1.96 sigma of {args.rounds} rounds of {args.iterations} steps",
        f"{'algorithm':<{wide}} {'images/s':>17} {f'/ {first}':>9} {'KB/step and rank':>17} {'s/step':>8} "
        f"{'exposed':>8} {'predicted':>9} {'off':>7}",
    ]
    for name, r in results.items():
        rate = f"{r['images_per_second']:.1f} +- {r['plus_minus']:.1f}"
        ratio = r["images_per_second"] / results[first]["images_per_second"]
        predicted, measured = r["predicted_seconds"], r["step_seconds"]
        forecast = f"{predicted:9.4f} {predicted / measured - 1:+7.1%}" if predicted else f"{'-':>9} {'-':>7}"
        lines.append(
            f"{name:<{wide}} {rate:>17} {ratio:9.2f} {r['bytes_per_step_and_rank'] / 1e3:17.1f} {measured:8.4f} "
            f"{r['exposed_seconds']:8.4f} {forecast}"
        )
    return "\n".join(lines)


def write(results: dict[str, dict[str, Any]], args: Namespace, ranks: int) -> None:
    """Write all numbers as JSON, with what they were measured on."""
    options = {name: value for name, value in vars(args).items() if name != "json"}
    record = {"ranks": ranks, "options": options, **provenance(), "algorithms": results}
    args.json.write_text(json.dumps(record, indent=1) + "\n")


def parse(argv: Sequence[str] | None = None) -> Namespace:
    """Return the options as attributes."""
    parser = Parser(description=__doc__)

    def add(option: str, default: int | None, metavar: str, text: str) -> None:
        shown = text if default is None else f"{text} (default: {default})"
        parser.add_argument(option, type=integer(1), default=default, metavar=metavar, help=shown)

    parser.add_argument("--model", choices=list(MODELS), default="vgg16", help="what is trained (default: vgg16)")
    text = f"the first is what the others are compared with; {SPELLINGS} (default: dense powersgd acpsgd)"
    algos = ["dense", "powersgd", "acpsgd"]
    parser.add_argument("--algos", nargs="+", type=values.algorithm, default=algos, metavar="NAME", help=text)
    text = "planners, whose plans take part too; the profile is of the first algorithm's warm-up (default: none)"
    parser.add_argument("--plans", nargs="+", choices=list(NAMED), default=[], metavar="NAME", help=text)
    text = "each algorithm takes part twice, in buckets: reducing after the backward pass, and while it runs"
    parser.add_argument("--overlap", action="store_true", help=text)
    text = "10^6 bytes of gradients a bucket, with --overlap (default: 25)"
    parser.add_argument("--bucket-mb", type=positive, default=25.0, metavar="MB", help=text)
    add("--rank", None, "R", "of factors, for low-rank algorithms (default: their own, 4)")
    text = "share of the entries that sparse algorithms send (default: 0.01)"
    parser.add_argument("--density", type=share, default=0.01, metavar="D", help=text)
    add("--batch-size", 16, "B", "images a rank and step")
    add("--image-size", 32, "S", "their height and width")
    add("--warmup", 10, "N", "steps of each algorithm that are not measured")
    add("--rounds", 5, "N", "rounds, of which mean and deviation are taken")
    add("--iterations", 10, "N", "steps a round")
    add("--threads", None, "N", "threads a rank computes with (default: as many as it has CPUs)")
    text = "compute there; auto takes GPUs where all ranks have one, and CuPy (default: auto)"
    parser.add_argument("--device", choices=DEVICES, default="auto", help=text)
    parser.add_argument("--seed", type=integer(0), default=0, metavar="S", help="of weights and images (default: 0)")
    text = "also write all numbers, with what they were measured on"
    parser.add_argument("--json", type=record, metavar="FILE", help=text)
    parser.add_argument("--progress", action=BooleanOptionalAction, default=True, help="show a bar (default: yes)")
    args = parser.parse_args(argv)
    if args.overlap and args.plans:
        parser.error("argument --overlap: plans are for the whole gradient; leave out --plans or --overlap")
    if args.rank and not any(takes(spelled(text)[0], "rank") for text in args.algos):
        parser.error(f"argument --rank: has no effect on {', '.join(args.algos)}; leave it out")
    args.algos, args.plans = (list(dict.fromkeys(names)) for names in (args.algos, args.plans))
    return args


if __name__ == "__main__":
    run(main, parse())
