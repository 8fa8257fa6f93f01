"""Compare ways to reduce by training: each with the same seeds, shards and bytes, all ranks in this process.

python train/study.py vgg --ranks 8 --seeds 1 2 3 4 5 --ways dense oktopk elect:wire=packed+int8 --tune lr=0.1,0.05 \
    --shards shuffled sorted:norm=group --out runs/study -- --tiny --data fashion-mnist --epochs 1 --density 0.01

A way is an algorithm, options of it, and options of the training program: elect:votes=0.5:momentum-by=global. Options
may follow a kind of shards too, sorted:norm=group; options behind -- are for all runs. Runs are shared out among
--jobs processes; existing records are not made again. The ranks are a `World`'s, which reduces as
MPI does, to the bit, so that more of them can be studied than the machine has cores.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from io import StringIO
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.values import Parser, checked, finite, integer, new_folder
from sparse_mpi.comm.world import World
from sparse_mpi.predict.rates import rate
from sparse_train.options.arguments import file_name
from sparse_train.packages import needed
from sparse_train.records import comparison
from sparse_train.records.comparison import (
    LOWER_IS_BETTER,
    arguments,
    check_program,
    check_shards,
    check_way,
    dealing,
    paired_table,
)
from sparse_train.records.metrics import STYLE


class Run(NamedTuple):
    program: str
    ranks: int
    way: str
    shards: str
    seed: int
    options: tuple[str, ...]
    tuned: str = ""  # the tuned value of the way, an option of it

    @property
    def name(self) -> str:
        return file_name(f"{self.program}-p{self.ranks}-{self.whole_way}-{self.shards}-{self.seed}")

    @property
    def whole_way(self) -> str:
        return f"{self.way}:{self.tuned}" if self.tuned else self.way


def train(run: Run) -> dict[str, Any]:
    """Train, and return the record of the run: its epochs, and the bytes of a step and of all, each sent by a rank."""
    program = import_module(run.program).PROGRAM
    with TemporaryDirectory() as folder:
        argv = [*run.options, *arguments(run.whole_way), *dealing(run.shards)]
        argv += ["--seed", str(run.seed), "--threads", "1", "--no-progress"]
        argv += ["--checkpoint-every", "0", "--out", folder]
        args = program.parse(argv)
        with redirect_stdout(StringIO()):
            World(run.ranks).run(lambda comm: program.train(Namespace(**vars(args)), comm))
        events = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    epochs, final = [event for event in events if event["event"] == "epoch"], events[-1]
    total = sum(epoch["mb_sent"] * steps for epoch, steps in comparison.with_steps(epochs))
    return {
        **run._asdict(),
        **{name: final[name] for name in ("headline", "score", "loss")},
        "mb_sent": total / epochs[-1]["step"],
        "mb_total": total,  # all that a warm-up and a flush sent is included
        "epochs": epochs,
        **provenance(),
    }


def study(runs: Sequence[Run], folder: Path, jobs: int) -> list[dict[str, Any]]:
    """Return the records of all runs, in order; write each into ``folder`` as soon as it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {run: folder / f"{run.name}.json" for run in runs}
    missing = [run for run, file in files.items() if not file.exists()]
    for run, file in files.items():
        if run not in missing and (options := tuple(json.loads(file.read_text())["options"])) != run.options:
            raise SystemExit(f"{file} is of another study, {' '.join(options)}; take another --out")
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, Bar(len(missing), "runs") as bar:
        futures = {pool.submit(train, run): run for run in missing}
        for future in as_completed(futures):
            record = future.result() | {"command": provenance()["command"]}  # not that of the process in the pool
            files[futures[future]].write_text(json.dumps(record, indent=1) + "\n")
            bar.update()
    return [json.loads(file.read_text()) for file in files.values()]


def tune(
    runs: Sequence[Run], values: Sequence[str], seeds: Sequence[int], folder: Path, jobs: int
) -> dict[tuple[str, str], str]:
    """Return the value (``"lr=0.05"``) with the best mean score for each way and kind of shards of ``runs``."""
    ways = dict.fromkeys(run._replace(seed=0) for run in runs)
    tries = [run._replace(seed=seed, tuned=value) for run in ways for value in values for seed in seeds]
    records = study(tries, folder, jobs)
    better = min if records[0]["headline"] in LOWER_IS_BETTER else max
    best = {}
    for run in ways:
        of = [r for r in records if (r["way"], r["shards"]) == (run.way, run.shards)]
        means = {value: statistics.mean(r["score"] for r in of if r["tuned"] == value) for value in values}
        best[run.way, run.shards] = better(means, key=means.__getitem__)
        print(f"{run.shards}, {run.way}: {best[run.way, run.shards]} of", {v: round(m, 4) for v, m in means.items()})
    return best


