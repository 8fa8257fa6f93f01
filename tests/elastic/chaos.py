"""Lose ranks of real MPI jobs at random instants, and compare the survivors with a planned departure.

    python -m tests.elastic.chaos --jobs 50 --seed 1 --json runs/chaos.json

In each job one or two ranks are killed, or leave by ``os._exit``, at instants that the seed draws. Survivors must end,
all with the same results; for algorithms that sum in an exact order these must be, byte for byte, the ones of a `World`
in which the ranks leave before the step that the survivors name. The record has a line for each job.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.bench import records
from sparse_mpi.bench.progress import Bar
from sparse_mpi.bench.provenance import provenance
from sparse_mpi.comm.world import World
from sparse_mpi.sparse import Layout

from .victim import FAULTS, KINDS, SIZE

STEPS = 60
LIMIT = 60  # seconds of a job
LAUNCH = (sys.executable, "-m", "sparse_mpi", "run", "--elastic")
# Their results are sums that MPI takes in an order of its own
INEXACT = {name for name, kind in ALGORITHMS.items() if not kind().exact_order(Layout.of(SIZE), SIZE // 100)}


def draw(random_: random.Random, victims: int = 2) -> dict[str, Any]:
    """Return a job: how many ranks, which algorithm, who is lost, how, and when; ``victims`` are the most there are."""
    ranks = random_.choice([2, 3, 4, 5, 6])
    lost = random_.sample(range(ranks), min(random_.choice([1, 1, 2]), ranks - 1, victims))
    return {
        "ranks": ranks,
        "kind": random_.choice(sorted(KINDS)),
        "algorithm": random_.choice(sorted(ALGORITHMS)),
        "fault": random_.choice(sorted(FAULTS)),
        "victims": lost,
        "after": [round(random_.uniform(0, 0.25), 4) for _ in lost],
    }


def lose(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job and return what became of it: ``problem`` is None if all is as promised."""
    options = ["--kind", job["kind"], "--algo", job["algorithm"], "--steps", str(STEPS), "--fault", job["fault"]]
    options += ["--victims", *map(str, job["victims"]), "--after", *map(str, job["after"])]
    start = time.monotonic()
    try:
        done = subprocess.run(
            [*LAUNCH, "-n", str(job["ranks"]), "-m", "tests.elastic.victim", *options],
            capture_output=True, text=True, timeout=LIMIT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        said = (late.stderr or b"").decode()[-2000:] if isinstance(late.stderr, bytes) else str(late.stderr)[-2000:]
        return job | {"problem": f"no end within {LIMIT} s", "said": said}
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    result = job | {"seconds": round(time.monotonic() - start, 2), "status": done.returncode}
    if found:
        result |= {"departures": found[0]["departures"], "longest": round(max(fact["longest"] for fact in found), 3)}
    return result | {"problem": problem(job, found), "said": done.stderr[-2000:] if problem(job, found) else ""}


def problem(job: dict[str, Any], found: list[dict[str, Any]]) -> str | None:
    """Return what is wrong with what the survivors found, or None."""
    lost = {rank for _, ranks, _ in (found[0]["departures"] if found else []) for rank in ranks}
    survivors = {fact["rank"] for fact in found}
    if not found or survivors | lost != set(range(job["ranks"])) or not lost <= set(job["victims"]):
        return f"survivors {sorted(survivors)}, lost {sorted(lost)}"
    if len({fact["digest"] for fact in found}) > 1:
        return "survivors disagree"
    if job["algorithm"] in INEXACT:
        return None
    leave = {rank: step for step, ranks, _ in found[0]["departures"] for rank in ranks}
    planned = World(job["ranks"], leave=leave).run(lambda comm: KINDS[job["kind"]](comm, job["algorithm"], STEPS))
    if found[0]["digest"] not in {result[0] for result in planned if result is not None}:
        return "survivors differ from the planned departure"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", type=Path)
    args = parser.parse_args()
    random_, results = random.Random(args.seed), []
    with Bar(args.jobs, "jobs") as bar:
        for _ in range(args.jobs):
            results.append(lose(draw(random_)))
            bar.update()
            if results[-1]["problem"]:
                print(results[-1], flush=True)
            if args.json:
                records.write_cases(args.json, {"seed": args.seed} | provenance() | {"cases": results})
    wrong = sum(result["problem"] is not None for result in results)
    lost = sum(bool(result.get("departures")) for result in results)
    print(f"{args.jobs} jobs, of which {lost} lost ranks on the way; {wrong} not as promised")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
