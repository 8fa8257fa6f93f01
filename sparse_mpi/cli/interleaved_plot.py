"""The figure of ``bench compare``: step over bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.bench.comparison import BASELINE, cost
from sparse_mpi.cli.figures import matplotlib, save
from sparse_mpi.costs.break_even import Cost, break_even

STYLES = ("-", "--", ":", "-.")  # of wire formats
POINTS = 100  # of a modelled line
FARTHEST = 100  # times the highest bandwidth that was measured


class Line(NamedTuple):
    """A candidate at one number of ranks."""

    name: str
    bandwidths: list[float]  # (m,) measured, bits a second
    seconds: list[float]  # (m,) measured, of a step
    cost: Cost  # what the model makes a line of


def lines(jobs: Sequence[dict[str, Any]], ranks: int) -> list[Line]:
    """Return the lines of the candidates that every job on so many ranks has.

    The cost of a line is that of the jobs at all bandwidths together: their median time to compute, which the network
    has no part in, and mean traffic.
    """
    chosen = [job for job in jobs if job["ranks"] == ranks]
    bandwidths = [1e9 * job["options"]["gbit"] for job in chosen]
    found = []
    for name in chosen[0]["results"]:
        mine = [job["results"][name] for job in chosen]
        costs = [cost(each) for each in mine]
        made = Cost(median(c.compute for c in costs), mean(c.messages for c in costs), mean(c.bytes for c in costs))
        found.append(Line(name, bandwidths, [each["step"] for each in mine], made))
    return found


def latency(jobs: Sequence[dict[str, Any]], ranks: int) -> float:
    """Return seconds of a message, the median of the jobs on so many ranks."""
    return median(1e-6 * job["options"]["latency"] for job in jobs if job["ranks"] == ranks)


def draw(jobs: Sequence[dict[str, Any]], file: str) -> None:
    """Draw a panel for each number of ranks: measured points, modelled lines, and where those cross that of dense.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    figures = matplotlib("figure")
    sizes = sorted({job["ranks"] for job in jobs})
    figure = figures.Figure(figsize=(5.5 * len(sizes) + 3, 5.5), layout="constrained")
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    names = list(dict.fromkeys(name for job in jobs for name in sorted(job["results"])))
    for axes, ranks in zip(panels, sizes, strict=True):
        _panel(axes, lines(jobs, ranks), latency(jobs, ranks), _looks(names))
        axes.set(title=f"P = {ranks}", xlabel="bandwidth of a rank, Gbit/s")
    panels[0].set_ylabel("step, ms")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside right upper",
        fontsize="small",
        title="points: measured\nlines: model\nx: break-even",
    )
    save(figure, file)


def _looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return a colour for each algorithm, a style for each wire format; dense is black and thick."""
    others = [name for name in names if name != BASELINE]
    algorithms = list(dict.fromkeys(name.split()[0] for name in others))
    formats = ["", *dict.fromkeys(name.split()[1] for name in names if " " in name)]
    found = {}
    for name in others:
        algorithm, _, wire = name.partition(" ")
        colour = f"C{algorithms.index(algorithm) % 10}"
        found[name] = {"color": colour, "linestyle": STYLES[formats.index(wire) % len(STYLES)], "linewidth": 1.0}
    return found | {BASELINE: {"color": "k", "linestyle": STYLES[0], "linewidth": 2.0}}


def _panel(axes: Any, shown: Sequence[Line], alpha: float, looks: dict[str, dict[str, Any]]) -> None:
    dense = next(line.cost for line in shown if line.name == BASELINE)
    crossings = {line.name: break_even(line.cost, dense, alpha) for line in shown if line.name != BASELINE}
    bandwidths = _range([bandwidth for line in shown for bandwidth in line.bandwidths], list(crossings.values()))
    for line in shown:
        look = looks[line.name]
        modelled = [1e3 * line.cost.seconds(bandwidth, alpha) for bandwidth in bandwidths]
        axes.loglog(bandwidths / 1e9, modelled, label=line.name, **look)
        axes.plot([b / 1e9 for b in line.bandwidths], [1e3 * s for s in line.seconds], "o", ms=4, color=look["color"])
        crossing = crossings.get(line.name, inf)
        if bandwidths[0] <= crossing <= bandwidths[-1]:
            axes.plot(crossing / 1e9, 1e3 * dense.seconds(crossing, alpha), "x", ms=8, color=look["color"])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(True, which="both", alpha=0.2)


def _range(measured: Sequence[float], crossings: Sequence[float]) -> np.ndarray:
    """Return bandwidths from below those measured to above the highest break-even one, if that is not too far off."""
    reached = [crossing for crossing in crossings if crossing < FARTHEST * max(measured)]
    return np.geomspace(min(measured) / 2, 1.5 * max([*measured, *reached]), POINTS)
