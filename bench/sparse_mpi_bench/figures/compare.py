"""Figures of ``bench compare``, step over bandwidth, and ``bench sparse-compare``, time, bytes and memory of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.collectives.inputs import AUTO
from sparse_mpi.predict.ways import BASELINE
from sparse_mpi_bench.emulation.probe import SLOW, below
from sparse_mpi_bench.figures.style import LINES, MOST, SHADES, batches, finish, panels

COLUMNS = 4
HEADING = "step over the bandwidth of a link, measured"
BELOW = f"hollow: the link measured below {SLOW:.0%} of its rate"


class Line(NamedTuple):
    """A candidate at one number of ranks."""

    name: str
    bandwidths: list[float]  # (m,) measured, bits a second
    seconds: list[float]  # (m,) measured, of a step
    below: list[bool]  # (m,) whether the link measured below its rate


class Group(NamedTuple):
    """What one panel shows beside dense: candidates, and what its lines are called."""

    title: str
    names: dict[str, str]


def lines(jobs: Sequence[dict[str, Any]], ranks: int) -> list[Line]:
    """Return the lines of the candidates that every job on so many ranks has."""
    chosen = sorted((job for job in jobs if job["ranks"] == ranks), key=lambda job: job["options"]["gbit"])
    bandwidths = [1e9 * job["options"]["gbit"] for job in chosen]
    found = []
    for name in chosen[0]["results"]:
        if not all(name in job["results"] for job in chosen):
            continue
        mine = [job["results"][name] for job in chosen]
        found.append(Line(name, bandwidths, [each["step"] for each in mine], [below(job) for job in chosen]))
    return found


def groups(names: Sequence[str]) -> list[Group]:
    """Return a group for each algorithm in several wire formats, and groups of those in one; or one group of all."""
    others = sorted(name for name in names if name != BASELINE)
    if len(others) < MOST:
        return [Group("", {name: name for name in others})]
    families: dict[str, dict[str, str]] = {}
    for name in others:
        algorithm, _, wire = name.partition(" ")
        families.setdefault(algorithm, {})[name] = wire or "plain"
    found = [Group(algorithm, family) for algorithm, family in families.items() if 1 < len(family) < MOST]
    alone = [name for name in others if not any(name in group.names for group in found)]
    return found + [Group("others", {name: name for name in batch}) for batch in batches(alone, MOST - 1) if batch]


def best(jobs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the fastest candidate of each algorithm at the lowest bandwidth, on most ranks, as many as a panel has."""
    most = max(job["ranks"] for job in jobs)
    slowest = min((job for job in jobs if job["ranks"] == most), key=lambda job: job["options"]["gbit"])
    fastest: dict[str, str] = {}
    for name in sorted(slowest["results"], key=lambda name: slowest["results"][name]["step"]):
        fastest.setdefault(name.partition(" ")[0], name)
    return [name for algorithm, name in fastest.items() if algorithm != BASELINE][: MOST - 1]


def all_of(records: Sequence[dict[str, Any]]) -> Any:
    """Draw all candidates: a panel for each number of ranks and group."""
    jobs = [job for record in records for job in record["jobs"]]
    return _figure(jobs, groups([name for name in dict.fromkeys(n for job in jobs for n in job["results"])]))


def best_of(records: Sequence[dict[str, Any]]) -> Any:
    """Draw the best candidates beside dense: a panel for each number of ranks."""
    jobs = [job for record in records for job in record["jobs"]]
    return _figure(jobs, [Group("", {name: name for name in best(jobs)})])


