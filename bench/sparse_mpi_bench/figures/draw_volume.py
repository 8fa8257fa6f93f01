"""Figures over P or n: of ``bench volume``, ``bench sparse-volume`` and ``bench select``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from sparse_mpi.collectives.inputs import AUTO
from sparse_mpi_bench.analysis.keyed_volume import KeyedVolume
from sparse_mpi_bench.analysis.volume import WORD
from sparse_mpi_bench.figures.style import COLOURS, INK, LINES, MOST, batches, finish, panels

LEAST = "8(P-1)/P"
HEADING = "of the busiest rank in a step; thin: what the formulas of the papers allow"


def figure(records: Sequence[dict[str, Any]]) -> Any:
    """Draw bytes over k on the left and messages on the right, some algorithms a row."""
    volumes = [volume for record in records for volume in record["volumes"]]
    names = list(dict.fromkeys(volume["algorithm"] for volume in volumes))
    rows = batches(names, MOST - 1)
    shown, axes = panels(len(rows), 2, 2.6, HEADING, "P", sharex=True, sharey="col")
    lowest = {volume["ranks"]: volume["lowest"] / volume["k"] for volume in volumes}
    ticks = sorted(lowest)
    for (size, number), row in zip(axes, rows, strict=True):
        size.plot(ticks, [lowest[ranks] for ranks in ticks], color=INK, label=LEAST)
        for name, colour in zip(row, COLOURS, strict=False):
            mine = sorted((v for v in volumes if v["algorithm"] == name), key=lambda v: v["ranks"])
            ranks = [v["ranks"] for v in mine]
            for axis, counted, allowed in (
                (size, [_bytes(v, "most_") for v in mine], [_bytes(v, "formula_") for v in mine]),
                (number, [v["messages"] for v in mine], [v["formula_messages"] for v in mine]),
            ):
                axis.plot(ranks, counted, "o-", color=colour, label=name)
                axis.plot(ranks, allowed, color=colour, linewidth=0.6)
        for axis, title in ((size, "bytes over k"), (number, "messages")):
            finish(axis, ticks, title=title, xscale="log", yscale="log")
    return shown


def _bytes(volume: dict[str, Any], of: str) -> float:
    return (volume[f"{of}words"] * WORD + volume[f"{of}control"]) / volume["k"]


def keyed(records: Sequence[dict[str, Any]]) -> Any:
    """Draw a row for each case: auto beside what others send, all algorithms, and their messages."""
    volumes = [KeyedVolume(**volume) for record in records for volume in record["volumes"]]
    cases = list(dict.fromkeys(volume.case for volume in volumes))
    names = list(dict.fromkeys(volume.algorithm for volume in volumes))
    names.sort(key=lambda name: name != AUTO)
    shown, axes = panels(len(cases), 3, 2.0, "of the busiest rank, over P", "P", sharex=True, sharey="col")
    for row, case in zip(axes, cases, strict=True):
        mine = [volume for volume in volumes if volume.case == case and volume.ranks > 1]
        ticks = sorted({volume.ranks for volume in mine})
        _beside(row[0], [volume for volume in mine if volume.algorithm == names[0]])
        for name, colour in zip(names, LINES, strict=False):
            there = [volume for volume in mine if volume.algorithm == name]
            ranks = [volume.ranks for volume in there]
            row[1].plot(ranks, [_kilobytes(volume) for volume in there], "o-", color=colour, label=name)
            row[2].plot(ranks, [volume.messages for volume in there], "o-", color=colour, label=name)
        for panel, what in zip(row, ("kB, beside others", "kB", "messages"), strict=True):
            finish(panel, ticks[:: 1 + len(ticks) // 5], title=f"{case}: {what}", xscale="log", yscale="log")
    return shown


def _kilobytes(volume: KeyedVolume) -> float:
    return (volume.most + volume.control) / 1e3


def _beside(axes: Any, volumes: Sequence[KeyedVolume]) -> None:
    """Draw one algorithm, its payload without what is told before, and what others send at least."""
    lines = {
        volumes[0].algorithm: [_kilobytes(volume) for volume in volumes],
        "payload of it": [volume.most / 1e3 for volume in volumes],
        "dense ring": [volume.dense / 1e3 for volume in volumes],
        "pairs to all": [volume.pairs / 1e3 for volume in volumes],
    }
    for (label, values), colour in zip(lines.items(), LINES, strict=False):
        positive = [value or math.nan for value in values]  # disjoint keys that all ranks know need no payload
        axes.plot([volume.ranks for volume in volumes], positive, "o-", color=colour, label=label)


FLOOR = "read"  # what every method does at least
ROWS = {
    "above a threshold": ("copy", "select", "accumulate + select", "torch threshold"),
    "exactly k": ("exact k-th", "torch.kthvalue", "exact top-k", "torch.topk", "argpartition"),
    "of rows": ("top-k of rows", "torch.topk of rows"),
}


def select(records: Sequence[dict[str, Any]]) -> Any:
    """Draw a row for each purpose and a column for each density, on the most threads that were measured."""
    every = [case for record in records for case in record["cases"]]
    most = max(case["threads"] for case in every)
    cases = sorted((case for case in every if case["threads"] == most), key=lambda case: case["n"])
    densities = sorted({case["density"] for case in cases})
    rows = _rows(list(dict.fromkeys(name for case in cases for name in case["methods"])))
    heading = f"selection on {most} threads; {FLOOR}: the maximum, one pass over the vector"
    shown, axes = panels(len(rows), len(densities), 2.1, heading, "n", "ns an element", sharex=True, sharey=True)
    for row, (purpose, names) in zip(axes, rows.items(), strict=True):
        for panel, density in zip(row, densities, strict=True):
            _times(panel, [case for case in cases if case["density"] == density], names)
            finish(panel, title=f"{purpose}, density {density:g}")
    return shown


def _rows(methods: Sequence[str]) -> dict[str, list[str]]:
    """Return which methods each row shows; those that no row names have rows of their own."""
    rows = {purpose: [name for name in names if name in methods] for purpose, names in ROWS.items()}
    others = [name for name in methods if name != FLOOR and not any(name in names for names in rows.values())]
    rows |= {f"others {number}": names for number, names in enumerate(batches(others, MOST - 1), 1)}
    return {purpose: names for purpose, names in rows.items() if names}


def _times(axes: Any, cases: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    for name, colour in zip([FLOOR, *names], LINES, strict=False):
        there = [(case["n"], case["methods"][name]) for case in cases if name in case["methods"]]
        if there:
            per_element = [1e9 * statistics.median(seconds) / n for n, seconds in there]
            axes.loglog([n for n, _ in there], per_element, "o-", color=colour, label=name)
