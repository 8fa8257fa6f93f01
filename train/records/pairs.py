"""Tables and figures of a study: scores paired by seed, their differences from the first way, and what they cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import t as student

MARKERS = "os^DvP*X"  # of ways, which may lie on each other


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


def draw_gaps(records: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the gap of each way to the first one over the bytes that a rank sends in the whole run.

    A panel for each kind of shards. Points are means over the seeds of differences paired by seed, bars their 95 %
    confidence intervals.
    """
    from matplotlib import pyplot

    kinds, ways = (list(dict.fromkeys(record[field] for record in records)) for field in ("shards", "way"))
    figure, axes = pyplot.subplots(
        1, len(kinds), figsize=(1 + 4.5 * len(kinds), 4.2), squeeze=False, sharey=True, layout="constrained"
    )
    for axis, kind in zip(axes[0], kinds, strict=True):
        of = {way: {r["seed"]: r for r in records if (r["way"], r["shards"]) == (way, kind)} for way in ways}
        first = of[ways[0]]
        for number, way in enumerate(ways):
            gaps = Interval.of([run["score"] - first[seed]["score"] for seed, run in of[way].items()])
            megabytes = statistics.mean(run["mb_total"] for run in of[way].values())
            style = {"color": f"C{number % 10}", "marker": MARKERS[number % len(MARKERS)], "linestyle": ""}
            label = way if axis is axes[0, 0] else None  # once, in the legend of all panels
            axis.errorbar(megabytes, gaps.mean, gaps.half, capsize=3, label=label, **style)
        axis.axhline(0, color="gray", linewidth=0.8, linestyle=":")
        axis.set(title=f"{kind} shards", xlabel="MB sent by a rank in the run", xscale="log")
    axes[0, 0].set_ylabel(f"{records[0]['headline']}\nminus that of {ways[0]}, paired by seed")
    figure.legend(loc="outside lower center", fontsize="small")
    figure.savefig(file, dpi=150)
