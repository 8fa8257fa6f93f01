"""The figure of ``bench calibrate``: predictions over measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sparse_mpi_bench.figures.style import GREY, INK, LINES, grid, matplotlib

KINDS = {"dense": "dense", "": "plain", "packed": "packed", "packed+bf16": "packed+bf16"}  # wire format -> kind of dot
COLUMNS = 3
NARROW = 60  # times the least: axes up to there have numbers between the powers of ten


def check(records: Sequence[dict[str, Any]]) -> Any:
    """Draw predicted over measured milliseconds at each rate, a colour a kind of message, rings around advice."""
    record = records[0]
    rates = list(record["rates"].items())
    rows = -(-len(rates) // COLUMNS)
    columns = -(-len(rates) // rows)
    advised = {(*of["job"], of["advised"]) for of in record["advice"]}
    heading = "predicted over measured, ms; rings: what is advised"
    shown, axes = grid(len(rates), columns, 2.45, heading)
    for panel, (rate, errors) in zip(axes, rates, strict=True):
        cases = [case for case in record["cases"] if case["rate"] == rate]
        _dots(panel, cases, advised)
        title = f"{rate}: median error {errors['median step error']:.0%}".lstrip(": ")
        panel.set_title(f"{title}\nfarthest off: {_farthest(cases)}")
    dot = matplotlib("lines").Line2D
    dots = [dot([], [], marker="o", linestyle="", color=c, label=kind) for kind, c in _colours().items()]
    shown.legend(handles=dots, loc="outside upper right", ncols=len(dots))
    return shown


def _colours() -> dict[str, str]:
    return dict(zip(KINDS.values(), LINES, strict=False))


def _kind(candidate: str) -> str:
    algorithm, _, wire = candidate.partition(" ")
    return KINDS.get("dense" if algorithm.startswith("dense") else wire, "plain")


def _pair(case: dict[str, Any]) -> tuple[float, float]:
    return 1e3 * case["step"], 1e3 * case["predicted step"]


def _farthest(cases: Sequence[dict[str, Any]]) -> str:
    return max(cases, key=lambda case: abs(math.log(case["step"] / case["predicted step"])))["candidate"]


def _dots(axes: Any, cases: Sequence[dict[str, Any]], advised: set[Any]) -> None:
    points = [_pair(case) for case in cases]
    ends = [min(map(min, points)), max(map(max, points))]
    axes.loglog(ends, ends, color=GREY, linewidth=0.8)
    for case, point in zip(cases, points, strict=True):
        axes.plot(*point, "o", color=_colours()[_kind(case["candidate"])])
        if (case["rate"], case["ranks"], case["n"], case["density"], case["candidate"]) in advised:
            axes.plot(*point, "o", color=INK, markerfacecolor="none", markersize=8, markeredgewidth=0.8)
    for axis in (axes.xaxis, axes.yaxis):
        if ends[1] < NARROW * ends[0]:
            axis.set_major_locator(matplotlib("ticker").LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
    axes.minorticks_off()
