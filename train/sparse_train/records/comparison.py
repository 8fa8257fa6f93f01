"""Ways to reduce as the command line of a study spells them, and their runs as real jobs on emulated hosts.

Tables of a study: scores paired by seed, and how long runs take on networks, by alpha and beta or as measured.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.comm import Traffic
from sparse_mpi.comm.network import Network
from sparse_mpi.reduction.arguments import spelled
from sparse_mpi_bench.analysis.interval import Interval
from sparse_train.options.reduction import AUTO

TRAIN = Path(__file__).parents[2]
LIMIT = 1800  # seconds that a job may take
PARTS = ("compute_seconds", "exposed_seconds", "update_seconds")  # of a step
SHARDS = ("shuffled", "sorted")
Record = dict[str, Any]  # of a run of a study
Records = Sequence[Record]


def arguments(way: str) -> list[str]:
    """Return a way as the command line of a training program: its algorithm, and the program's other options."""
    name, *given = way.split(":")
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
    """Raise ValueError unless there is a program of this name."""
    if not text.isidentifier() or not (TRAIN / f"{text}.py").is_file():
        raise ValueError(f"must be a program of train/, without .py, got {text!r}")


def check_way(text: str) -> None:
    """Raise ValueError unless the text begins with an algorithm, and goes on with options that have names."""
    _, algorithm, *others = arguments(text)
    if algorithm != AUTO:
        spelled(algorithm)
    if "--" in others:
        raise ValueError(f"must be ALGORITHM[:OPTION=VALUE..], got {text}")


def check_shards(text: str) -> None:
    """Raise ValueError unless the text begins with a kind of shards."""
    if text.partition(":")[0] not in SHARDS:
        raise ValueError(f"must be one of {', '.join(SHARDS)}, with options if need be, got {text}")


def start(program: str, ranks: int, links: Sequence[str], argv: Sequence[str], log: Path) -> None:
    """Run a program of train/, by its name without .py, on as many emulated hosts as ``ranks`` until it ends.

    ``links`` are the options of ``bench network`` that say what their links give, ``argv`` those of the program; the
    file ``log`` gets what is printed. Raises SystemExit, with the exit code, if the job fails, which has said why.
    """
    command = [sys.executable, "-m", "sparse_mpi", "bench", "network", "--ranks", str(ranks), *links]
    command += ["--timeout", str(LIMIT), "--", str(TRAIN / f"{program}.py"), *argv]
    with log.open("w") as printed:
        if code := subprocess.run(command, stdout=printed, stderr=printed).returncode:
            print(log.read_text()[-2000:], file=sys.stderr)
            raise SystemExit(code)


def step_seconds(events: Records) -> list[float]:
    """Return how long each step took that the records of a run tell of."""
    return [sum(event[part] for part in PARTS) for event in events if event["event"] == "step"]


def clock(epochs: Records) -> list[float]:
    """Return after how many seconds of steps each epoch was over; tests take no time in it."""
    return list(accumulate(epoch["seconds"] for epoch in epochs))


LOWER_IS_BETTER = ("perplexity", "wer")  # of headlines, see `Task.headline`


