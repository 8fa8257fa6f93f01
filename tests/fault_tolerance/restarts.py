"""Kill processes and nodes of torchrun jobs at random instants, and compare their end with planned restarts.

    python -m tests.fault_tolerance.restarts --jobs 50 --seed 1 --json runs/restarts.json

A node is an agent of torchrun with one or two processes. In each job processes are killed or frozen, whole nodes are
killed, and nodes join, at instants that the seed draws. torchrun starts the processes that are left anew, on another
number of ranks where nodes were lost or came, and they go on from the last checkpoint. It gives up where its first
node, which has its store, is killed, or one while nodes meet: the job is then started again. At last the job must end,
and its weights be, byte for byte, those of runs in one process on as many ranks, each from one checkpoint to the next
from which the job went on. They are not compared where sums depend on the order in which a transport adds.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.checkpoint import latest, manifest
from sparse_mpi.cli import records, values
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.values import Parser
from sparse_mpi.sparse import Layout

from .. import prefork
from ..launch import ROOT
from ..train.small_program import FILE, LOG, train
from ..train.small_program import records as recorded
from ..train.small_training import network
from .chaos import facts_in, running
from .restarted import TRAINS, place_of

LIMIT = 240  # seconds of a job
EVERY = 3  # steps from one checkpoint to the next
PATIENCE = 8  # seconds after which ranks give a frozen one up
KINDS = {"process": 4, "freeze": 1, "node": 3, "join": 2}  # and how often each is drawn
NODES = 4  # at most at a time
MEETING = 90  # seconds in which torchrun's agents end where one has failed
LAUNCHES = 3
LAYOUT = Layout(((8, 4), (8,), (2, 8)))
SETTINGS = "join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
OPTIONS = [*LOG, "--epochs", "8", "--checkpoint-every", str(EVERY), "--resume"]


def draw(random_: random.Random) -> dict[str, Any]:
    """Return a job: processes of each node, algorithm, and faults with their kinds, their nodes and their instants.

    An instant is in seconds, from the first step of the processes that were started for the last fault, or from that
    fault itself.
    """
    faults = [
        {
            "kind": random_.choices(list(KINDS), list(KINDS.values()))[0],
            "node": random_.randrange(NODES),
            "processes": random_.choice([1, 2]),
            "after": round(random_.uniform(0, 0.6), 3),
            "hasty": random_.random() < 0.25,
        }
        for _ in range(random_.randint(1, 3))
    ]
    nodes = [random_.choice([1, 2]) for _ in range(random_.randint(1, 3))]
    return {"nodes": nodes, "algorithm": random_.choice(sorted(ALGORITHMS)), "faults": faults}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Job:
    """The nodes of a torchrun job, whose processes print to the file ``said`` of the folder."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self.folder, self._command = folder, command
        self.lost: set[int] = set()
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._said = (folder / "said").open("ab")
        self.launches = 0

    def start(self, nodes: list[int]) -> None:
        """Launch torchrun on nodes with so many processes each."""
        self.launches += 1
        self._first, self._port = len(self._nodes), free_port()
        for processes in nodes:
            self.join(processes)

    def join(self, processes: int) -> None:
        """Start another node. The first of a launch has the store, for which the others wait."""
        launcher = ["--nnodes", f"1:{NODES}", "--nproc-per-node", str(processes), "--max-restarts", "20"]
        launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-id", "restarts"]
        launcher += ["--rdzv-conf", SETTINGS, "--local-addr", "127.0.0.1", "--monitor-interval", "0.05", "--"]
        command = prefork.copied("-m", "torch.distributed.run", *launcher, *prefork.copied(*self._command))
        own = {"NODE": str(len(self._nodes)), "FOLDER": str(self.folder), "SPARSE_MPI_TIMEOUT": str(PATIENCE)}
        own |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        streams = {"stdout": self._said, "stderr": self._said}
        self._nodes.append(subprocess.Popen([sys.executable, *command], cwd=ROOT, env=kept | own, **streams))
        until = time.monotonic() + LIMIT / 4
        while len(self._nodes) == self._first + 1 and time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            time.sleep(0.02)

    def alive(self) -> list[int]:
        return [node for node, agent in enumerate(self._nodes) if agent.poll() is None]

    def broken(self) -> bool:
        """Tell if torchrun has given up: its first node is lost, or one that is not has ended with an error."""
        ended = enumerate(agent.poll() for agent in self._nodes)
        return any(
            status for node, status in ended if node == self._first or node > self._first and node not in self.lost
        )

    def trainings(self) -> int:
        """Return how many times processes have begun to train."""
        file = self.folder / TRAINS
        return file.stat().st_size if file.exists() else 0

    def suffer(self, fault: dict[str, Any]) -> str | None:
        """Play a fault; return why it could not be, or None."""
        alive = self.alive()
        if not alive:
            return "the job had ended"
        node = alive[fault["node"] % len(alive)]
        if fault["kind"] == "join":
            if len(alive) == NODES:
                return "there were as many nodes as may be"
            self.join(fault["processes"])
        elif fault["kind"] == "node":
            self.kill(node)
        else:
            found = self._process(node, fault["processes"] - 1) or self._process(node, 0)
            if found is None:
                return "the process had ended"
            os.kill(found, signal.SIGKILL if fault["kind"] == "process" else signal.SIGSTOP)
        return None

    def kill(self, node: int) -> None:
        """Kill an agent and its processes, all at once, as if their machine had no power."""
        self.lost.add(node)
        for victim in (self._nodes[node].pid, self._process(node, 0), self._process(node, 1)):
            if victim is not None:
                os.kill(victim, signal.SIGKILL)

    def end(self, until: float) -> bool:
        """Wait for the nodes; return whether they end in time, or torchrun gives up. Those that do not are killed."""
        gave_up = False
        while self.alive() and time.monotonic() < until:
            if not gave_up and self.broken():
                gave_up, until = True, min(until, time.monotonic() + MEETING)
            time.sleep(0.05)
        late = self.alive()
        for node in late:
            self.kill(node)
        for agent in self._nodes:
            agent.wait()
        return gave_up or not late

    def _process(self, node: int, number: int) -> int | None:
        """Return the process of a local rank, or None where there is none."""
        return running(self.folder).get(place_of(node, number))


