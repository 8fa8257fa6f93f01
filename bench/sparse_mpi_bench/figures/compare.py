"""Figures of records on emulated networks: steps over bandwidth; time, bytes and memory of sums of sparse data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.collectives.inputs import AUTO
from sparse_mpi.predict.ways import BASELINE
from sparse_mpi_bench.emulation.probe import SLOW, below
from sparse_mpi_bench.figures.style import LINES, MOST, SHADES, finish, grid

HEADING = "step over the bandwidth of a link, measured"
BELOW = f"hollow: the link measured below {SLOW:.0%} of its rate"
OVER_FILL_IN = "fill-in "  # prefix of the names of cases that are drawn over their fill-in


class BandwidthCurve(NamedTuple):
    name: str
    bandwidths: list[float]  # (m,) measured, bits a second
    seconds: list[float]  # (m,) measured, of a step
    below: list[bool]  # (m,) whether the link measured below its rate


def lines(jobs: Sequence[dict[str, Any]], ranks: int) -> list[BandwidthCurve]:
    chosen = sorted((job for job in jobs if job["ranks"] == ranks), key=lambda job: job["options"]["gbit"])
    bandwidths = [1e9 * job["options"]["gbit"] for job in chosen]
    found = []
    for name in chosen[0]["results"]:
        if not all(name in job["results"] for job in chosen):
            continue
        mine = [job["results"][name] for job in chosen]
        found.append(BandwidthCurve(name, bandwidths, [each["step"] for each in mine], [below(job) for job in chosen]))
    return found


def best(jobs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the fastest candidate of each algorithm at the lowest bandwidth, on most ranks, up to a panel's number."""
    most = max(job["ranks"] for job in jobs)
    slowest = min((job for job in jobs if job["ranks"] == most), key=lambda job: job["options"]["gbit"])
    fastest: dict[str, str] = {}
    for name in sorted(slowest["results"], key=lambda name: slowest["results"][name]["step"]):
        fastest.setdefault(name.partition(" ")[0], name)
    return [name for algorithm, name in fastest.items() if algorithm != BASELINE][: MOST - 1]


def speed(records: Sequence[dict[str, Any]]) -> Any:
    jobs = [job for record in records for job in record["jobs"]]
    counts = sorted({job["ranks"] for job in jobs})
    columns = min(2, len(counts))
    heading = f"{HEADING}; {BELOW}" if any(map(below, jobs)) else HEADING
    figure, axes = grid(len(counts), columns, 3.0, heading, "", "step, ms", sharex=True, sharey=True)
    for panel, ranks in zip(axes, counts, strict=True):
        every = {line.name: line for line in lines(jobs, ranks)}
        _panel(panel, [every[name] for name in (BASELINE, *best(jobs)) if name in every])
        panel.set_title(f"P = {ranks}")
    for panel in axes[-columns:]:
        panel.set_xlabel("Gbit/s of a rank")
        panel.tick_params(labelbottom=True)
    return figure


def _panel(axes: Any, shown: Sequence[BandwidthCurve]) -> None:
    for line, colour in zip(shown, LINES, strict=False):
        points = [b / 1e9 for b in line.bandwidths], [1e3 * s for s in line.seconds]
        axes.loglog(*points, label=line.name, color=colour)
        for x, y, hollow in zip(*points, line.below, strict=True):
            axes.plot(x, y, "o", color=colour, fillstyle="none" if hollow else "full")
    axes.xaxis.set_major_formatter("{x:g}")
    finish(axes)


class CasePanel(NamedTuple):
    title: str
    label: str  # label of the horizontal axis
    points: list[tuple[float, dict[str, Any]]]  # places, and the cases that were measured there


def rows(jobs: Sequence[dict[str, Any]]) -> list[CasePanel]:
    """Return a row for each case and rate over P, and one for each rate over the fill-in, of the most ranks."""
    found = []
    for rate in dict.fromkeys(job["rate"] for job in jobs):
        mine = sorted((job for job in jobs if job["rate"] == rate), key=lambda job: job["ranks"])
        shown = rate + "*" * any(map(below, mine))
        names = dict.fromkeys(name for job in mine for name in job["cases"])
        for name in names:
            if not name.startswith(OVER_FILL_IN):
                points = [(job["ranks"], job["cases"][name]) for job in mine if name in job["cases"]]
                found.append(CasePanel(f"{name}, {shown}", "P", points))
        most = mine[-1]
        filled = [case for name, case in most["cases"].items() if name.startswith(OVER_FILL_IN)]
        if filled:
            points = sorted(((case["fill-in"], case) for case in filled), key=lambda point: point[0])
            found.append(CasePanel(f"P = {most['ranks']}, {shown}", "fill-in", points))
    return found


def sparse(records: Sequence[dict[str, Any]]) -> Any:
    """Draw seconds of ``auto`` and of others, and a band over the ones it chooses from: a panel for each case."""
    jobs = [job for record in records for job in record["jobs"]]
    shown = rows(jobs)
    note = f"; *: the link measured below {SLOW:.0%} of its rate" if any(map(below, jobs)) else ""
    heading = f"band: {', '.join(ALGORITHMS)}, of which {AUTO} chooses{note}"
    drawn, axes = grid(len(shown), 2, 2.4, heading, sharey="col")
    names = list(dict.fromkeys(name for row in shown for _, case in row.points for name in case["candidates"]))
    named = [AUTO, *(name for name in names if name not in (AUTO, *ALGORITHMS))][:MOST]
    beneath = [row.label for row in shown[2:]] + ["", ""]
    for panel, row, next_label in zip(axes, shown, beneath, strict=False):
        _band(panel, row)
        for name, colour in zip(named, LINES, strict=False):
            line = _line(row, name)
            if line:
                panel.plot(*zip(*line, strict=True), "o-", label=name, color=colour)
        settings = {"title": f"{row.title}: ms", "xlabel": row.label if row.label != next_label else ""}
        finish(panel, [round(x, 3) for x, _ in row.points], xscale="log", yscale="log", **settings)
    return drawn


def _line(row: CasePanel, name: str) -> list[tuple[float, float]]:
    there = [(x, case["candidates"][name]) for x, case in row.points if name in case["candidates"]]
    return [(x, 1e3 * found["seconds"]) for x, found in there]


def _band(axes: Any, row: CasePanel) -> None:
    found: dict[float, list[float]] = {}
    for name in ALGORITHMS:
        for x, y in _line(row, name):
            found.setdefault(x, []).append(y)
    at = sorted(found)
    low, high = [min(found[x]) for x in at], [max(found[x]) for x in at]
    axes.fill_between(at, low, high, color=SHADES[1], linewidth=0, alpha=0.6)