def markdown(texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown with columns of texts, then of numbers, under these headings."""
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


def modelled_seconds(record: Record, network: Network, compute: float, target: float | None = None) -> float | None:
    """Return the seconds that a run takes on ``network``, or until an epoch ends with the score ``target``, or None.

    Nothing is hidden behind the backward pass, a rank receives as much as it sends, and computes for ``compute``
    seconds in a step.
    """
    last = len(record["epochs"]) - 1 if target is None else reached(record, target)
    if last is None:
        return None
    spent = 0.0
    for epoch, steps in with_steps(record["epochs"][: last + 1]):
        step = Traffic(sent=epoch["mb_sent"] * 1e6, messages=epoch["messages"])
        spent += steps * (compute + network.seconds(step))
    return spent


def reached(record: Record, target: float) -> int | None:
    """Return the index of the first epoch whose test is as good as ``target``; None if there is none."""
    name = record["headline"]
    scores = enumerate(epoch[f"test_{name}"] for epoch in record["epochs"])
    return next((i for i, score in scores if (score <= target if name in LOWER_IS_BETTER else score >= target)), None)


def duration_table(records: Records, name: str, network: Network, compute: float, target: float | None) -> str:
    """Return a table of seconds on the network ``name``, means over the seeds, and of those until the target.

    Seeds that do not reach the target are left out of the mean, and counted.
    """
    rows = []
    for group, of in grouped(records, "shards", "way").items():
        cells = [f"{statistics.mean(modelled_seconds(record, network, compute) or 0 for record in of):.4g}"]
        if target is not None:
            spent = [modelled_seconds(record, network, compute, target) for record in of]
            until = [seconds for seconds in spent if seconds is not None]
            cells += [f"{statistics.mean(until):.4g}" if until else "-", f"{len(until)} of {len(of)}"]
        rows.append([*group, *cells])
    return markdown(["shards", "way"], [f"s on {name}", *goal(records, target)], rows)


def paired_table(records: Records, field: str) -> str:
    """Return a table of means of ``field`` over the seeds, and of differences from the first way, paired by seed."""
    reference = records[0]["way"]
    first = {(r["shards"], r["seed"]): r[field] for r in records if r["way"] == reference}
    rows = []
    for (shards, way), of in grouped(records, "shards", "way").items():
        apart = Interval.of([record[field] - first[shards, record["seed"]] for record in of])
        rows.append([shards, way, Interval.of([record[field] for record in of]), apart])
    return markdown(["shards", "way"], [field, f"minus {reference}, paired"], rows)


def measure_race(program: str, ranks: int, ways: Sequence[str], options: Sequence[str], rate: str, out: Path) -> Path:
    """Measure steps of ``ways`` on emulated hosts, as ``train/pace.py`` does, unless it is recorded already.

    Links have this ``rate``, as ``bench network`` takes it, and ``options`` are those of the program for all ways.
    Returns the file of the record, in a folder in ``out``; raises SystemExit if it cannot be measured.
    """
    folder = out / f"pace-{rate}"
    if not (folder / "pace.json").exists():
        argv = [program, "--out", str(folder), "--ways", *ways, "--", *options]
        start("pace", ranks, ["--rate", rate], argv, out / f"pace-{rate}.log")
    return folder / "pace.json"


def median_step_seconds(file: Path) -> dict[str, float]:
    """Return the median seconds of a step of each way in a record."""
    return {way: statistics.median(taken) for way, taken in json.loads(file.read_text())["seconds"].items()}


def race_record(records: Records, paces: Mapping[str, Mapping[str, float | list[float]]]) -> Record:
    """Return what a figure needs: the course of each way, and its seconds on each network.

    Seconds are those of a step, or a list of those at which each epoch was over. A course is, after each epoch, the
    step, the MB that a rank has sent, and the loss on test data, means over seeds.
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

    ``seconds`` are those of a step of each way there, ``free`` the same where links have no limit, or empty if that was
    not measured. With a ``target`` it also tells how long it takes until the test of an epoch has that score.
    """
    rows = []
    for way, taken in seconds.items():
        runs = [record for record in records if record["way"] == way]
        share = f"{free[way] / taken:.0%}" if free else "-"
        cells = [way, f"{taken * 1e3:.2f}", share, f"{runs[0]['epochs'][-1]['step'] * taken:.1f}"]
        if target is not None:
            found = [(run, index) for run in runs if (index := reached(run, target)) is not None]
            ends = [run["epochs"][index]["step"] * taken for run, index in found]
            cells += [f"{Interval.of(ends).mean:.1f}" if ends else "-", f"{len(ends)} of {len(runs)}"]
        rows.append(cells)
    numbers = [f"ms a step, {rate}", "of the speed without a limit", "s in all", *goal(records, target)]
    return markdown(["way"], numbers, rows)


def live_table(records: Records, links: str, target: float | None) -> str:
    """Return a table of how fast the ways were on ``links``; means over seeds, of medians for a step."""
    rows = []
    for (way,), of in grouped(records, "way").items():
        spans = [clock(record["epochs"])[-1] for record in of]
        sent = [sum(epoch["mb_sent"] * steps for epoch, steps in with_steps(record["epochs"])) for record in of]
        cells = [
            f"{statistics.mean(record['step_seconds'] for record in of) * 1e3:.1f}",
            f"{statistics.mean(mb / span for mb, span in zip(sent, spans, strict=True)):.3g}",
            str(Interval.of(spans)),
        ]
        if target is not None:
            ends = [end for record in of if (end := until(record, target)) is not None]
            cells += [str(Interval.of(ends)) if ends else "-", f"{len(ends)} of {len(of)}"]
        rows.append([way, *cells])
    return markdown([f"way, {links}"], ["ms a step", "MB/s", "s in all", *goal(records, target)], rows)


def until(record: Record, target: float) -> float | None:
    """Return after how many seconds of steps a run is tested to be as good as ``target``; None if it never is."""
    index = reached(record, target)
    return None if index is None else clock(record["epochs"])[index]


def courses(records: Records) -> dict[str, list[float]]:
    """Return the clock of each way, means over its runs."""
    groups = grouped(records, "way").items()
    clocks = {way: [clock(record["epochs"]) for record in of] for (way,), of in groups}
    return {way: [statistics.mean(ends) for ends in zip(*of, strict=True)] for way, of in clocks.items()}
