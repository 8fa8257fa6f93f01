"""Figures of training: one run, and the ways to reduce that ``train/study.py`` compares."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sparse_mpi_bench.analysis.interval import Interval
from sparse_mpi_bench.figures.style import COLOURS, GREY, INK, LINES, MOST, batches, name_lines, name_point, panels

Records = Sequence[dict[str, Any]]
Race = dict[str, Any]
AMOUNTS = {"density": "", "budget": "", "step-seconds": " s"}  # options that say how much is sent, and their units


def run(records: Records) -> Any:
    config = records[0]
    steps, epochs = columns(records, "step"), columns(records, "epoch")
    heading = "{algo} on {data}, {ranks} ranks, k = {k:,} of {parameters:,}".format(**config)
    shown, axes = panels(1, 3, 2.4, heading)
    loss, score, traffic = axes[0]
    headline = config["headline"]
    fine, colours = {"linewidth": 0.5, "color": COLOURS[0]}, (COLOURS[0], INK)
    loss.plot(steps["step"], steps["loss"], label="training", **fine)
    loss.plot(epochs["step"], epochs["test_loss"], "o-", label="test", color=INK)
    for (label, name), colour in zip((("training", headline), ("test", f"test_{headline}")), colours, strict=True):
        if name in epochs:  # not every task has its score in training
            score.plot(epochs["step"], epochs[name], "o-", label=label, color=colour)
    traffic.plot(steps["step"], steps["mb_sent"], label="rank 0", **fine)
    traffic.plot(epochs["step"], epochs["mb_sent"], "o-", label="mean of ranks", color=INK)
    traffic.set_ylim(bottom=0)
    for panel, title in ((loss, "loss"), (score, headline), (traffic, "MB sent per step and rank")):
        panel.set(title=title, xlabel="step")
        name_lines(panel)
    return shown


def columns(records: Records, event: str) -> dict[str, list[float]]:
    chosen = [record for record in records if record["event"] == event]
    names = dict.fromkeys(name for record in chosen for name in record)
    return {name: [record.get(name, math.nan) for record in chosen] for name in names}


def losses(races: Sequence[Race]) -> Any:
    """Draw the loss on the test data over seconds on each network, and over MB sent: a row for each study."""
    rates = list(dict.fromkeys(rate for race in races for rate in race["seconds"] if rate != "none"))
    shown, axes = panels(len(races), len(rates) + 1, 2.3, sharey="row")
    for row, race in zip(axes, races, strict=True):
        ways = list(race["courses"])[:MOST]
        names = short(ways)
        for panel, rate in zip(row, [*rates, None], strict=True):
            seconds = race["seconds"].get(rate, {})
            for way, colour in zip(ways, LINES, strict=False):
                if rate is not None and way not in seconds:
                    continue
                steps, sent, heights = zip(*race["courses"][way], strict=True)
                at = sent if rate is None else seconds[way]
                at = at if isinstance(at, (list, tuple)) else [step * at for step in steps]  # all steps are as long
                panel.plot(at, heights, color=colour, label=names[way] if rate is None else "_")
            panel.set(xscale="log", xlabel=f"seconds, {rate}" if rate else "MB sent by a rank")
            panel.minorticks_off()
        row[0].set_ylabel("test loss")
        row[0].set_title(f"{race['program']}, {race['ranks']} ranks")
        row[-1].set_xlim(right=10 * row[-1].get_xlim()[1])  # room for names
        name_lines(row[-1])
    return shown


def short(ways: Sequence[str]) -> dict[str, str]:
    """Return short names of ways: the algorithm and its amount, or all of it where that is not enough."""
    told = {way: dict(option.split("=", 1) for option in way.split(":") if "=" in option) for way in ways}
    names = {}
    for way, options in told.items():
        names[way] = way.split(":")[0] + (f" /{options['local-steps']}" if "local-steps" in options else "")
    if len(set(names.values())) < len(names):
        for way, options in told.items():
            names[way] += "".join(f" {options[name]}{unit}" for name, unit in AMOUNTS.items() if name in options)
    often = Counter(names.values())
    return {way: name if often[name] == 1 else way for way, name in names.items()}


def curves(records: Records) -> Any:
    """Draw the score over the epochs, and of all runs in the end: runs thin, means thick, a row a kind of shards."""
    rows = _rows(records)
    score = f"test_{records[0]['headline']}"
    single = all(len(record["epochs"]) == 1 for record in records)
    shown, axes = panels(len(rows), 2, 0.5 + 0.25 * len(rows[0][1]) if single else 2.0)
    for (left, right), (kind, ways) in zip(axes, rows, strict=True):
        for panel, field, draw in (
            (left, "test_loss" if single else score, _points if single else _lines),
            (right, score, _points),
        ):
            values = {way: _values(records, way, kind, field) for way in ways}
            draw(panel, {way: of for way, of in values.items() if of})
            panel.set_title(
                f"{field.replace('_', ' ')}, {kind} shards{', in the end' * (not single and panel is right)}"
            )
        if single:
            right.set_yticklabels([])
    return shown


def gaps(records: Records) -> Any:
    """Draw the gap of each way to the first one, paired by seed, over the bytes that a rank sends in the run."""
    rows = _rows(records)
    heading = f"{records[0]['headline']} minus that of {rows[0][1][0]}, paired by seed; bars: 95 %"
    shown, axes = panels(len(rows), 1, 2.4, heading, "MB sent by a rank in the run", sharex=True)
    for panel, (kind, ways) in zip(axes[:, 0], rows, strict=True):
        of = {way: {r["seed"]: r for r in records if (r["way"], r["shards"]) == (way, kind)} for way in ways}
        first = of[ways[0]]
        for way, colour in zip(ways, LINES, strict=False):
            paired = [run["score"] - first[seed]["score"] for seed, run in of[way].items() if seed in first]
            if paired:
                gap = Interval.of(paired)
                megabytes = statistics.mean(run["mb_total"] for run in of[way].values())
                panel.errorbar(megabytes, gap.mean, gap.half, capsize=3, color=colour, fmt="o", elinewidth=0.8)
                name_point(panel, way, (megabytes, gap.mean), colour)
        panel.axhline(0, color=GREY, linewidth=0.8)
        panel.set(title=f"{kind} shards", xscale="log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.margins(x=0.1, y=0.15)
    return shown


def _rows(records: Records) -> list[tuple[str, list[str]]]:
    shards, ways = (list(dict.fromkeys(record[field] for record in records)) for field in ("shards", "way"))
    first, *others = sorted(ways, key=lambda way: way != "dense")
    return [(kind, [first, *batch]) for kind in shards for batch in batches(others, MOST - 1)]


def _values(records: Records, way: str, kind: str, field: str) -> list[list[float]]:
    return [[e[field] for e in r["epochs"]] for r in records if r["way"] == way and r["shards"] == kind]


def _points(axes: Any, values: dict[str, list[list[float]]]) -> None:
    for number, ((_, runs), colour) in enumerate(zip(values.items(), LINES, strict=False)):
        ends = [run[-1] for run in runs]
        axes.plot(ends, [number] * len(ends), "o", color=colour, alpha=0.6)
        axes.plot(statistics.mean(ends), number, "|", color=colour, markersize=13, markeredgewidth=2)
    axes.set_yticks(range(len(values)), list(values))
    axes.set_ylim(len(values) - 0.5, -0.5)


def _lines(axes: Any, values: dict[str, list[list[float]]]) -> None:
    for (way, runs), colour in zip(values.items(), LINES, strict=False):
        for run in runs:
            axes.plot(range(1, len(run) + 1), run, color=colour, linewidth=0.4, alpha=0.6)
        means = [statistics.mean(values) for values in zip(*runs, strict=True)]
        axes.plot(range(1, len(means) + 1), means, color=colour, linewidth=2, label=way)
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)
    name_lines(axes)
