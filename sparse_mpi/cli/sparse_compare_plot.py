"""The figure of ``bench sparse-compare``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sparse_mpi.cli.figures import matplotlib, save
from sparse_mpi.cli.sparse_rivals import RIVALS
from sparse_mpi.keyed.arguments import AUTO

QUANTITIES = {"seconds": ("ms", 1e3), "bytes": ("MB sent by the busiest host", 1e-6), "memory": ("memory / data", 1.0)}
OVER_FILL_IN = "fill-in "  # with which the names of cases begin that are drawn over their fill-in


class Column(NamedTuple):
    """What one column of panels shows."""

    title: str
    label: str  # of the horizontal axis
    points: list[tuple[float, dict[str, Any]]]  # where, and the case that was measured there


def columns(jobs: Sequence[dict[str, Any]]) -> list[Column]:
    """Return a column for each case and rate over P, and one for each rate over the fill-in, of the most ranks."""
    found = []
    for rate in dict.fromkeys(job["rate"] for job in jobs):
        mine = sorted((job for job in jobs if job["rate"] == rate), key=lambda job: job["ranks"])
        names = dict.fromkeys(name for job in mine for name in job["cases"])
        for name in names:
            if not name.startswith(OVER_FILL_IN):
                points = [(job["ranks"], job["cases"][name]) for job in mine if name in job["cases"]]
                found.append(Column(f"{name}, {rate}", "P", points))
        most = mine[-1]
        filled = [case for name, case in most["cases"].items() if name.startswith(OVER_FILL_IN)]
        if filled:
            points = sorted(((case["fill-in"], case) for case in filled), key=lambda point: point[0])
            found.append(Column(f"P = {most['ranks']}, {rate}", "fill-in", points))
    return found


def draw(jobs: Sequence[dict[str, Any]], file: str) -> None:
    """Draw time, bytes and memory: rivals dashed, ``auto`` thick, the algorithms that it chooses from thin.

    Raises:
        SystemExit: matplotlib is not installed, or does not know the extension.
    """
    figures = matplotlib("figure")
    shown = columns(jobs)
    figure = figures.Figure(figsize=(2.6 * len(shown) + 2.2, 8), layout="constrained")
    panels = figure.subplots(len(QUANTITIES), len(shown), sharex="col", sharey="row", squeeze=False)
    names = list(dict.fromkeys(name for column in shown for _, case in column.points for name in case["candidates"]))
    looks = _looks(names)
    for row, (quantity, (unit, scale)) in zip(panels, QUANTITIES.items(), strict=True):
        row[0].set_ylabel(unit)
        for axes, column in zip(row, shown, strict=True):
            for name in names:
                lines = [
                    (x, case["candidates"][name][quantity]) for x, case in column.points if name in case["candidates"]
                ]
                lines = [(x, scale * y) for x, y in lines if y is not None]
                if lines:
                    axes.plot(*zip(*lines, strict=True), label=name, **looks[name])
            ticks = [x for x, _ in column.points]
            axes.set(xscale="log", yscale="log")
            axes.set_xticks(ticks, [f"{x:.3g}" for x in ticks])
            axes.minorticks_off()
            axes.grid(alpha=0.3)
    for axes, column in zip(panels[0], shown, strict=True):
        axes.set_title(column.title)
    for axes, column in zip(panels[-1], shown, strict=True):
        axes.set_xlabel(column.label)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    save(figure, file)


def _looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return how the line of each candidate looks."""
    found = {}
    for number, name in enumerate(names):
        if name == AUTO:
            found[name] = {"color": "k", "linewidth": 2.5, "marker": "o", "markersize": 4}
        elif name in RIVALS:
            found[name] = {"color": f"C{RIVALS.index(name)}", "linestyle": "--", "marker": "s", "markersize": 4}
        else:
            found[name] = {"color": f"C{len(RIVALS) + number % 6}", "linewidth": 0.9, "marker": ".", "markersize": 4}
    return found