def _check_tune(text: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9-]*=[^=,]+(,[^=,]+)*", text):
        raise ValueError(f"must be OPTION=VALUE,VALUE,.., got {text}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("program", type=checked(check_program, "vgg"), help="of train/, without .py: vgg, lstm, ...")
    add("--ranks", type=integer(1), default=8, metavar="P", help="of each run (default: 8)")
    text = "a run of each (default: 1 2 3 4 5)"
    add("--seeds", type=integer(0), nargs="+", default=[1, 2, 3, 4, 5], metavar="S", help=text)
    add(
        "--ways",
        type=checked(check_way, "elect:votes=0.5"),
        nargs="+",
        required=True,
        metavar="ALGORITHM[:OPTION=VALUE..]",
        help="the first is the reference",
    )
    add(
        "--shards",
        type=checked(check_shards, "sorted"),
        nargs="+",
        default=["shuffled"],
        metavar="KIND[:OPTION=VALUE..]",
        help="how data is dealt to ranks (default: shuffled)",
    )
    text = "give each way the best of these, as lr=0.1,0.05"
    add("--tune", type=checked(_check_tune, "lr=0.1,0.05"), metavar="OPTION=VALUE,VALUE,..", help=text)
    add("--tuning-seeds", type=integer(0), nargs="+", default=[11, 12], metavar="S", help="for that (default: 11 12)")
    text = "also measure steps of each way on emulated networks with links of these rates, none: no limit (needs root)"
    add("--emulate", type=rate, nargs="+", default=[], metavar="RATE", help=text)
    add("--target", type=finite, metavar="SCORE", help="and how long until an epoch ends with this score, there")
    add("--jobs", type=integer(1), default=os.cpu_count(), metavar="N", help="processes (default: one a CPU)")
    text = "folder for the records, tables and plot"
    add("--out", type=new_folder("runs/study"), required=True, metavar="DIR", help=text)
    figures = needed("sparse_mpi_bench.figures.training", "a study")
    write = import_module(STYLE).write
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    args, options = parser.parse_args(words[:end]), tuple(words[end + 1 :])
    for way in args.ways:
        import_module(args.program).PROGRAM.parse([*options, *arguments(way)])  # ends with a line about a wrong option
    cells = product(args.seeds, args.shards, args.ways)
    runs = [Run(args.program, args.ranks, way, kind, seed, options) for seed, kind, way in cells]
    if args.tune:
        if both := set(args.seeds) & set(args.tuning_seeds):
            parser.error(f"argument --tuning-seeds: must be apart from --seeds, got {sorted(both)} in both")
        option, _, values = args.tune.partition("=")
        tried = [f"{option}={value}" for value in values.split(",")]
        best = tune(runs, tried, args.tuning_seeds, args.out / "tuning", args.jobs)
        runs = [run._replace(tuned=best[run.way, run.shards]) for run in runs]
    records = study(runs, args.out, args.jobs)
    tables = [paired_table(records, field) for field in ("score", "loss", "mb_sent", "mb_total")]
    paces = {
        text: comparison.median_step_seconds(
            comparison.measure_race(args.program, args.ranks, args.ways, options, text, args.out)
        )
        for text in args.emulate
    }
    for text, seconds in paces.items():
        tables.append(comparison.race_table(records, text, seconds, paces.get("none", {}), args.target))
    if paces:
        shown = comparison.race_record(records, paces) | provenance()
        (args.out / "race.json").write_text(json.dumps(shown, indent=1) + "\n")
        write(partial(figures.losses, [shown]), args.out / "race.svg")
    text = "\n\n".join(tables)
    (args.out / "tables.md").write_text(text + "\n")
    write(partial(figures.curves, records), args.out / "study.svg")
    write(partial(figures.gaps, records), args.out / "gaps.svg")
    print(text)


if __name__ == "__main__":
    main()
