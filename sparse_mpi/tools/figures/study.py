"""Figures of ``train/study.py``: how ways to reduce train, seed by seed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from sparse_mpi.tools.analysis.interval import Interval
from sparse_mpi.tools.figures.labels import name_lines, name_point
from sparse_mpi.tools.figures.style import MOST, Look, batches, panels

Records = Sequence[dict[str, Any]]


def curves(records: Records, look: Look) -> Any:
    """Draw the score on the test data, a row a kind of shards: over the epochs, and of all runs in the end.

    Single runs are thin lines and dots, their means thick lines and bars. Runs of one epoch have their loss instead of
    lines.
    """
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
            draw(panel, {way: of for way, of in values.items() if of}, look)
            panel.set_title(
                f"{field.replace('_', ' ')}, {kind} shards{', in the end' * (not single and panel is right)}"
            )
        if single:
            right.set_yticklabels([])
    return shown


def gaps(records: Records, look: Look) -> Any:
    """Draw the gap of each way to the first one over the bytes that a rank sends in the whole run.

    A panel for each kind of shards. Points are means over the seeds of differences paired by seed, bars their 95 %
    confidence intervals.
    """
    rows = _rows(records)
    heading = f"{records[0]['headline']} minus that of {rows[0][1][0]}, paired by seed; bars: 95 %"
    shown, axes = panels(len(rows), 1, 2.4, heading, sharex=True)
    for panel, (kind, ways) in zip(axes[:, 0], rows, strict=True):
        of = {way: {r["seed"]: r for r in records if (r["way"], r["shards"]) == (way, kind)} for way in ways}
        first = of[ways[0]]
        for way, colour in zip(ways, look.lines, strict=False):
            paired = [run["score"] - first[seed]["score"] for seed, run in of[way].items() if seed in first]
            if paired:
                gap = Interval.of(paired)
                megabytes = statistics.mean(run["mb_total"] for run in of[way].values())
                panel.errorbar(megabytes, gap.mean, gap.half, capsize=3, color=colour, fmt="o", elinewidth=0.8)
                name_point(panel, way, (megabytes, gap.mean), colour)
        panel.axhline(0, color=look.grey, linewidth=0.8)
        panel.set(title=f"{kind} shards", xscale="log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.margins(x=0.1, y=0.15)
    axes[-1, 0].set_xlabel("MB sent by a rank in the run")
    return shown


def _rows(records: Records) -> list[tuple[str, list[str]]]:
    """Return a row for each kind of shards and as many ways as a panel has, dense, or the first, in each."""
    shards, ways = (list(dict.fromkeys(record[field] for record in records)) for field in ("shards", "way"))
    first, *others = sorted(ways, key=lambda way: way != "dense")
    return [(kind, [first, *batch]) for kind in shards for batch in batches(others, MOST - 1)]


def _values(records: Records, way: str, kind: str, field: str) -> list[list[float]]:
    """Return the values of all epochs, a list for each seed."""
    return [[e[field] for e in r["epochs"]] for r in records if r["way"] == way and r["shards"] == kind]


def _points(axes: Any, values: dict[str, list[list[float]]], look: Look) -> None:
    for number, ((_, runs), colour) in enumerate(zip(values.items(), look.lines, strict=False)):
        ends = [run[-1] for run in runs]
        axes.plot(ends, [number] * len(ends), "o", color=colour, alpha=0.6)
        axes.plot(statistics.mean(ends), number, "|", color=colour, markersize=13, markeredgewidth=2)
    axes.set_yticks(range(len(values)), list(values))
    axes.set_ylim(len(values) - 0.5, -0.5)


def _lines(axes: Any, values: dict[str, list[list[float]]], look: Look) -> None:
    for (way, runs), colour in zip(values.items(), look.lines, strict=False):
        for run in runs:
            axes.plot(range(1, len(run) + 1), run, color=colour, linewidth=0.4, alpha=0.6)
        means = [statistics.mean(values) for values in zip(*runs, strict=True)]
        axes.plot(range(1, len(means) + 1), means, color=colour, linewidth=2, label=way)
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)
    name_lines(axes)
