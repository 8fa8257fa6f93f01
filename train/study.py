"""Compare ways to reduce by training: each with the same seeds, shards and bytes, all ranks in this process.

python train/study.py vgg --ranks 8 --seeds 1 2 3 4 5 --ways dense oktopk oktopk:residual=owner --out runs/residual \
    -- --tiny --data fashion-mnist --epochs 2 --density 0.01

A way is an algorithm, options of it, and options of the training program: elect:votes=0.5:feedback=gmc. Options may
follow a kind of shards too, sorted:norm=group; what comes after -- are options of all runs. Runs are shared out among
--jobs processes; records that are there already are not made again. The ranks are those of a `World`, which reduces as
MPI does, to the bit, so that more of them can be studied than the machine has cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import fields
from importlib import import_module
from io import StringIO
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from scipy.stats import t as student
from tqdm import tqdm

from options.converters import integer
from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.bench.provenance import provenance
from sparse_mpi.comm.world import World


class Run(NamedTuple):
    """One training run of a study."""

    program: str
    ranks: int
    way: str
    shards: str
    seed: int
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name of its record."""
        return f"{self.program}-p{self.ranks}-{self.way}-{self.shards}-{self.seed}".replace(":", "-").replace("=", "-")


def train(run: Run) -> dict[str, Any]:
    """Train, and return the record of the run: its epochs and the bytes of a step."""
    program = import_module(run.program).PROGRAM
    with TemporaryDirectory() as folder:
        argv = [*run.options, *arguments(run.way), *dealing(run.shards)]
        argv += ["--seed", str(run.seed), "--threads", "1", "--no-progress"]
        argv += ["--checkpoint-every", "0", "--out", folder]
        args = program.parse(argv)
        with redirect_stdout(StringIO()):
            outcome = World(run.ranks).run(lambda comm: program.train(Namespace(**vars(args)), comm))[0]
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    epochs = [record for record in map(json.loads, lines) if record["event"] == "epoch"]
    return {
        **run._asdict(),
        "headline": outcome.headline,
        "score": outcome.score,
        "loss": outcome.loss,
        "mb_sent": statistics.mean(epoch["mb_sent"] for epoch in epochs),  # by a rank in a step
        "epochs": epochs,
        **provenance(),
    }


def arguments(way: str) -> list[str]:
    """Return a way as the command line of a training program: its algorithm, and the program's other options."""
    name, *given = way.split(":")
    own = [field.name for field in fields(ALGORITHMS[name])] if name in ALGORITHMS else []
    algorithm = [name, *(option for option in given if option.split("=")[0] in own)]
    others = [option for option in given if option not in algorithm]
    return ["--algo", ":".join(algorithm), *(word for option in others for word in ("--" + option).split("=", 1))]


def dealing(shards: str) -> list[str]:
    """Return a kind of shards, and options that go with it, as the command line of a training program."""
    kind, *given = shards.split(":")
    options = [] if kind == "shuffled" else ["--shards", kind]  # not every program has that option
    return [*options, *(word for option in given for word in ("--" + option).split("=", 1))]


def study(runs: Sequence[Run], folder: Path, jobs: int) -> list[dict[str, Any]]:
    """Return the records of all runs, in order; write each into ``folder`` as soon as it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {run: folder / f"{run.name}.json" for run in runs}
    missing = [run for run, file in files.items() if not file.exists()]
    for run, file in files.items():
        if run not in missing and (options := tuple(json.loads(file.read_text())["options"])) != run.options:
            raise SystemExit(f"{file} is of another study, {' '.join(options)}; take another --out")
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, tqdm(total=len(missing), unit="run") as bar:
        futures = {pool.submit(train, run): run for run in missing}
        for future in as_completed(futures):
            files[futures[future]].write_text(json.dumps(future.result(), indent=1) + "\n")
            bar.update()
    return [json.loads(file.read_text()) for file in files.values()]


class Interval(NamedTuple):
    """A mean with its 95 % confidence interval, by Student's t."""

    mean: float
    half: float  # of its width; NaN from a single value

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        """Return that of independent values."""
        if len(values) < 2:
            return Interval(statistics.mean(values), float("nan"))
        error = statistics.stdev(values) / len(values) ** 0.5
        return Interval(statistics.mean(values), float(student.ppf(0.975, len(values) - 1)) * error)

    def __str__(self) -> str:
        return f"{self.mean:.4f} +- {self.half:.4f}"


