"""The figure of ``bench volume``: bytes and messages over P."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparse_mpi.tools.analysis.volume import WORD
from sparse_mpi.tools.figures.labels import name_lines
from sparse_mpi.tools.figures.style import MOST, Look, batches, numbers, panels

LEAST = "8(P-1)/P"
HEADING = "of the busiest rank in a step; thin: what the formulas of the papers allow"


def figure(records: Sequence[dict[str, Any]], look: Look) -> Any:
    """Draw bytes over k on the left and messages on the right, some algorithms a row."""
    volumes = [volume for record in records for volume in record["volumes"]]
    names = list(dict.fromkeys(volume["algorithm"] for volume in volumes))
    rows = batches(names, MOST - 1)
    shown, axes = panels(len(rows), 2, 2.6, HEADING, sharex=True, sharey="col")
    lowest = {volume["ranks"]: volume["lowest"] / volume["k"] for volume in volumes}
    ticks = sorted(lowest)
    for (size, number), row in zip(axes, rows, strict=True):
        size.plot(ticks, [lowest[ranks] for ranks in ticks], color=look.ink, label=LEAST)
        for name, colour in zip(row, look.colours, strict=False):
            mine = sorted((v for v in volumes if v["algorithm"] == name), key=lambda v: v["ranks"])
            ranks = [v["ranks"] for v in mine]
            for axis, counted, allowed in (
                (size, [_bytes(v, "most_") for v in mine], [_bytes(v, "formula_") for v in mine]),
                (number, [v["messages"] for v in mine], [v["formula_messages"] for v in mine]),
            ):
                axis.plot(ranks, counted, "o-", color=colour, label=name)
                axis.plot(ranks, allowed, color=colour, linewidth=0.6)
        for axis, title in ((size, "bytes over k"), (number, "messages")):
            axis.set(title=title, xscale="log", yscale="log")
            numbers(axis, ticks)
            axis.yaxis.set_major_formatter("{x:g}")
            name_lines(axis)
    for axis in axes[-1]:
        axis.set_xlabel("P")
    return shown


def _bytes(volume: dict[str, Any], of: str) -> float:
    """Return bytes over k: those counted, or those that the formula allows."""
    return (volume[f"{of}words"] * WORD + volume[f"{of}control"]) / volume["k"]