def play(job: Job, faults: list[dict[str, Any]], until: float) -> list[str | None]:
    """Play the faults one after the other; return for each why it could not be, or None."""
    refused: list[str | None] = []
    before = 0  # trainings before the last fault
    for fault in faults:
        while job.alive() and not job.broken() and job.trainings() <= before and not (fault["hasty"] and before):
            if time.monotonic() > until:
                return refused
            time.sleep(0.02)
        if job.broken():
            refused.append("torchrun had given up")
            continue
        time.sleep(fault["after"])
        now = job.trainings()
        refused.append(job.suffer(fault))
        before = before if refused[-1] else now  # nothing is started anew for a fault that could not be
    return refused


def lose(drawn: dict[str, Any]) -> dict[str, Any]:
    """Run a job and return what became of it: ``problem`` is None if all is as promised."""
    began = time.monotonic()
    until = began + LIMIT
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ["--out", str(folder / "job"), *OPTIONS, "--algo", drawn["algorithm"]]
        job = Job(folder, ["-m", "tests.fault_tolerance.restarted", *options])
        job.start(drawn["nodes"])
        refused = play(job, drawn["faults"], until)
        in_time = job.end(until)
        while in_time and not finished(folder / "job") and job.launches < LAUNCHES:
            job.start([2])
            in_time = job.end(time.monotonic() + LIMIT)
        text = (folder / "said").read_text(errors="replace")
        generations = [fact for fact in facts_in(text) if "number" in fact]
        result = drawn | {"seconds": round(time.monotonic() - began, 2), "refused": refused}
        result |= {"generations": generations, "launches": job.launches}
        if not in_time:
            wrong: str | None = f"no end within {LIMIT} s"
        elif not finished(folder / "job"):
            wrong = f"{job.launches} launches did not end well"
        else:
            wrong = differs(drawn, generations, folder)
    return result | {"problem": wrong, "said": text[-20000:] if wrong else ""}


def finished(folder: Path) -> bool:
    return (folder / FILE).exists() and bool(recorded(folder, "final"))


def differs(drawn: dict[str, Any], generations: list[dict[str, Any]], folder: Path) -> str | None:
    """Repeat the generations of a job in this process, and return what is different at their end, or None."""
    if not ALGORITHMS[drawn["algorithm"]]().exact_order(LAYOUT, LAYOUT.size // 5):
        return None
    options = [*OPTIONS, "--algo", drawn["algorithm"]]
    with (folder / "planned.txt").open("w") as file, redirect_stdout(file):
        for this, following in pairwise([*generations, None]):
            if following is None:
                train(this["ranks"], folder / "planned", *options)
            elif following["number"] > this["number"]:
                train(this["ranks"], folder / "planned", *options, "--max-steps", str(following["step"]))
    ended, planned = (weights(folder / name / "checkpoints") for name in ("job", "planned"))
    different = [name for name, values in planned.items() if not torch.equal(values, ended[name])]
    return f"{', '.join(different)} differ from those of planned restarts" if different else None


def weights(checkpoints: Path) -> dict[str, torch.Tensor]:
    """Return the parameters of the last checkpoint; buffers are means that each transport adds in its own order."""
    found = latest(checkpoints)
    assert found is not None, "the program writes one at its end"
    model = torch.load(found / manifest.MODEL, weights_only=True)["model"]
    return {name: values for name, values in model.items() if name in dict(network(0).named_parameters())}


def main() -> int:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("--jobs", type=values.integer(1), default=10, help="how many")
    add("--seed", type=values.integer(0), default=0, help="of what is lost when")
    add("--json", type=values.record, metavar="FILE", help="write what was found after each job")
    args = parser.parse_args()
    random_, results = random.Random(args.seed), []
    with Bar(args.jobs, "jobs") as bar:
        for _ in range(args.jobs):
            results.append(lose(draw(random_)))
            prefork.server().check()
            bar.update()
            if results[-1]["problem"]:
                print(results[-1] | {"said": "in the record"}, flush=True)
            if args.json:
                records.write(args.json, records.options(args) | provenance() | {"cases": results})
    wrong = sum(result["problem"] is not None for result in results)
    pairs = [pair for result in results for pair in zip(result["faults"], result["refused"], strict=False)]
    played = [fault["kind"] for fault, refused in pairs if refused is None]
    counts = ", ".join(f"{played.count(kind)} {kind}" for kind in KINDS)
    again = sum(result["launches"] > 1 for result in results)
    print(f"{args.jobs} jobs with faults: {counts}; {again} jobs were started again, {wrong} are not as promised")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
