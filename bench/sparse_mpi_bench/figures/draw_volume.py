"""The figure of ``bench volume``, over P."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparse_mpi_bench.analysis.volume import WORD
from sparse_mpi_bench.figures.style import COLOURS, INK, MOST, batches, finish, panels

LEAST = "8(P-1)/P"
HEADING = "of the busiest rank in a step; thin: what the formulas of the papers allow"


def figure(records: Sequence[dict[str, Any]]) -> Any:
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
