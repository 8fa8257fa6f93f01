"""Ways to reduce as the command line of a study spells them, and its tables: scores paired by seed, measured times."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.reduction.arguments import spelled, words
from sparse_train.options.reduction import AUTO
from sparse_train.packages import needed

TRAIN = Path(__file__).parents[2]
LIMIT = 1800  # seconds that a job may take
PARTS = ("compute_seconds", "exposed_seconds", "update_seconds")  # parts of a step
SHARDS = ("shuffled", "sorted")
Record = dict[str, Any]  # record of a run of a study
Records = Sequence[Record]
LOWER_IS_BETTER = ("perplexity", "wer")  # headlines, see `Task.headline`


def arguments(way: str) -> list[str]:
    """Return a way as the command line of a training program: its algorithm, and the program's other options."""
    name, *given = words(way)
    own = [field.name for field in fields(ALGORITHMS[name])] if name in ALGORITHMS else []
    algorithm = [name, *(option for option in given if option.split("=")[0] in own)]
    others = [option for option in given if option not in algorithm]
    return ["--algo", ":".join(algorithm), *_words(others)]


def dealing(shards: str) -> list[str]:
    """Return a kind of shards, and options that go with it, as the command line of a training program."""
    kind, *given = shards.split(":")
    options = [] if kind == "shuffled" else ["--shards", kind]  # not every program has that option
    return [*options, *_words(given)]


def _words(options: Iterable[str]) -> list[str]:
    return [word for option in options for word in f"--{option}".split("=", 1)]


def check_program(text: str) -> None:
    if not text.isidentifier() or not (TRAIN / f"{text}.py").is_file():
        raise ValueError(f"must be a program of train/, without .py, got {text!r}")


def check_way(text: str, known: Sequence[str] | None = None) -> None:
    """Raise ValueError unless ``text`` is ALGORITHM[:OPTION=VALUE..], with options of the program in ``known``."""
    _, algorithm, *others = arguments(text)
    if algorithm != AUTO or known is not None:
        spelled(algorithm)
    if "--" in others:
        raise ValueError(f"must be ALGORITHM[:OPTION=VALUE..], got {text}")
    if known is not None and (unknown := sorted({*others} - {*known})):
        raise ValueError(f"must have no options but the algorithm's and {', '.join(known)}, got {', '.join(unknown)}")


def check_shards(text: str) -> None:
    if text.partition(":")[0] not in SHARDS:
        raise ValueError(f"must be one of {', '.join(SHARDS)}, with options if need be, got {text}")


def start(program: str, ranks: int, links: Sequence[str], argv: Sequence[str], log: Path) -> None:
    """Run a program of train/, by its name without .py, on ``ranks`` emulated hosts until it ends.

    ``links`` are the options of ``bench network`` for their links, ``argv`` the program's; the file ``log`` gets the
    output. Raises SystemExit with its exit code if the job fails.
    """
    command = [sys.executable, "-m", "sparse_mpi", "bench", "network", "--ranks", str(ranks), *links]
    command += ["--timeout", str(LIMIT), "--", str(TRAIN / f"{program}.py"), *argv]
    with log.open("w") as printed:
        if code := subprocess.run(command, stdout=printed, stderr=printed).returncode:
            print(log.read_text()[-2000:], file=sys.stderr)
            raise SystemExit(code)


def step_seconds(events: Records) -> list[float]:
    """Return the duration of each recorded step of a run."""
    return [sum(event[part] for part in PARTS) for event in events if event["event"] == "step"]


