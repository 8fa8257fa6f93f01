"""Measure how long a training step takes, way beside way: each takes a few steps in its turn, in rounds, in one job.

mpiexec -n 4 python train/pace.py vgg --ways dense powersgd:rank=4 oktopk oktopk:no-overlap --out runs/pace
python -m sparse_mpi bench network --ranks 4 --rate 10mbit -- \
    train/pace.py gpt2 --ways dense elect:local-steps=4 --out runs/pace -- --tiny

A way, as in train/study.py, is an algorithm, options of it, and options of the training program; options behind -- are
for all ways. Seconds are of rank 0's steps, with its waits for the others, without tests.
"""

from __future__ import annotations

import json
import statistics
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from itertools import product
from math import lcm
from pathlib import Path
from typing import Any

from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.values import Parser, checked, integer, new_folder, record
from sparse_mpi.comm import Comm
from sparse_train.ranks import job
from sparse_train.records.comparison import arguments, check_program, check_way, step_seconds

Turn = dict[str, float]  # means of a way's steps in a round: "seconds", of which "exposed", and "mb" that a rank sends


def turns(args: Namespace, comm: Comm) -> dict[str, list[Turn]]:
    """Train each way in each round, and return its turns on rank 0; the others' results mean nothing."""
    found: dict[str, list[Turn]] = {way: [] for way in args.ways}
    with Bar(args.rounds * len(args.ways), "turns", comm.rank == 0) as bar:
        for number, way in product(range(args.rounds), args.ways):
            bar.say(way)
            folder = args.out / "runs" / f"{number}-{args.ways.index(way)}"
            import_module(args.program).PROGRAM.train(_options(args, way, folder), comm)
            comm.barrier()  # rank 0 has written all
            events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            steps = [event for event in events if event["event"] == "step"][args.warm_up :]
            turn = {"seconds": statistics.mean(step_seconds(steps))}
            for name, field in (("exposed", "exposed_seconds"), ("mb", "mb_sent")):
                turn[name] = statistics.mean(step[field] for step in steps)
            found[way].append(turn)
            bar.update()
    return found


def _options(args: Namespace, way: str, folder: Path) -> Namespace:
    argv = [*args.options, *arguments(way), "--max-steps", str(args.warm_up + args.steps), "--log-every", "1"]
    argv += ["--no-progress", "--checkpoint-every", "0", "--out", str(folder)]
    if "--threads" not in argv:
        argv += ["--threads", "1"]
    parsed: Namespace = import_module(args.program).PROGRAM.parse(argv)
    return parsed


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("program", type=checked(check_program, "vgg"), help="of train/, without .py: vgg, gpt2, ...")
    way, text = checked(check_way, "elect:votes=0.5"), "ways that take turns"
    add("--ways", type=way, nargs="+", required=True, metavar="ALGORITHM[:OPTION=VALUE..]", help=text)
    text = "that are measured in each turn, or more: a multiple of all local steps (default: 24)"
    add("--steps", type=integer(1), default=24, metavar="N", help=text)
    add("--warm-up", type=integer(0), default=8, metavar="N", help="steps before those, likewise (default: 8)")
    add("--rounds", type=integer(1), default=2, metavar="N", help="turns of each way (default: 2)")
    text = "folder for pace.json and the metrics of the turns"
    add("--out", type=new_folder("runs/pace"), required=True, metavar="DIR", help=text)
    text = "write the record there (default: pace.json in --out)"
    add("--json", type=record, metavar="FILE", help=text)
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:end])
    args.options = words[end + 1 :]
    # Ends with a line about a wrong option
    every = lcm(*(_options(args, way, args.out).local_steps or 1 for way in args.ways))
    args.steps, args.warm_up = (-(-count // every) * every for count in (args.steps, args.warm_up))
    job.run(measure, args)


def measure(args: Namespace, comm: Comm) -> None:
    found = turns(args, comm)
    if comm.rank:
        return
    medians = {way: {name: statistics.median(turn[name] for turn in of) for name in of[0]} for way, of in found.items()}
    seconds = {way: [turn["seconds"] for turn in of] for way, of in found.items()}
    measured: dict[str, Any] = {"program": args.program, "ranks": comm.size, "options": args.options}
    measured |= {"steps": args.steps, "warm_up": args.warm_up, "seconds": seconds, "medians": medians, **provenance()}
    (args.json or args.out / "pace.json").write_text(json.dumps(measured, indent=1) + "\n")
    first = medians[args.ways[0]]["seconds"]
    for way, of in medians.items():
        print(
            f"{way}: {of['seconds'] * 1e3:.2f} ms a step, {of['exposed'] * 1e3:.2f} of them exposed, {of['mb']:.3f} MB "
            f"a step and rank, {first / of['seconds']:.2f} times the speed of {args.ways[0]}"
        )


if __name__ == "__main__":
    main()
