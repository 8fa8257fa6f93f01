"""Lose ranks of real MPI jobs at random instants, and compare the survivors with a planned departure.

    python -m tests.fault_tolerance.chaos --jobs 50 --seed 1 --json runs/chaos.json
    python -m tests.fault_tolerance.chaos --jobs 50 --hosts 8 --rate 1gbit

In each job one rank or many are killed, leave by ``os._exit``, have an exception in a gradient, freeze for good or for
half a second, lose their link for so long, or find their disk full, at instants that the seed draws; up to two spares
wait. What comes from outside a rank is done by `sparse_mpi_bench.chaos`, as in `run --chaos`, and the rest by the rank
itself. Survivors must end, all with the same results; for algorithms that sum in an exact order these must be, byte
for byte, the ones of a `World` in which the ranks leave before the transaction that the survivors name. With
``--hosts`` each rank is on an emulated host of its own. The record has a line for each job.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.cli import records, values
from sparse_mpi.cli.launch.find import find_library
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.values import Parser
from sparse_mpi.comm.world import World
from sparse_mpi.predict import rates
from sparse_mpi.sparse import Layout
from sparse_mpi_bench.chaos.faults import Chaos, Fault
from sparse_mpi_bench.emulation import hosts, launch
from sparse_mpi_bench.emulation.links import Links

from .. import prefork
from .victim import KINDS, PROCESS, READY, SIZE, Options

STEPS = 60  # and of a job with many victims more
LIMIT = 240  # seconds of a job
FROZEN, PATIENCE = 6, 60  # seconds after which a rank is given up: in a job that freezes one, and in others
VICTIM = str(Path(__file__).with_name("victim.py"))
LAUNCH = (sys.executable, "-m", "sparse_mpi", "run", "--elastic")
# What each kind of job reduces: algorithms whose sums MPI takes in an order of its own there have no planned result
LAYOUTS = {"reducer": Layout.of(SIZE), "optimizer": Layout(((100, 40),)), "program": Layout(((8, 4), (8,), (2, 8)))}
PASSING = ("pause", "link", "disk")  # faults after which a rank goes on
PAUSE = 0.5  # seconds
# Those that come from outside: their kinds there, and how long they last
OUTSIDE = {"kill": ("kill", 0.0), "stop": ("freeze", math.inf), "pause": ("freeze", PAUSE), "link": ("link", PAUSE)}

# Ranks, command, file for what it prints, what is played meanwhile -> status
Start = Callable[[int, list[str], Path, Iterable[float]], int | None]


def draw(
    random_: random.Random, most: int = 2, ranks: int | None = None, linked: bool = False, least: int = 1
) -> dict[str, Any]:
    """Return a job: how many ranks, what they do, who is lost, how, and when; ``least`` to ``most`` victims there are.

    Only a host of its own has a link that a rank can lose, and only programs write to a disk.
    """
    size = ranks or random_.choice([2, 3, 4, 5, 6])
    kind = random_.choice(sorted(KINDS))
    spares = 0 if kind == "optimizer" or size < 3 else min(random_.choice([0, 0, 1, 2]), size - 2)
    lost = random_.sample(range(size), min(random_.randint(least, most), size - spares - 1))
    weights = {"kill": 5, "exit": 2, "raise": 2, "stop": 1, "pause": 1, "link": linked, "disk": kind == "program"}
    faults = random_.choices(list(weights), list(weights.values()), k=len(lost))
    return {
        "ranks": size,
        "spares": spares,
        "kind": kind,
        "algorithm": random_.choice(sorted(ALGORITHMS)),
        "faults": faults,
        "victims": lost,
        "after": [round(random_.uniform(0, 0.1 + 0.15 * len(lost)), 4) for _ in lost],
    }


def steps_of(job: dict[str, Any]) -> int:
    """Return how many steps a job makes, so that most of its ranks are lost while it trains."""
    return max(STEPS, 40 * len(job["victims"]))


def here(ranks: int, command: list[str], said: Path, meanwhile: Iterable[float]) -> int | None:
    """Start a job on this host; return its status, or None if it did not end."""
    with said.open("w") as file:
        job = subprocess.Popen([*LAUNCH, "-n", str(ranks), *command], stdout=file, stderr=file)
        try:
            return launch.wait(job, LIMIT, meanwhile)
        except subprocess.TimeoutExpired:
            return None
        finally:
            job.kill()
            job.wait()


def emulated(links: Links) -> Start:
    """Return what starts a job on emulated hosts, one rank on each."""
    launcher, there, rates = launch.find_launcher(), links.hosts, links.rates

    def start(ranks: int, command: list[str], said: Path, meanwhile: Iterable[float]) -> int | None:
        assert ranks == there.count, "jobs are drawn for as many ranks as there are hosts"
        with said.open("w") as file:
            status = launch.run(there, launcher, command, LIMIT, elastic=True, output=file, meanwhile=meanwhile)
        links.change(rates)  # of a job that has ended with a link down
        return None if status == launch.OUT_OF_TIME else status

    return start


def running(folder: Path) -> dict[int, int]:
    """Return the processes of the ranks that run: a copy, see `prefork`, is no descendant of ours."""
    found = {}
    for file in folder.glob(f"{PROCESS}*"):
        number, line, _ = file.read_text().partition("\n")
        with suppress(psutil.NoSuchProcess):
            if line and psutil.Process(int(number)).status() != psutil.STATUS_ZOMBIE:  # otherwise half written
                found[int(file.name.removeprefix(PROCESS))] = int(number)
    return found


def outside(job: dict[str, Any], folder: Path, links: Links | None) -> Chaos:
    """Return the faults of a job that come from outside; they begin when all ranks train that are no spares."""
    triples = sorted(zip(job["after"], job["victims"], job["faults"], strict=True))
    faults = [Fault(after, victim, *OUTSIDE[fault]) for after, victim, fault in triples if fault in OUTSIDE]
    training = job["ranks"] - job["spares"]
    return Chaos(faults, partial(running, folder), lambda: len(list(folder.glob(f"{READY}*"))) >= training, links)


def lose(
    job: dict[str, Any], start: Start = here, per_node: int | None = None, links: Links | None = None
) -> dict[str, Any]:
    """Run a job, with so many ranks a node, and return what became of it: ``problem`` is None if all is as promised."""
    command = [*prefork.copied(VICTIM), "--kind", job["kind"], "--algo", job["algorithm"]]
    command += ["--steps", str(steps_of(job)), "--spares", str(job["spares"])]
    inside = [place for place, fault in enumerate(job["faults"]) if fault not in OUTSIDE]
    for name in ("faults", "victims", "after"):
        command += [f"--{name}", *(str(job[name][place]) for place in inside)] if inside else []
    limits = {"OMP_NUM_THREADS": "1", "SPARSE_MPI_TIMEOUT": str(FROZEN if "stop" in job["faults"] else PATIENCE)}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, limits):
        said, chaos = Path(folder) / "said", outside(job, Path(folder), links)
        status = start(job["ranks"], [*command, "--folder", folder], said, chaos.play())
        text = said.read_text(errors="replace")
        found = facts_in(text)
        result = job | {"seconds": round(time.monotonic() - began, 2), "status": status}
        result |= {"refused": sum(fault["refused"] is not None for fault in chaos.done)}
        trained = [fact for fact in found if "digest" in fact]
        if trained:
            result |= {"departures": trained[0]["departures"], "pauses": trained[0]["pauses"]}
            result |= {"more": sorted(lost_of(trained) - set(job["victims"]))}
            result |= {"longest": round(max(fact["longest"] for fact in trained), 3)}
        wrong = f"no end within {LIMIT} s" if status is None else problem(job, found, f"{folder}/planned", per_node)
    return result | {"problem": wrong, "said": text[-20000:] if wrong else ""}


def facts_in(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects of the ranks in what a job printed; lines of several ranks may have come as one."""
    found, end = [], 0
    for start in (match.start() for match in re.finditer(r'\{"', text)):
        if start >= end:
            try:
                fact, end = json.JSONDecoder().raw_decode(text, start)
            except json.JSONDecodeError:  # cut short by the end of its rank
                continue
            found.append(fact)
    return found


