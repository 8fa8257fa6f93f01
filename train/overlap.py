r"""Measure how long communication holds up a training step: sparse sums beside torch's dense DDP, on three models.

    python -m sparse_mpi run -n 4 train/overlap.py --models small
    python -m sparse_mpi bench network --ranks 4 --rate 1gbit -- \
        train/overlap.py --models vgg16 --network 1gbit --json overlap.json

The backward pass is emulated, as on a device of each rank's own: the rank sleeps, and wakes to hand out the gradients
of a layer, normal and fresh in each step, at a time in proportion to the multiplications before it. The update
is torch's SGD with momentum. `alone` communicates nothing. `exposed` is a step less the one of `alone` in the same
round, from a common start to the last rank's end; `cpu` is the processor time of a rank in it, all threads together.
All ways take turns. DDP adds over gloo. A record that is there already is continued.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from itertools import accumulate
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.cli import values
from sparse_mpi.cli.progress import progress
from sparse_mpi.cli.records import add_measured
from sparse_mpi.cli.values import Parser
from sparse_mpi.comm import Comm
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.reduction.arguments import algorithm_spelled
from sparse_train.models.vision import VGG16, ResNet
from sparse_train.ranks import job
from sparse_train.records.comparison import arguments, check_way

ALONE, DDP = "alone", "ddp"
WARM_UP = 6  # steps of each way, in which DDP orders its buckets and reductions begin to overlap
START = 4e-3  # seconds in which all ranks learn when a step starts
SLACK = 1 << 20  # gradients that are drawn beyond a model's, so that steps begin at different ones
APART = 2e-3  # seconds by which a gradient may come early
WAYS = (DDP, "dense", "elect", "oktopk")
ONE_BUCKET, NO_OVERLAP = "--one-bucket", "--no-overlap"


def small() -> nn.Module:
    return nn.Sequential(*[nn.Linear(100, 100) for _ in range(100)])


# Each with an input
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vgg16": (VGG16, (1, 3, 32, 32)),
    "resnet50": (lambda: ResNet(50, 1000, image_size=224), (1, 3, 224, 224)),
    "small": (small, (1, 100)),
}


class Emulated(nn.Module):
    """Has the parameters of a model, and a backward pass that sleeps for ``seconds`` in all."""

    def __init__(self, model: str, seconds: float, pool: Tensor) -> None:
        super().__init__()
        shapes, shares = layers_of(model)
        self._layers = [[nn.Parameter(torch.zeros(shape)) for shape in of] for of in shapes]
        self.tensors = nn.ParameterList([p for layer in self._layers for p in layer])
        self._sizes = [[p.numel() for p in layer] for layer in self._layers]
        self._ends = list(accumulate(map(sum, self._sizes)))
        self._due = [seconds * share for share in accumulate(reversed(shares))][::-1]  # seconds since its start
        self._pool, self.offset, self._began = pool, 0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self._layers):
            x = Timed.apply(x, self, number, *layer)  # type: ignore[no-untyped-call]
        self._began = perf_counter()
        return x.sum()

    def gradients(self, number: int) -> list[Tensor]:
        """Return the gradients of a layer, at the time at which they come."""
        early = self._began + self._due[number] - perf_counter()
        if early > (APART if number else 0):  # each sleep costs processor time
            sleep(early)
        sizes, end = self._sizes[number], self.offset + self._ends[number]
        parts = self._pool[end - sum(sizes) : end].split(sizes)
        return [part.clone().view(p.shape) for part, p in zip(parts, self._layers[number], strict=True)]


class Timed(torch.autograd.Function):
    """The pass of a layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, model: Emulated, number: int, *_: Tensor) -> Tensor:
        ctx.model, ctx.number = model, number
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return grad, None, None, *ctx.model.gradients(ctx.number)


def layers_of(model: str) -> tuple[list[list[torch.Size]], list[float]]:
    """Return the shapes of each layer's parameters, and the layer's share of the model's multiplications."""
    make, shape = MODELS[model]
    work: dict[nn.Module, int] = {}

    def count(layer: nn.Module, _: Any, out: Tensor) -> None:
        work[layer] = sum(p.numel() for p in layer.parameters()) * out.numel() // out.shape[1]

    with torch.device("meta"):
        made = make()
        layers = [layer for layer in made.modules() if any(True for _ in layer.parameters(recurse=False))]
        for layer in layers:
            layer.register_forward_hook(count)
        made.eval()(torch.empty(shape))
    total = sum(work.values())
    return [[p.shape for p in layer.parameters()] for layer in layers], [work[layer] / total for layer in layers]


