"""The figure of ``bench select``: nanoseconds an element over n."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from sparse_mpi.tools.figures.labels import name_lines
from sparse_mpi.tools.figures.style import MOST, Look, batches, panels

FLOOR = "read"  # what every method does at least
ROWS = {
    "above a threshold": ("copy", "select", "accumulate + select", "torch threshold"),
    "exactly k": ("exact k-th", "torch.kthvalue", "exact top-k", "torch.topk", "argpartition"),
    "of rows": ("top-k of rows", "torch.topk of rows"),
}


def figure(records: Sequence[dict[str, Any]], look: Look) -> Any:
    """Draw a row for each purpose and a column for each density, on the most threads that were measured."""
    every = [case for record in records for case in record["cases"]]
    most = max(case["threads"] for case in every)
    cases = sorted((case for case in every if case["threads"] == most), key=lambda case: case["n"])
    densities = sorted({case["density"] for case in cases})
    rows = _rows(list(dict.fromkeys(name for case in cases for name in case["methods"])))
    heading = f"selection on {most} threads; {FLOOR}: the maximum, one pass over the vector"
    shown, axes = panels(len(rows), len(densities), 2.1, heading, sharex=True, sharey=True)
    for row, (purpose, names) in zip(axes, rows.items(), strict=True):
        row[0].set_ylabel("ns an element")
        for panel, density in zip(row, densities, strict=True):
            _panel(panel, [case for case in cases if case["density"] == density], names, look)
            panel.set_title(f"{purpose}, density {density:g}")
    for panel in axes[-1]:
        panel.set_xlabel("n")
    return shown


def _rows(methods: Sequence[str]) -> dict[str, list[str]]:
    """Return which methods each row shows; those that no row names have rows of their own."""
    rows = {purpose: [name for name in names if name in methods] for purpose, names in ROWS.items()}
    others = [name for name in methods if name != FLOOR and not any(name in names for names in rows.values())]
    rows |= {f"others {number}": names for number, names in enumerate(batches(others, MOST - 1), 1)}
    return {purpose: names for purpose, names in rows.items() if names}


def _panel(axes: Any, cases: Sequence[dict[str, Any]], names: Sequence[str], look: Look) -> None:
    for name, colour in zip([FLOOR, *names], look.lines, strict=False):
        there = [(case["n"], case["methods"][name]) for case in cases if name in case["methods"]]
        if there:
            per_element = [1e9 * statistics.median(seconds) / n for n, seconds in there]
            axes.loglog([n for n, _ in there], per_element, "o-", color=colour, label=name)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    name_lines(axes)
