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
from sparse_mpi.elastic import ElasticAllreduce

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
        total = reducer.step(gradient(reducer.number, step))
        spent.append(time.perf_counter() - start)
        parts = [total] if isinstance(total, np.ndarray) else [total.indices, total.values]
        digest.update(b"".join(part.tobytes() for part in parts) + bytes([reducer.ranks]))
    return digest.hexdigest(), [departure[:3] for departure in reducer.departures], spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", default="oktopk")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fault", choices=FAULTS, default="kill")
    parser.add_argument("--victims", type=int, nargs="+", default=[])
    parser.add_argument("--after", type=float, nargs="+", default=[], help="seconds after the first step, of each")
    args = parser.parse_args()
    faulthandler.dump_traceback_later(30)  # says where a rank hangs
    from sparse_mpi.comm import as_comm

    comm: Comm = as_comm()
    # Compile what there is to compile, so that faults come while ranks talk to each other
    train(comm.duplicate(), args.algo, 2)

    def ready() -> None:
        comm.barrier()
        for victim, after in zip(args.victims, args.after, strict=True):
            if comm.rank == victim:
                timer = threading.Timer(after, FAULTS[args.fault])
                timer.daemon = True
                timer.start()

    digest, departures, spent = train(comm, args.algo, args.steps, 0.002, ready)
    facts = {"rank": comm.rank, "digest": digest, "departures": departures, "longest": max(spent), "all": sum(spent)}
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