def _figure(jobs: Sequence[dict[str, Any]], shown: Sequence[Group]) -> Any:
    cells = [(ranks, group) for ranks in sorted({job["ranks"] for job in jobs}) for group in shown]
    columns = min(COLUMNS if len(shown) > 1 else 2, len(cells))
    rows = -(-len(cells) // columns)
    heading = f"{HEADING}; {BELOW}" if any(map(below, jobs)) else HEADING
    figure, axes = panels(
        rows, columns, 1.75 if columns > 2 else 3.0, heading, "", "step, ms", sharex=True, sharey=True
    )
    for panel in axes.flat[len(cells) :]:
        panel.set_visible(False)
    for panel, (ranks, group) in zip(axes.flat, cells, strict=False):
        every = {line.name: line for line in lines(jobs, ranks)}
        named = [every[name] for name in (BASELINE, *group.names) if name in every]
        _panel(panel, named, group)
        panel.set_title(f"{group.title}, P = {ranks}".lstrip(", "))
    for panel in axes.flat[max(0, len(cells) - columns) : len(cells)]:
        panel.set_xlabel("Gbit/s of a rank")
        panel.tick_params(labelbottom=True)
    return figure


def _panel(axes: Any, shown: Sequence[Line], group: Group) -> None:
    for line, colour in zip(shown, LINES, strict=False):
        points = [b / 1e9 for b in line.bandwidths], [1e3 * s for s in line.seconds]
        axes.loglog(*points, label=group.names.get(line.name, line.name), color=colour)
        for x, y, hollow in zip(*points, line.below, strict=True):
            axes.plot(x, y, "o", color=colour, fillstyle="none" if hollow else "full")
    axes.xaxis.set_major_formatter("{x:g}")
    finish(axes)


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
        shown = rate + "*" * any(map(below, mine))
        names = dict.fromkeys(name for job in mine for name in job["cases"])
        for name in names:
            if not name.startswith(OVER_FILL_IN):
                points = [(job["ranks"], job["cases"][name]) for job in mine if name in job["cases"]]
                found.append(Row(f"{name}, {shown}", "P", points))
        most = mine[-1]
        filled = [case for name, case in most["cases"].items() if name.startswith(OVER_FILL_IN)]
        if filled:
            points = sorted(((case["fill-in"], case) for case in filled), key=lambda point: point[0])
            found.append(Row(f"P = {most['ranks']}, {shown}", "fill-in", points))
    return found


def sparse(records: Sequence[dict[str, Any]], quantities: Sequence[str] = tuple(QUANTITIES)) -> Any:
    """Draw ``auto`` beside what others offer, and a band from the best to the worst of what it chooses from.

    A row for each case and a column for each of ``quantities``; of one quantity two cases in a row.
    """
    jobs = [job for record in records for job in record["jobs"]]
    shown = rows(jobs)
    note = f"; *: the link measured below {SLOW:.0%} of its rate" if any(map(below, jobs)) else ""
    cells = [(row, quantity) for row in shown for quantity in quantities]
    columns = max(2, len(quantities))
    heading = f"band: {', '.join(ALGORITHMS)}, of which {AUTO} chooses{note}"
    drawn, axes = panels(-(-len(cells) // columns), columns, 1.75 if columns > 2 else 2.4, heading, sharey="col")
    for panel in axes.flat[len(cells) :]:
        panel.set_visible(False)
    names = list(dict.fromkeys(name for row in shown for _, case in row.points for name in case["candidates"]))
    named = [AUTO, *(name for name in names if name not in (AUTO, *ALGORITHMS))][:MOST]
    beneath = [row.label for row, _ in cells[columns:]] + [""] * columns
    for panel, (row, quantity), next_label in zip(axes.flat, cells, beneath, strict=False):
        unit, scale = QUANTITIES[quantity]
        _band(panel, row, quantity, scale)
        for name, colour in zip(named, LINES, strict=False):
            line = _line(row, name, quantity, scale)
            if line:
                panel.plot(*zip(*line, strict=True), "o-", label=name, color=colour)
        settings = {"title": f"{row.title}: {unit}", "xlabel": row.label if row.label != next_label else ""}
        finish(panel, [round(x, 3) for x, _ in row.points], xscale="log", yscale="log", **settings)
    return drawn


def _line(row: Row, name: str, quantity: str, scale: float) -> list[tuple[float, float]]:
    there = [(x, case["candidates"][name][quantity]) for x, case in row.points if name in case["candidates"]]
    return [(x, scale * y) for x, y in there if y is not None]


def _band(axes: Any, row: Row, quantity: str, scale: float) -> None:
    """Fill what lies between the best and the worst algorithm."""
    found: dict[float, list[float]] = {}
    for name in ALGORITHMS:
        for x, y in _line(row, name, quantity, scale):
            found.setdefault(x, []).append(y)
    at = sorted(found)
    low, high = [min(found[x]) for x in at], [max(found[x]) for x in at]
    axes.fill_between(at, low, high, color=SHADES[1], linewidth=0, alpha=0.6)
