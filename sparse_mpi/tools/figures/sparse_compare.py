"""The figure of ``bench sparse-compare``: time, bytes and memory of sums of data that is sparse already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.collectives.inputs import AUTO
from sparse_mpi.tools.figures.labels import name_lines
from sparse_mpi.tools.figures.style import MOST, Look, numbers, panels

QUANTITIES = {"seconds": ("ms", 1e3), "bytes": ("MB of the busiest host", 1e-6), "memory": ("memory / data", 1.0)}
OVER_FILL_IN = "fill-in "  # with which the names of cases begin that are drawn over their fill-in


class Row(NamedTuple):
    """What one row of panels shows."""

    title: str
    label: str  # of the horizontal axis
    points: list[tuple[float, dict[str, Any]]]  # where, and the case that was measured there


def rows(jobs: Sequence[dict[str, Any]]) -> list[Row]:
    """Return a row for each case and rate over P, and one for each rate over the fill-in, of the most ranks."""
    found = []
    for rate in dict.fromkeys(job["rate"] for job in jobs):
        mine = sorted((job for job in jobs if job["rate"] == rate), key=lambda job: job["ranks"])
        names = dict.fromkeys(name for job in mine for name in job["cases"])
        for name in names:
            if not name.startswith(OVER_FILL_IN):
                points = [(job["ranks"], job["cases"][name]) for job in mine if name in job["cases"]]
                found.append(Row(f"{name}, {rate}", "P", points))
        most = mine[-1]
        filled = [case for name, case in most["cases"].items() if name.startswith(OVER_FILL_IN)]
        if filled:
            points = sorted(((case["fill-in"], case) for case in filled), key=lambda point: point[0])
            found.append(Row(f"P = {most['ranks']}, {rate}", "fill-in", points))
    return found


def figure(records: Sequence[dict[str, Any]], look: Look) -> Any:
    """Draw ``auto`` beside what others offer, and a band from the best to the worst of what it chooses from."""
    shown = rows([job for record in records for job in record["jobs"]])
    drawn, axes = panels(
        len(shown), len(QUANTITIES), 1.75, f"band: {', '.join(ALGORITHMS)}, of which {AUTO} chooses", sharey="col"
    )
    names = list(dict.fromkeys(name for row in shown for _, case in row.points for name in case["candidates"]))
    named = [AUTO, *(name for name in names if name not in (AUTO, *ALGORITHMS))][:MOST]
    below = [row.label for row in shown[1:]] + [""]
    for panels_of, row, next_label in zip(axes, shown, below, strict=True):
        for panel, (quantity, (unit, scale)) in zip(panels_of, QUANTITIES.items(), strict=True):
            _band(panel, row, quantity, scale, look)
            for name, colour in zip(named, look.lines, strict=False):
                line = _line(row, name, quantity, scale)
                if line:
                    panel.plot(*zip(*line, strict=True), "o-", label=name, color=colour)
            panel.set(xscale="log", yscale="log", title=f"{row.title}: {unit}")
            panel.set_xlabel(row.label if row.label != next_label else "")
            numbers(panel, [round(x, 3) for x, _ in row.points])
            panel.yaxis.set_major_formatter("{x:g}")
            name_lines(panel)
    return drawn


def _line(row: Row, name: str, quantity: str, scale: float) -> list[tuple[float, float]]:
    """Return the points of a candidate where the quantity was measured."""
    there = [(x, case["candidates"][name][quantity]) for x, case in row.points if name in case["candidates"]]
    return [(x, scale * y) for x, y in there if y is not None]


def _band(axes: Any, row: Row, quantity: str, scale: float, look: Look) -> None:
    """Fill what lies between the best and the worst algorithm."""
    found: dict[float, list[float]] = {}
    for name in ALGORITHMS:
        for x, y in _line(row, name, quantity, scale):
            found.setdefault(x, []).append(y)
    at = sorted(found)
    low, high = [min(found[x]) for x in at], [max(found[x]) for x in at]
    axes.fill_between(at, low, high, color=look.shades[1], linewidth=0, alpha=0.6)