def markdown(texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [(*texts, *numbers), ["---"] * len(texts) + ["---:"] * len(numbers), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def grouped(records: Records, *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    """Return the records by their values of ``keys``, in the order in which these first occur."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in keys), []).append(record)
    return groups


def goal(records: Records, target: float | None) -> list[str]:
    """Return the headings of columns about a target: seconds until it is reached, and how many runs reach it."""
    return [] if target is None else [f"s until {records[0]['headline']} {target:g}", "reached by"]


def with_steps(epochs: Records) -> list[tuple[Record, int]]:
    """Return each epoch's record with the number of its steps."""
    ends = [0, *(epoch["step"] for epoch in epochs)]
    return [(epoch, end - start) for epoch, (start, end) in zip(epochs, pairwise(ends), strict=True)]


def reached(record: Record, target: float) -> int | None:
    """Return the index of the first epoch with a test as good as ``target``; None if there is none."""
    name = record["headline"]
    scores = enumerate(epoch[f"test_{name}"] for epoch in record["epochs"])
    return next((i for i, score in scores if (score <= target if name in LOWER_IS_BETTER else score >= target)), None)


def _interval() -> Any:
    return needed("sparse_mpi_bench.analysis.interval", "a table of means").Interval


def paired_table(records: Records, field: str) -> str:
    """Return a table of means of ``field`` over the seeds, and of differences from the first way, paired by seed."""
    reference, interval = records[0]["way"], _interval()
    first = {(r["shards"], r["seed"]): r[field] for r in records if r["way"] == reference}
    rows = []
    for (shards, way), of in grouped(records, "shards", "way").items():
        apart = interval.of([record[field] - first[shards, record["seed"]] for record in of])
        rows.append([shards, way, interval.of([record[field] for record in of]), apart])
    return markdown(["shards", "way"], [field, f"minus {reference}, paired"], rows)


def measure_race(program: str, ranks: int, ways: Sequence[str], options: Sequence[str], rate: str, out: Path) -> Path:
    """Measure steps of ``ways`` on emulated hosts, as ``train/pace.py`` does, unless it is recorded already.

    Links have this ``rate``, as ``bench network`` takes it, and ``options`` are the program's for all ways. Returns the
    file of the record, in a folder in ``out``; raises SystemExit as `start` does.
    """
    folder = out / f"pace-{rate}"
    if not (folder / "pace.json").exists():
        argv = [program, "--out", str(folder), "--ways", *ways, "--", *options]
        start("pace", ranks, ["--rate", rate], argv, out / f"pace-{rate}.log")
    return folder / "pace.json"


def median_step_seconds(file: Path) -> dict[str, float]:
    return {way: statistics.median(taken) for way, taken in json.loads(file.read_text())["seconds"].items()}


def race_record(records: Records, paces: Mapping[str, Mapping[str, float | list[float]]]) -> Record:
    """Return the data of a figure: the course of each way, and its seconds on each network.

    Seconds are of a step, or a list of the ends of epochs. A course is, after each epoch, the step, the MB that a rank
    has sent, and the loss on test data, means over seeds.
    """
    found = {}
    for (way,), of in grouped(records, "way").items():
        sent, course = 0.0, []
        for counted in zip(*(with_steps(run["epochs"]) for run in of), strict=True):
            sent += statistics.mean(epoch["mb_sent"] * steps for epoch, steps in counted)
            losses = [epoch["test_loss"] for epoch, _ in counted]
            course.append((counted[0][0]["step"], sent, statistics.mean(losses)))
        found[way] = course
    about = {name: records[0][name] for name in ("program", "ranks", "options")}
    return {**about, "seeds": sorted({run["seed"] for run in records}), "courses": found, "seconds": paces}


def race_table(
    records: Records, rate: str, seconds: dict[str, float], free: dict[str, float], target: float | None
) -> str:
    """Return a table of how fast the ways are on a network of this ``rate``.

    ``seconds`` are the seconds of a step of each way there, ``free`` the same where links have no limit, or empty if
    that was not measured. With a ``target`` it also has the time until the test of an epoch has that score.
    """
    rows = []
    for way, taken in seconds.items():
        runs = [record for record in records if record["way"] == way]
        share = f"{free[way] / taken:.0%}" if free else "-"
        cells = [way, f"{taken * 1e3:.2f}", share, f"{runs[0]['epochs'][-1]['step'] * taken:.1f}"]
        if target is not None:
            found = [(run, index) for run in runs if (index := reached(run, target)) is not None]
            ends = [run["epochs"][index]["step"] * taken for run, index in found]
            cells += [f"{statistics.mean(ends):.1f}" if ends else "-", f"{len(ends)} of {len(runs)}"]
        rows.append(cells)
    numbers = [f"ms a step, {rate}", "of the speed without a limit", "s in all", *goal(records, target)]
    return markdown(["way"], numbers, rows)
