"""Tables of a study: scores paired by seed, and how long runs take on networks, by alpha and beta or as measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sparse_mpi.comm import Traffic
from sparse_mpi.network.model import Network
from sparse_mpi.tools.analysis.interval import Interval
from sparse_train.records import live

LOWER_IS_BETTER = ("perplexity", "wer")  # of headlines, see `Task.headline`
Record = dict[str, Any]  # of a run of a study
Records = Sequence[Record]


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
    Returns the file of the record, in a folder in ``out``; raises SystemExit as `live.start` does.
    """
    folder = out / f"pace-{rate}"
    if not (folder / "pace.json").exists():
        argv = [program, "--out", str(folder), "--ways", *ways, "--", *options]
        live.start("pace", ranks, ["--rate", rate], argv, out / f"pace-{rate}.log")
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
        spans = [live.clock(record["epochs"])[-1] for record in of]
        sent = [sum(epoch["mb_sent"] * steps for epoch, steps in with_steps(record["epochs"])) for record in of]
        dense = [record["spent"]["dense"] for record in of if "spent" in record]
        cells = [
            f"{statistics.mean(record['step_seconds'] for record in of) * 1e3:.1f}",
            f"{statistics.mean(mb / span for mb, span in zip(sent, spans, strict=True)):.3g}",
            f"{statistics.mean(dense):.0%}" if dense else "-",
            str(Interval.of(spans)),
        ]
        if target is not None:
            ends = [end for record in of if (end := until(record, target)) is not None]
            cells += [str(Interval.of(ends)) if ends else "-", f"{len(ends)} of {len(of)}"]
        rows.append([way, *cells])
    return markdown([f"way, {links}"], ["ms a step", "MB/s", "dense steps", "s in all", *goal(records, target)], rows)


def until(record: Record, target: float) -> float | None:
    """Return after how many seconds of steps a run is tested to be as good as ``target``; None if it never is."""
    index = reached(record, target)
    return None if index is None else live.clock(record["epochs"])[index]


def courses(records: Records) -> dict[str, list[float]]:
    """Return the `live.clock` of each way, means over its runs."""
    groups = grouped(records, "way").items()
    clocks = {way: [live.clock(record["epochs"]) for record in of] for (way,), of in groups}
    return {way: [statistics.mean(ends) for ends in zip(*of, strict=True)] for way, of in clocks.items()}
