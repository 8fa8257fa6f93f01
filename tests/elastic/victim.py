"""A training run that is to lose ranks, for `chaos`: prints what each survivor reduced, as a line of JSON."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.elastic import ElasticAllreduce, Team

SIZE = 20_000
FAULTS = {"kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "exit": lambda: os._exit(3)}


def gradient(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng([rank, step]).standard_normal(SIZE).astype(np.float32)


def train(
    comm: Any, algorithm: str, steps: int, seconds: float = 0.0, ready: Callable[[], None] = lambda: None
) -> tuple[str, list[Any], list[float]]:
    """Reduce for so many ``steps``; return a digest of all results, the departures, and how long each step took.

    It is ``ready()`` when a rank may be lost.
    """
    reducer = ElasticAllreduce(SIZE, density=0.01, comm=comm, algorithm=algorithm, copy_every=5)
    digest, spent = sha256(), []
    ready()
    for step in range(steps):
        time.sleep(seconds)
        start = time.perf_counter()
        total = reducer.step(gradient(reducer.team.number, step))
        spent.append(time.perf_counter() - start)
        parts = [total] if isinstance(total, np.ndarray) else [total.indices, total.values]
        digest.update(b"".join(part.tobytes() for part in parts) + bytes([reducer.ranks]))
    return digest.hexdigest(), [departure[:3] for departure in reducer.departures], spent


def train_model(
    comm: Any, algorithm: str, steps: int, seconds: float = 0.0, ready: Callable[[], None] = lambda: None
) -> tuple[str, list[Any], list[float]]:
    """Train a model by a `DistributedOptimizer` in several buckets; return what `train` does, of its parameters."""
    import torch

    from sparse_mpi.optim import DistributedOptimizer

    torch.set_num_threads(1)
    team = Team(comm)
    model = torch.nn.Sequential(torch.nn.Linear(40, 100), torch.nn.ReLU(), torch.nn.Linear(100, 30))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.from_numpy(gradient(0, number)[: parameter.numel()].reshape(parameter.shape) / 9))
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        model.named_parameters(), team=team, density=0.05, algorithm=algorithm, bucket_cap_mb=0.01, momentum="global",
        copy_every=5,
    )  # fmt: skip
    digest, spent = sha256(), []
    ready()
    for step in range(steps):
        time.sleep(seconds)
        drawn = torch.from_numpy(gradient(team.number, 1000 + step)[:1120].reshape(16, 70))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(drawn[:, :40]), drawn[:, 40:]).backward()
        start = time.perf_counter()
        optimizer.step()
        spent.append(time.perf_counter() - start)
        digest.update(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    return digest.hexdigest(), [departure[:3] for departure in team.departures], spent


KINDS = {"reducer": train, "optimizer": train_model}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", default="oktopk")
    parser.add_argument("--kind", choices=KINDS, default="reducer")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fault", choices=FAULTS, default="kill")
    parser.add_argument("--victims", type=int, nargs="+", default=[])
    parser.add_argument("--after", type=float, nargs="+", default=[], help="seconds after the first step, of each")
    args = parser.parse_args()
    faulthandler.dump_traceback_later(30)  # says where a rank hangs
    from sparse_mpi.comm import as_comm

    comm: Comm = as_comm()
    # Compile what there is to compile, so that faults come while ranks talk to each other
    work = KINDS[args.kind]
    work(comm.duplicate(), args.algo, 2)

    def ready() -> None:
        comm.barrier()
        for victim, after in zip(args.victims, args.after, strict=True):
            if comm.rank == victim:
                timer = threading.Timer(after, FAULTS[args.fault])
                timer.daemon = True
                timer.start()

    digest, departures, spent = work(comm, args.algo, args.steps, 0.002, ready)
    facts = {"rank": comm.rank, "digest": digest, "departures": departures, "longest": max(spent), "all": sum(spent)}
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
