"""Set-ups that no model was fitted to, drawn by a seed and measured one by one, to check predictions.

    python -m runs.held_out held-out.json                        # on a quiet machine, as root: half an hour
    python -m runs.held_out held-out.json --busy 2               # again, with a load of two processes beside it
    python -m runs.held_out held-out.json --list                 # set-ups to measure, and the measured ones

Each set-up is a job of `bench network` with `bench steps`: a model or a flat vector, 2 to 8 ranks, a rate and a
density. Its record is added to the file as soon as it ends, with the number of the set-up and the load; set-ups in the
file are not repeated, so that the same command goes on after a cut. A job that fails or runs past its time is reported
and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from runs import processes
from sparse_mpi.predict import rates
from sparse_mpi.predict.models import layout

SHAPES = ("vgg16", "resnet50", "bert-small")
LEAST, MOST = 1e5, 1.5e7  # elements of a flat vector
SPARSEST, DENSEST = 1e-3, 3e-2
RATES = ("100mbit", "200mbit", "500mbit", "1gbit", "2gbit", "5gbit", "10gbit", "20gbit")
WAYS = ("oktopk", "elect", "quota", "topka")
WIRES = ("own", "packed", "packed+bf16")
STEPS, WARM_UP = 5, 1
DENSE = 4.0  # seconds that a dense sum may take: at least 3 + WARM_UP of them are made


@dataclass(frozen=True)
class SetUp:
    """A job; one of ``model`` and ``n`` is None."""

    number: int
    model: str | None
    n: int | None
    ranks: int
    rate: str
    density: float

    @property
    def dense(self) -> float:
        """Seconds that a ring of dense vectors takes on the links."""
        size = self.n or layout(self.model or "vgg16").size
        return 2 * (self.ranks - 1) / self.ranks * 32 * size / (rates.parse(self.rate) or 1)

    def __str__(self) -> str:
        what = self.model or f"n = {self.n:,}"
        return f"{self.number}: {what}, P = {self.ranks}, {self.rate}, density {self.density}"

    def command(self, file: Path, seconds: float) -> list[str]:
        """Return the command line that measures it in about ``seconds``, and writes the record."""
        gradient = f"--model {self.model}" if self.model else f"--n {self.n}"
        each = seconds / (1 + len(WAYS) * len(WIRES))
        network = f"--ranks {self.ranks} --rate {self.rate} --timeout 3600 --json {shlex.quote(str(file))}"
        steps = f"--density {self.density} --steps {STEPS} --warmup {WARM_UP} --seconds {each} --seed {self.number}"
        ways = f"--algorithms {' '.join(WAYS)} --wires {' '.join(WIRES)}"
        program = f"-m sparse_mpi bench network {network} -- bench steps {gradient} {steps} {ways}"
        return [sys.executable, *shlex.split(program)]


def draw(count: int, seed: int, fastest: str) -> list[SetUp]:
    """Return ``count`` set-ups, every third one of a model, the others flat; none has a dense sum above `DENSE`."""
    rng = np.random.default_rng(seed)
    rates = RATES[: RATES.index(fastest) + 1]
    found: list[SetUp] = []
    while len(found) < count:
        number = len(found)
        model = str(rng.choice(SHAPES)) if number % 3 == 2 else None
        n = None if model else round(float(np.exp(rng.uniform(np.log(LEAST), np.log(MOST)))))
        density = round(float(np.exp(rng.uniform(np.log(SPARSEST), np.log(DENSEST)))), 4)
        drawn = SetUp(number, model, n, int(rng.integers(2, 9)), str(rng.choice(rates)), density)
        if drawn.dense <= DENSE:
            found.append(drawn)
    return found


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Run ``processes`` computing processes during a ``with`` block."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def measure(set_up: SetUp, busy: int, seconds: float, timeout: float) -> dict[str, Any] | str:
    """Return the record of a job, with its set-up and the load, or why there is none."""
    with tempfile.TemporaryDirectory() as folder, load(busy):
        file, before = Path(folder, "record.json"), os.getloadavg()
        ended = processes.run(set_up.command(file, seconds), Path(folder, "log"), timeout)
        if ended.status is None:
            return f"more than {timeout:g} s"
        if ended.status:
            return ended.last
        (found,) = json.loads(file.read_text())["jobs"]
    return found | {"set-up": asdict(set_up), "busy": busy, "load": [before, os.getloadavg()]}


def add(file: Path, record: dict[str, Any]) -> None:
    """Write a record in place of a file, so that a cut leaves the one or the other."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(record) + "\n")
    part.replace(file)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the missing set-ups of the file; returns 1 if a job failed."""
    known = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known.add_argument("file", type=Path, help="of records, which is continued")
    known.add_argument("--set-ups", type=int, default=40, help="how many are drawn (default: 40)")
    known.add_argument("--seed", type=int, default=1, help="by which (default: 1)")
    known.add_argument("--fastest", choices=RATES, default="5gbit", help="the highest rate (default: 5gbit)")
    known.add_argument("--busy", type=int, default=0, help="processes that compute beside each job (default: 0)")
    known.add_argument("--first", type=int, help="measure at most this many")
    known.add_argument("--seconds", type=float, default=30, help="of a job's steps (default: 30)")
    known.add_argument("--timeout", type=float, default=120, help="seconds after which a job is ended (default: 120)")
    known.add_argument("--minutes", type=float, default=60, help="after which no job is begun (default: 60)")
    known.add_argument("--list", action="store_true", help="only list the set-ups")
    args = known.parse_args(argv)
    drawn = {"seed": args.seed, "fastest": args.fastest}
    record = json.loads(args.file.read_text()) if args.file.exists() else {"drawn": drawn, "jobs": []}
    if record["drawn"] != drawn:
        known.error(f"{args.file} has set-ups drawn by {record['drawn']}, not by {drawn}; name another file")
    done = {(job["set-up"]["number"], job["busy"]) for job in record["jobs"]}
    until, failed, measured = monotonic() + 60 * args.minutes, 0, 0
    for set_up in draw(args.set_ups, args.seed, args.fastest):
        there = (set_up.number, args.busy) in done
        name = str(set_up)
        if args.list:
            print(f"{name}{', measured' if there else ''}")
        if args.list or there:
            continue
        if monotonic() > until or measured == args.first:
            break
        began = monotonic()
        found = measure(set_up, args.busy, args.seconds, args.timeout)
        measured += 1
        if isinstance(found, str):
            failed += 1
            print(f"{name}: no record: {found}", flush=True)
            continue
        record["jobs"].append(found)
        add(args.file, record)
        best = min(found["results"], key=lambda way: found["results"][way]["step"])
        remark = found["measured"]["remark"]
        print(f"{name}: {best}, {monotonic() - began:.0f} s{f'; {remark}' if remark else ''}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
