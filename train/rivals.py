r"""Train by ways of torch and by ours, one after the other: the score, bytes, processor time and seconds of each.

    python -m sparse_mpi run -n 4 train/rivals.py gpt2 --seeds 1 2 3 --json rivals.json -- --tiny
    python -m sparse_mpi bench draw rivals.json --plot rivals.svg
    python -m sparse_mpi bench network --ranks 4 --rate 1gbit -- train/rivals.py gpt2 --steps 12 -- --tiny

Torch's: `dense`, DDP; `half`, its hook for float16; `powersgd:rank=4`, its hook, dense in the first `start=10` steps;
`averaging:period=8`, its PeriodicModelAverager, local SGD. Ours: `hook`, `optimizer` and `local`, DiLoCo, with their
own arguments, such as `hook:algorithm=oktopk:density=0.01`. All are over gloo; `lr=` is the rate of one. Options
behind -- are the program's. MB: that a rank hands to gloo, a sum as a ring sends it. Wire: that its network sends,
and on this machine all that others send over its loopback.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from sparse_mpi.cli.progress import progress
from sparse_mpi.cli.records import provenance, write
from sparse_mpi.cli.values import WORDS, Parser, checked, integer, record
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.training.diloco import DiLoCo
from sparse_train.options.optimization import OPTIMIZERS, learning_rate
from sparse_train.ranks import job
from sparse_train.records.comparison import check_program
from sparse_train.trainer.loop import step_seed
from sparse_train.trainer.survivors import evaluate

WAYS = ("dense", "half", "powersgd:rank=4", "averaging:period=8", "hook", "local:sync_every=8")
HOOKS = {"dense": default_hooks.allreduce_hook, "half": default_hooks.fp16_compress_hook}
WARM_UP = 4  # steps that are not timed


class Way:
    """A model, its optimizer, and what brings ranks together: a hook of DDP, or a function behind each step."""

    def __init__(self, kind: str, model: Any, optimizer: Any, clip_norm: float | None, **options: Any) -> None:
        self.model, self.optimizer = model, optimizer
        self._ours: Any = None
        self._clip_norm = None if kind in ("hook", "optimizer") else clip_norm
        self._after: Callable[[], object] = lambda: None
        if kind == "averaging":
            averager = PeriodicModelAverager(**options)
            self._after = lambda: averager.average_parameters(model.parameters())
        elif kind == "local":
            outer = torch.optim.SGD(
                model.parameters(), options.pop("outer_lr", 1.0), options.pop("outer_momentum", 0.0)
            )
            self._ours = DiLoCo(model, optimizer, outer, comm=as_comm(dist.group.WORLD), **options)
        elif kind == "optimizer":
            options |= {"comm": as_comm(dist.group.WORLD), "clip_norm": clip_norm}
            self.optimizer = DistributedOptimizer(optimizer, model.named_parameters(), **options)
            self._ours = self.optimizer.reduction
        elif kind == "hook":
            options |= {"optimizer": optimizer, "comm": as_comm(dist.group.WORLD), "clip_norm": clip_norm}
            self._ours = SparseState(list(model.named_parameters()), **options)
            self.model = DistributedDataParallel(model)
            self.model.register_comm_hook(self._ours, sparse_hook)
        elif kind == "powersgd":  # one bucket: gloo adds up unlike messages of several, and the job ends
            state = powerSGD_hook.PowerSGDState(None, options.pop("rank"), options.pop("start", 10), **options)
            self.model = DistributedDataParallel(model, bucket_cap_mb=1 << 20)
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        else:
            self.model = DistributedDataParallel(model)
            self.model.register_comm_hook(None, HOOKS[kind])

    def step(self, loss: Callable[[], Tensor]) -> None:
        self.optimizer.zero_grad()
        loss().backward()
        if self._clip_norm is not None:
            clip_grad_norm_(self.model.parameters(), self._clip_norm)
        self.optimizer.step()
        self._after()

    def sent(self, summed: float) -> float:
        """Return the bytes that this rank has sent, ``summed`` of them by torch's own ways; local steps end."""
        if isinstance(self._ours, DiLoCo):
            self._ours.synchronize()
        return summed if self._ours is None else float(self._ours.comm.traffic.sent)


class Summed:
    """torch.distributed.all_reduce, which counts the bytes that a ring sends for it."""

    def __init__(self) -> None:
        self.sent, self._plain = 0.0, dist.all_reduce
        dist.all_reduce = self

    def __call__(self, tensor: Tensor, *args: Any, **options: Any) -> Any:
        self.sent += 2 * (1 - 1 / dist.get_world_size()) * tensor.numel() * tensor.element_size()
        return self._plain(tensor, *args, **options)


def loss_of(task: Any, batch: Any) -> Tensor:
    loss: Tensor = task.forward_and_loss(batch)[0]
    return loss