def table(records: Sequence[dict[str, Any]], field: str) -> str:
    """Return a table of means of ``field`` over the seeds, and of differences from the first way, paired by seed."""
    lines = [f"| shards | way | {field} | minus {records[0]['way']}, paired |", "| --- | --- | ---: | ---: |"]
    for shards in dict.fromkeys(record["shards"] for record in records):
        of = [record for record in records if record["shards"] == shards]
        first = {record["seed"]: record[field] for record in of if record["way"] == records[0]["way"]}
        for way in dict.fromkeys(record["way"] for record in of):
            own = {record["seed"]: record[field] for record in of if record["way"] == way}
            apart = Interval.of([value - first[seed] for seed, value in own.items()])
            lines.append(f"| {shards} | {way} | {Interval.of(list(own.values()))} | {apart} |")
    return "\n".join(lines)


def draw(records: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw loss and score on the test data over the epochs: thick means over the seeds, thin single runs."""
    from matplotlib import pyplot

    shards, ways = (list(dict.fromkeys(record[field] for record in records)) for field in ("shards", "way"))
    fields = ["test_loss", f"test_{records[0]['headline']}"]
    figure, axes = pyplot.subplots(len(fields), len(shards), figsize=(5 * len(shards), 6), squeeze=False, sharex=True)
    for (row, field), (column, kind) in product(enumerate(fields), enumerate(shards)):
        axis = axes[row, column]
        for number, way in enumerate(ways):
            curves = [[e[field] for e in r["epochs"]] for r in records if r["way"] == way and r["shards"] == kind]
            for curve in curves:
                axis.plot(range(1, len(curve) + 1), curve, color=f"C{number}", linewidth=0.5, alpha=0.5, marker=".")
            means = [statistics.mean(values) for values in zip(*curves, strict=True)]
            axis.plot(
                range(1, len(means) + 1), means, color=f"C{number}", linewidth=2, marker="_", markersize=20, label=way
            )
        axis.set(title=f"{kind} shards" if row == 0 else "", ylabel=field.replace("_", " ") if column == 0 else "")
        axis.set_xlabel("epoch" if row == len(fields) - 1 else "")
    axes[0, 0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study, print its tables, draw its plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("program", help="of train/, without .py: vgg, lstm, ...")
    add("--ranks", type=integer(1), default=8, metavar="P", help="(default: 8)")
    add("--seeds", type=integer(0), nargs="+", default=[1, 2, 3, 4, 5], metavar="S", help="(default: 1 2 3 4 5)")
    add("--ways", nargs="+", required=True, metavar="ALGORITHM[:OPTION=VALUE..]", help="the first is the reference")
    add("--shards", nargs="+", default=["shuffled"], metavar="KIND[:OPTION=VALUE..]", help="(default: shuffled)")
    add("--jobs", type=integer(1), default=os.cpu_count(), metavar="N", help="processes (default: one a CPU)")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the records, tables and plot")
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    args, options = parser.parse_args(words[:end]), tuple(words[end + 1 :])
    for way in args.ways:
        import_module(args.program).PROGRAM.parse([*options, *arguments(way)])  # ends with a line about what is wrong
    cells = product(args.seeds, args.shards, args.ways)
    runs = [Run(args.program, args.ranks, way, kind, seed, options) for seed, kind, way in cells]
    records = study(runs, args.out, args.jobs)
    text = "\n\n".join(table(records, field) for field in ("score", "loss", "mb_sent"))
    (args.out / "tables.md").write_text(text + "\n")
    draw(records, args.out / "study.png")
    print(text)


if __name__ == "__main__":
    main()