def lost_of(trained: list[dict[str, Any]]) -> set[int]:
    """Return the ranks whose loss the survivors have noted."""
    return {rank for _, ranks, _ in (trained[0]["departures"] if trained else []) for rank in ranks}


def problem(job: dict[str, Any], found: list[dict[str, Any]], folder: str, per_node: int | None) -> str | None:
    """Return what is wrong with what the survivors found, or None."""
    trained = [fact for fact in found if "digest" in fact]
    lost, survivors = lost_of(trained), {fact["rank"] for fact in found}
    passing = {rank for rank, fault in zip(job["victims"], job["faults"], strict=True) if fault in PASSING}
    gone = set(range(job["ranks"])) - survivors - lost - set(job["victims"])  # who ended after training is not missed
    if not trained or gone or lost & survivors:
        return f"survivors {sorted(survivors)}, lost {sorted(lost)}"
    if lost & passing:
        return f"ranks {sorted(lost & passing)} were lost though they went on"
    if len({fact["digest"] for fact in trained}) > 1:
        return "survivors disagree"
    # A spare that has joined counts transactions from then on only: its loss cannot be planned.
    planable = all(rank < job["ranks"] - job["spares"] for rank in lost)
    layout = LAYOUTS[job["kind"]]
    if not ALGORITHMS[job["algorithm"]]().exact_order(layout, layout.size // 5) or not planable:
        return None
    leave = {rank: step for step, ranks, _ in trained[0]["departures"] for rank in ranks}
    options = Options(job["algorithm"], steps_of(job), job["spares"], folder=folder)
    planned = World(job["ranks"], per_node, leave).run(lambda comm: KINDS[job["kind"]](comm, options))
    if trained[0]["digest"] not in {result[0] for result in planned if result is not None}:
        return "survivors differ from the planned departure"
    return None


def main() -> int:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("--jobs", type=values.integer(1), default=10, help="how many")
    add("--seed", type=values.integer(0), default=0, help="of what is lost when")
    add("--ranks", type=values.integer(2), help="of each job (default: 2 to 6)")
    add("--most", type=values.integer(1), default=2, help="victims of a job at most (default: 2)")
    add("--least", type=values.integer(1), default=1, help="victims of a job at least, if ranks are left (default: 1)")
    add("--hosts", type=values.integer(2, 16), help="emulated ones, with a rank each (default: none; needs root)")
    add("--rate", type=rates.rate, default="1gbit", help="of their links (default: 1gbit)")
    add("--json", type=values.record, metavar="FILE", help="write what was found after each job")
    args = parser.parse_args()
    random_, results = random.Random(args.seed), []
    with ExitStack() as stack:
        start, links = here, None
        per_node = 1 if args.hosts else None
        if args.hosts:
            links = Links(stack.enter_context(hosts.emulate(args.hosts, rates.parse(args.rate))))
            start = emulated(links)
        made = provenance()
        made["versions"]["mpi"] = find_library(os.environ).version
        bar = stack.enter_context(Bar(args.jobs, "jobs"))
        for _ in range(args.jobs):
            job = draw(random_, args.most, args.hosts or args.ranks, bool(args.hosts), args.least)
            results.append(lose(job, start, per_node, links))
            prefork.server().check()
            bar.update()
            if results[-1]["problem"]:
                print(results[-1], flush=True)
            if args.json:
                records.write(args.json, records.options(args) | made | {"cases": results})
    wrong = sum(result["problem"] is not None for result in results)
    lost = sum(len(ranks) for result in results for _, ranks, _ in result.get("departures", []))
    faults = sum(len(result["victims"]) for result in results)
    print(f"{args.jobs} jobs with {faults} faults, {lost} ranks lost on the way; {wrong} jobs not as promised")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
