"""A training run that is to lose ranks, for `chaos`: prints what each survivor reduced, as a line of JSON."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.fault_tolerance import ElasticAllreduce, Team, team_of

SIZE = 20_000
HANGS = 20.0  # seconds of training after which a rank says where it is
COPY_EVERY = 5  # steps
PROCESS, READY = "process-", "ready-"  # files of the ranks: who they are, and that they train
DUE: list[bool] = []  # an exception, in the next gradient


def disk() -> None:
    """Have no file that this process writes grow beyond a few bytes from now on, as if the disk were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


FAULTS = {
    "exit": lambda: os._exit(0),  # of another status mpirun tells nobody
    "raise": lambda: DUE.append(True),
    "disk": disk,
}


class Options(NamedTuple):
    algorithm: str
    steps: int
    spares: int = 0
    seconds: float = 0.0  # that a rank waits before each step
    folder: str = ""  # for what a program writes


class Found(NamedTuple):
    digest: str  # of what the ranks have alike
    departures: list[Any]
    spent: list[float]  # seconds of each step, or of each pause
    joined: int | None  # the step from which on a spare has trained


def gradient(rank: int, step: int) -> np.ndarray:
    if DUE:
        raise RuntimeError("a gradient fails, for the test")
    return np.random.default_rng([rank, step]).standard_normal(SIZE).astype(np.float32)


def train(comm: Any, options: Options, ready: Callable[[], None] = lambda: None) -> Found | None:
    """Reduce gradients; the digest is of all results. It is ``ready()`` when a rank may be lost.

    A spare gets the digest so far. None on one that is never needed.
    """
    team = Team(comm, spares=options.spares)
    reducer = ElasticAllreduce(SIZE, density=0.01, team=team, algorithm=options.algorithm, copy_every=COPY_EVERY)
    seen, spent = b"", []
    ready()
    given = team.stand_by()
    if team.waits:
        team.close()
        return None
    joined = None
    if given is not None:
        seen, joined = given[:-8], int.from_bytes(given[-8:], "little")
    for step in range(joined or 0, options.steps):
        time.sleep(options.seconds)
        start = time.perf_counter()
        if step != joined:
            team.recruit(lambda seen=seen, step=step: seen + step.to_bytes(8, "little"))  # type: ignore[misc]
        total = reducer.step(gradient(team.number, step))
        spent.append(time.perf_counter() - start)
        parts = [total] if isinstance(total, np.ndarray) else [total.indices, total.values]
        seen = sha256(seen + b"".join(part.tobytes() for part in parts) + bytes([reducer.ranks])).digest()
    team.close()
    return Found(seen.hex(), [departure[:3] for departure in reducer.departures], spent, joined)


def train_model(comm: Any, options: Options, ready: Callable[[], None] = lambda: None) -> Found:
    """Train a model by a `DistributedOptimizer` in several buckets; the digest is of its parameters in all steps."""
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
        model.named_parameters(), comm=team, density=0.05, algorithm=options.algorithm, bucket_cap_mb=0.01,
        momentum="global", copy_every=COPY_EVERY,
    )  # fmt: skip

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        if DUE:
            raise RuntimeError("a hook fails, for the test")
        return gradient

    next(model.parameters()).register_hook(hook)
    digest, spent = sha256(), []
    ready()
    for step in range(options.steps):
        time.sleep(options.seconds)
        drawn = torch.from_numpy(gradient(team.number, 1000 + step)[:1120].reshape(16, 70))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(drawn[:, :40]), drawn[:, 40:]).backward()
        start = time.perf_counter()
        optimizer.step()
        spent.append(time.perf_counter() - start)
        digest.update(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    return Found(digest.hexdigest(), [departure[:3] for departure in team.departures], spent, None)


def train_program(comm: Any, options: Options, ready: Callable[[], None] = lambda: None) -> Found | None:
    """Train by a whole program, which writes checkpoints; the digest is of the parameters at the end."""
    from tests.train.small_program import LOG, PROGRAM, make, slowed

    models: list[Any] = []

    def made(args: Any, comm: Any) -> Any:
        """Return a task that is ready when its first batch is asked for."""
        task = make(args, comm)
        models.append(task.model)
        return slowed(task, options.seconds, ready)

    wanted = ["--out", options.folder, *LOG, "--elastic", "--spares", str(options.spares), "--checkpoint-every", "7"]
    wanted += ["--epochs", "99", "--max-steps", str(options.steps), "--copy-every", str(COPY_EVERY)]
    program = replace(PROGRAM, make=made)
    with redirect_stdout(sys.stderr):
        outcome = program.train(program.parse([*wanted, "--algo", options.algorithm]), comm)
    if outcome is None:
        return None
    team = team_of(comm)
    assert team is not None and outcome.identical, "one was made, and all have the same"
    digest = sha256(b"".join(p.detach().numpy().tobytes() for p in models[0].parameters())).hexdigest()
    return Found(digest, [departure[:3] for departure in team.departures], [0.0], None)


KINDS: dict[str, Callable[..., Found | None]] = {"reducer": train, "optimizer": train_model, "program": train_program}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--algo", default="oktopk")
    add("--kind", choices=KINDS, default="reducer")
    add("--steps", type=int, default=60)
    add("--folder", default="")
    add("--spares", type=int, default=0)
    add("--faults", choices=FAULTS, nargs="+", default=[])
    add("--victims", type=int, nargs="+", default=[])
    add("--after", type=float, nargs="+", default=[], help="seconds after the first step, of each")
    args = parser.parse_args()
    faulthandler.enable()
    comm: Comm = as_comm()
    Path(args.folder, f"{PROCESS}{comm.rank}").write_text(f"{os.getpid()}\n")
    # Compile what there is to compile, so that faults come while ranks talk to each other
    work = KINDS[args.kind]
    work(comm.duplicate(), Options(args.algo, 2, folder=f"{args.folder}/first"))

    def ready() -> None:
        faulthandler.dump_traceback_later(HANGS)
        if args.kind != "program":  # whose spares train nothing at first
            comm.barrier()
        Path(args.folder, f"{READY}{comm.rank}").touch()
        for victim, after, fault in zip(args.victims, args.after, args.faults, strict=True):
            if comm.rank == victim:
                timer = threading.Timer(after, FAULTS[fault])
                timer.daemon = True
                timer.start()

    found = work(comm, Options(args.algo, args.steps, args.spares, 0.002, f"{args.folder}/run"), ready)
    if found is None:
        print(json.dumps({"rank": comm.rank}), flush=True)
        return
    facts = found._asdict() | {"rank": comm.rank, "spent": [], "longest": max(found.spent), "all": sum(found.spent)}
    team = team_of(comm)
    assert team is not None, "one was made"
    print(json.dumps(facts | {"pauses": [departure.seconds for departure in team.departures]}), flush=True)


if __name__ == "__main__":
    main()
