"""The figure of ``bench sparse-volume``: bytes and messages of sums of data that is sparse already, over P."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sparse_mpi.collectives.inputs import AUTO
from sparse_mpi.tools.analysis.keyed_volume import KeyedVolume
from sparse_mpi.tools.figures.labels import name_lines
from sparse_mpi.tools.figures.style import Look, numbers, panels


def figure(records: Sequence[dict[str, Any]], look: Look) -> Any:
    """Draw a row for each case: auto beside what others send, all algorithms, and their messages."""
    volumes = [KeyedVolume(**volume) for record in records for volume in record["volumes"]]
    cases = list(dict.fromkeys(volume.case for volume in volumes))
    names = list(dict.fromkeys(volume.algorithm for volume in volumes))
    names.sort(key=lambda name: name != AUTO)
    shown, axes = panels(len(cases), 3, 2.0, "of the busiest rank, over P", sharex=True, sharey="col")
    for row, case in zip(axes, cases, strict=True):
        mine = [volume for volume in volumes if volume.case == case and volume.ranks > 1]
        ticks = sorted({volume.ranks for volume in mine})
        _beside(row[0], [volume for volume in mine if volume.algorithm == names[0]], look)
        for name, colour in zip(names, look.lines, strict=False):
            there = [volume for volume in mine if volume.algorithm == name]
            ranks = [volume.ranks for volume in there]
            row[1].plot(ranks, [_kilobytes(volume) for volume in there], "o-", color=colour, label=name)
            row[2].plot(ranks, [volume.messages for volume in there], "o-", color=colour, label=name)
        for panel, what in zip(row, ("kB, beside others", "kB", "messages"), strict=True):
            panel.set(title=f"{case}: {what}", xscale="log", yscale="log")
            numbers(panel, ticks[:: 1 + len(ticks) // 5])
            panel.yaxis.set_major_formatter("{x:g}")
            name_lines(panel)
    for panel in axes[-1]:
        panel.set_xlabel("P")
    return shown


def _kilobytes(volume: KeyedVolume) -> float:
    return (volume.most + volume.control) / 1e3


def _beside(axes: Any, volumes: Sequence[KeyedVolume], look: Look) -> None:
    """Draw one algorithm, its payload without what is told before, and what others send at least."""
    lines = {
        volumes[0].algorithm: [_kilobytes(volume) for volume in volumes],
        "payload of it": [volume.most / 1e3 for volume in volumes],
        "dense ring": [volume.dense / 1e3 for volume in volumes],
        "pairs to all": [volume.pairs / 1e3 for volume in volumes],
    }
    for (label, values), colour in zip(lines.items(), look.lines, strict=False):
        positive = [value or math.nan for value in values]  # disjoint keys that all ranks know need no payload
        axes.plot([volume.ranks for volume in volumes], positive, "o-", color=colour, label=label)