def spelled(way: str) -> tuple[str, dict[str, Any]]:
    """Return the kind of a way, and its options as numbers or texts."""
    kind, *words = way.split(":")
    if kind not in (*HOOKS, "powersgd", "averaging", "hook", "optimizer", "local") or not all("=" in w for w in words):
        raise ValueError(f"must be one of {', '.join(WAYS)}, or optimizer, with NAME=VALUE behind colons, got {way!r}")
    options: dict[str, Any] = dict(word.split("=", 1) for word in words)
    for name, text in options.items():
        for number in (float, int):
            with suppress(ValueError):
                options[name] = number(text)
    return kind, options


def on_the_wire(comm: Comm) -> float:
    """Return the bytes that the interfaces of this network have sent, over the ranks that share it."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    network = np.array([os.stat("/proc/self/ns/net").st_ino])
    share = int((comm.allgather(network, control=True) == network).sum())
    return sum(int(line.split(":")[1].split()[8]) for line in lines) / share


def trained(name: str, args: Namespace, most: int | None, summed: Summed, make: Any, comm: Comm) -> dict[str, Any]:
    """Train by one way, and return its record: scores behind each epoch, and costs."""
    kind, options = spelled(name)
    args.lr = options.pop("lr", args.lr)
    task = make(args, comm)
    optimizer = OPTIMIZERS[args.optimizer](task.model.parameters(), args)
    way = Way(kind, task.model, optimizer, args.clip_norm, **options)
    task.model, steps = way.model, most or args.epochs * task.steps
    batches = chain.from_iterable(task.train(epoch) for epoch in range(args.epochs))
    before, wire, taken, epochs = summed.sent, -on_the_wire(comm), [], []
    for step in progress(range(steps), name, comm.rank == 0):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step / task.steps, args, comm.size)
        torch.manual_seed(step_seed(args.seed, step, comm.rank))
        batch, start, used = next(batches), perf_counter(), process_time()
        way.step(partial(loss_of, task, batch))
        taken.append((perf_counter() - start, process_time() - used))
        if step + 1 == steps:
            sent = way.sent(summed.sent - before)
        if most is None and (step + 1) % task.steps == 0:
            wire += on_the_wire(comm)
            epochs.append({f"test_{score}": of for score, of in evaluate(task, comm).items()})
            wire -= on_the_wire(comm)
            task.model.train()
    wire += on_the_wire(comm)
    usual = np.mean(taken[min(WARM_UP, steps - 1) :], axis=0)  # not the median: some exchange every few steps
    totals = comm.allreduce(np.array([sent, wire, *usual]), control=True) / comm.size * [1e-6, 1e-6, 1e3, 1e3]
    found = dict(zip(("mb_total", "mb_wire", "ms", "cpu_ms"), (round(x, 4) for x in totals.tolist()), strict=True))
    ends = epochs[-1] if epochs else {}
    return {
        **{"way": name, "seed": args.seed, "ranks": comm.size, "shards": "shuffled", "steps": steps, "lr": args.lr},
        **{"headline": task.headline, "score": ends.get(f"test_{task.headline}"), "loss": ends.get("test_loss")},
        **found,
        "epochs": epochs,
    }


def measure(args: Namespace, comm: Comm) -> None:
    program, summed = import_module(args.program).PROGRAM, Summed()
    records: list[dict[str, Any]] = []
    for seed in args.seeds:
        for way in args.ways:
            of = program.parse([*args.words, "--seed", str(seed)])
            records.append({"program": args.program, **trained(way, of, args.steps, summed, program.make, comm)})
            if comm.rank == 0:
                shown = " ".join(
                    f"{name} {records[-1][name]}" for name in ("score", "mb_total", "mb_wire", "cpu_ms", "ms")
                )
                print(f"{way}, seed {seed}: {shown}", flush=True)
                if args.json:
                    write(args.json, {"records": records, **provenance()})


def main() -> None:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("program", type=checked(check_program, "gpt2"), help="of train/, without .py: gpt2, vgg, ...")
    way, text = checked(spelled, "hook:density=0.01"), f"see above (default: {' '.join(WAYS)})"
    add("--ways", type=way, nargs="+", default=list(WAYS), metavar="WAY", help=text)
    add("--seeds", type=integer(0), nargs="+", default=[1], metavar="SEED", help="of weights and batches (default: 1)")
    add("--steps", type=integer(1), metavar="N", help="that are taken, without tests (default: all of the program)")
    add("--json", type=record, metavar="FILE", help="the record to write (default: none)")
    parser.set_defaults(**{WORDS: []})  # arguments behind --
    torch.set_num_threads(1)
    job.run(job.in_process_group(measure), parser.parse_args())


if __name__ == "__main__":
    main()