class Way:
    """A way to train a model, as its step."""

    def __init__(self, name: str, model: Emulated, comm: Comm) -> None:
        self.model = model
        self._trained: nn.Module = model
        self._optimizer: Any = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        self.buckets: int | None = None
        _, algorithm, *options = arguments(name)
        if name == DDP:
            self._trained = DistributedDataParallel(model)
        elif name != ALONE:
            given: dict[str, Any] = {"bucket_cap_mb": None} if ONE_BUCKET in options else {}
            given |= {"algorithm": algorithm_spelled(algorithm), "overlap": NO_OVERLAP not in options}
            self._optimizer = DistributedOptimizer(self._optimizer, model.named_parameters(), comm=comm, **given)
            self.buckets = len(self._optimizer.reduction.buckets)
        self._x = torch.zeros(1, requires_grad=True)

    def step(self) -> None:
        self._optimizer.zero_grad()
        self._trained(self._x).backward()
        self._optimizer.step()


def timed(step: Callable[[], None], comm: Comm) -> tuple[float, float]:
    """Return the seconds of a step until its last rank is done, and the mean of the ranks' processor time."""
    start = float(comm.allreduce(np.array([perf_counter()]), "max", control=True)[0]) + START  # one clock for all
    sleep(max(0.0, start - perf_counter()))
    used = process_time()
    step()
    spent = np.array([perf_counter() - start, process_time() - used])
    seconds, _ = comm.allreduce(spent, "max", control=True).tolist()
    return seconds, float(comm.allreduce(spent, control=True)[1]) / comm.size


def measured(model: str, args: argparse.Namespace, comm: Comm) -> dict[str, Any]:
    """Return the medians of the ways, in milliseconds."""
    rest = comm.duplicate(yield_cpu=True)  # waits between steps take no core from ranks that are still in theirs
    size = sum(shape.numel() for shapes in layers_of(model)[0] for shape in shapes)
    pool = torch.randn(size + SLACK, generator=torch.Generator().manual_seed(1 + comm.rank))
    ways = {name: Way(name, Emulated(model, args.backward / 1e3, pool), comm) for name in (ALONE, *args.ways)}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    draw = np.random.default_rng(2)
    for step in progress(range(WARM_UP + args.steps), f"{model}, steps of {len(ways)} ways", comm.rank == 0):
        offset = int(draw.integers(SLACK))
        for place in draw.permutation(len(ways)).tolist():
            name = list(ways)[place]
            ways[name].model.offset = offset
            spent = timed(ways[name].step, rest)
            if step >= WARM_UP:
                taken[name].append(spent)
    tensors = len(list(ways[ALONE].model.parameters()))
    found: dict[str, Any] = {"model": model, "n": size, "tensors": tensors, "backward": args.backward, "ways": {}}
    base = 1e3 * np.array(taken[ALONE])
    for name, of in taken.items():
        ms = 1e3 * np.array(of)
        exposed = np.quantile(ms[:, 0] - base[:, 0], (0.5, 0.25, 0.75))
        step_ms, cpu = np.median(ms, 0)
        numbers = {"step": step_ms, "exposed": exposed[0], "quartiles": exposed[1:].tolist(), "cpu": cpu}
        found["ways"][name] = {
            key: [round(x, 2) for x in value] if isinstance(value, list) else round(float(value), 2)
            for key, value in numbers.items()
        } | {"buckets": ways[name].buckets}
    return found


def check(text: str) -> None:
    if text != DDP:
        check_way(text, (ONE_BUCKET, NO_OVERLAP))


def measure(args: argparse.Namespace, comm: Comm) -> None:
    found = []
    for model in args.models:
        row = {"network": args.network, "ranks": comm.size, **measured(model, args, comm)}
        found.append(row | {"load": round(os.getloadavg()[0], 1)})
        if comm.rank == 0:
            print(f"{model}, {args.network}: {row['n']:,} entries in {row['tensors']} tensors")
            for name, of in row["ways"].items():
                print(f"{name:18} {of['step']:8.1f} ms, {of['exposed']:8.1f} exposed, {of['cpu']:8.1f} cpu", flush=True)
    if comm.rank == 0 and args.json:
        add_measured(args.json, found, "network", "model")


def main() -> None:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="layers of these (default: all)")
    text = f"{DDP}, or an algorithm, with :one-bucket or :no-overlap (default: {' '.join(WAYS)})"
    add("--ways", type=values.checked(check, "elect"), nargs="+", default=list(WAYS), metavar="WAY", help=text)
    text = "milliseconds (1e-3 seconds) of a backward pass (default: 100)"
    add("--backward", type=values.positive, default=100.0, metavar="MS", help=text)
    text = f"of each way, after {WARM_UP} more (default: 10)"
    add("--steps", type=values.integer(1), default=10, metavar="N", help=text)
    add(
        "--network", type=values.text, default="shared memory", metavar="NAME", help="its name (default: shared memory)"
    )
    add("--json", type=values.record, metavar="FILE", help="the record to add to (default: none is written)")
    torch.set_num_threads(1)
    job.run(job.in_process_group(measure), parser.parse_args())


if __name__ == "__main__":
    main()
