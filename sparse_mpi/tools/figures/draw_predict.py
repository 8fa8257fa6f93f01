"""Figures of ``predict``: exchanges over P, and predictions over what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparse_mpi.tools.bench.comparison import BASELINE
from sparse_mpi.tools.figures.style import MOST, Look, batches, finish, matplotlib, panels

KINDS = {"dense": "dense", "": "plain", "packed": "packed", "packed+bf16": "packed+bf16"}  # of dots, by wire format
COLUMNS = 3
NARROW = 60  # times the least: axes up to there have numbers between the powers of ten


def exchanges(records: Sequence[dict[str, Any]], look: Look) -> Any:
    """Draw milliseconds over P, a row a network, some algorithms a column; hollow where a formula was used."""
    record = records[0]
    cases = record["cases"]
    names = list(dict.fromkeys(case["algorithm"] for case in cases))
    first = [name for name in names if name == BASELINE]
    columns = [first + batch for batch in batches([name for name in names if name != BASELINE], MOST - 1)]
    options = record["options"]
    heading = (
        f"exchange of a step, n = {options['n']:,}, density {options['density']:g}; alpha-beta model; "
        "hollow: by an upper bound, not counted"
    )
    shown, axes = panels(len(record["networks"]), len(columns), 2.3, heading, "P", "ms", sharex=True, sharey="row")
    ticks = sorted({case["ranks"] for case in cases})
    for row, network in zip(axes, record["networks"], strict=True):
        for panel, names in zip(row, columns, strict=True):
            for name, colour in zip(names, look.lines if first else look.colours, strict=False):
                mine = sorted((case for case in cases if case["algorithm"] == name), key=lambda case: case["ranks"])
                seconds = [1e3 * case["seconds"][network] for case in mine]
                panel.loglog([case["ranks"] for case in mine], seconds, color=colour, label=name)
                for case, value in zip(mine, seconds, strict=True):
                    inside = colour if case["counted"] else look.paper
                    panel.plot(case["ranks"], value, "o", color=colour, markerfacecolor=inside)
            finish(panel, ticks, title=network)
    return shown


def check(records: Sequence[dict[str, Any]], look: Look) -> Any:
    """Draw predicted over measured milliseconds: exchanges and steps at each rate, a colour a kind of message.

    On the line they are equal. A ring marks what is advised for a job.
    """
    record = records[0]
    rates = list(record["rates"].items())
    rows = -(-len(rates) // COLUMNS)
    columns = -(-len(rates) // rows)
    advised = {(*of["job"], of["advised"]) for of in record["advice"]}
    heading = "predicted over measured, ms; rings: what is advised"
    shown, axes = panels(2 * rows, columns, 2.45, heading)
    for panel in axes.flat:
        panel.set_visible(False)
    for number, (rate, errors) in enumerate(rates):
        cases = [case for case in record["cases"] if case["rate"] == rate]
        row, column = divmod(number, columns)
        for half, (what, error) in enumerate((("exchange", "median error"), ("step", "median step error"))):
            panel = axes[2 * row + half, column]
            panel.set_visible(True)
            rings = advised if what == "step" else set()
            _dots(panel, cases, what, rings, look)
            title = f"{rate}, {what}: median error {errors[error]:.0%}".lstrip(", ")
            panel.set_title(f"{title}\nfarthest off: {_farthest(cases, what)}")
    dot = matplotlib("lines").Line2D
    dots = [dot([], [], marker="o", linestyle="", color=c, label=kind) for kind, c in _colours(look).items()]
    shown.legend(handles=dots, loc="outside upper right", ncols=len(dots))
    return shown


def _colours(look: Look) -> dict[str, str]:
    return dict(zip(KINDS.values(), look.lines, strict=False))


def _kind(candidate: str) -> str:
    algorithm, _, wire = candidate.partition(" ")
    return KINDS.get("dense" if algorithm.startswith("dense") else wire, "plain")


def _pair(case: dict[str, Any], what: str) -> tuple[float, float]:
    measured, predicted = ("seconds", "predicted") if what == "exchange" else ("step", "predicted step")
    return 1e3 * case[measured], 1e3 * case[predicted]


def _farthest(cases: Sequence[dict[str, Any]], what: str) -> str:
    """Return the candidate whose prediction is farthest off, by ratio."""

    def off(case: dict[str, Any]) -> float:
        measured, predicted = _pair(case, what)
        return max(measured / predicted, predicted / measured)

    return max(cases, key=off)["candidate"]


def _dots(axes: Any, cases: Sequence[dict[str, Any]], what: str, advised: set[Any], look: Look) -> None:
    points = [_pair(case, what) for case in cases]
    ends = [min(map(min, points)), max(map(max, points))]
    axes.loglog(ends, ends, color=look.grey, linewidth=0.8)
    for case, point in zip(cases, points, strict=True):
        axes.plot(*point, "o", color=_colours(look)[_kind(case["candidate"])])
        if (case["rate"], case["ranks"], case["n"], case["density"], case["candidate"]) in advised:
            axes.plot(*point, "o", color=look.ink, markerfacecolor="none", markersize=8, markeredgewidth=0.8)
    for axis in (axes.xaxis, axes.yaxis):
        if ends[1] < NARROW * ends[0]:
            axis.set_major_locator(matplotlib("ticker").LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
    axes.minorticks_off()
