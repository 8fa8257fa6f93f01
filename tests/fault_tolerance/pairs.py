"""Train a program twice for each seed, once with ranks killed on the way, and compare how well the models do.

    python -m tests.fault_tolerance.pairs --seeds 1 2 3 --steps 468 -- \\
        train/vgg.py --tiny --data fashion-mnist --batch-size 16

All runs have ``--ranks`` ranks that train and ``--spares`` that wait. Ranks and steps of the losses are drawn by the
seed; a rank is killed by SIGKILL when the records have that step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sparse_mpi.cli import records, values
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.values import Parser
from sparse_mpi_bench.chaos.faults import ranks_below

from .chaos import LAUNCH

LIMIT = 1800  # seconds of a run


def steps_of(folder: Path) -> int:
    """Return how many steps the records have."""
    file = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []
    return max((line["step"] for line in lines if line["event"] == "step"), default=0)


def train(args: argparse.Namespace, seed: int, losses: list[tuple[int, int]]) -> dict[str, Any]:
    """Run the program; kill ranks after steps, as ``losses`` says; return its last record and those of the losses."""
    with tempfile.TemporaryDirectory() as place:
        folder, waiting = Path(place) / "run", sorted(losses)
        command = [*LAUNCH, "-n", str(args.ranks + args.spares), *args.program, "--elastic"]
        command += ["--spares", str(args.spares), "--seed", str(seed), "--no-progress", "--log-every", "5"]
        with (Path(place) / "said").open("w+") as said:
            run = subprocess.Popen([*command, "--out", str(folder)], stdout=said, stderr=said)
            until = time.monotonic() + LIMIT
            while run.poll() is None and time.monotonic() < until:
                while waiting and steps_of(folder) >= waiting[0][0]:
                    if (process := ranks_below(run.pid).get(waiting.pop(0)[1])) is not None:
                        os.kill(process, signal.SIGKILL)
                time.sleep(0.2)
            if run.poll() is None:
                run.terminate()
            said.seek(0)
            text = said.read()
        if run.wait() or waiting:
            raise SystemExit(f"the run of seed {seed} ended with status {run.returncode}:\n{text[-3000:]}")
        found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        last = next(record for record in found if record["event"] == "final")
        return {
            "score": last["score"],
            "identical": last["identical"],
            "steps": last["steps"],
            "losses": [record for record in found if record["event"] == "loss"],
        }


def main() -> int:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("--seeds", type=values.integer(0), nargs="+", default=[1, 2, 3, 4, 5], help="a pair of runs for each")
    add("--ranks", type=values.integer(2), default=8, help="of each run")
    add("--spares", type=values.integer(0), default=1, help="ranks that wait beside them")
    add("--lost", type=values.integer(0), default=2, help="ranks that are killed")
    add("--steps", type=values.integer(5), required=True, help="of a run: ranks are lost in its second to fourth fifth")
    add("--json", type=values.record, metavar="FILE", help="write what was found after each pair")
    add("program", type=values.text, nargs="+", help="a training program and its options, after --")
    args = parser.parse_args()
    pairs: list[dict[str, Any]] = []
    with Bar(2 * len(args.seeds), "runs") as bar:
        for seed in args.seeds:
            random_ = random.Random(seed)
            ranks = random_.sample(range(args.ranks), args.lost)
            losses = [(random_.randrange(args.steps // 5, 4 * args.steps // 5), rank) for rank in ranks]
            pair: dict[str, Any] = {"seed": seed, "killed": [{"step": step, "rank": rank} for step, rank in losses]}
            for name, chosen in (("undisturbed", []), ("disturbed", losses)):
                pair[name] = train(args, seed, chosen)
                bar.update()
            pair["gap"] = pair["disturbed"]["score"] - pair["undisturbed"]["score"]
            pairs.append(pair)
            print({name: pair[name] for name in ("seed", "gap")}, flush=True)
            if args.json:
                records.write(args.json, records.options(args) | provenance() | {"cases": pairs})
    print(f"mean gap {statistics.mean(pair['gap'] for pair in pairs):+.4f} over {len(pairs)} pairs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
