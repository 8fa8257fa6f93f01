"""Figures of ``train/study.py --emulate``: loss over time on slow networks, and over bytes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sparse_mpi.figures.labels import name_lines
from sparse_mpi.figures.style import MOST, Look, panels

Race = dict[str, Any]


def losses(races: Sequence[Race], look: Look) -> Any:
    """Draw the loss on the test data over seconds on each network, and over the MB that a rank has sent.

    A row for each study, with the first ways that fit a panel. Tests take no time in it.
    """
    rates = list(dict.fromkeys(rate for race in races for rate in race["seconds"] if rate != "none"))
    shown, axes = panels(len(races), len(rates) + 1, 2.3, sharey="row")
    for row, race in zip(axes, races, strict=True):
        ways = list(race["courses"])[:MOST]
        names = short(ways)
        for panel, rate in zip(row, [*rates, None], strict=True):
            seconds = race["seconds"].get(rate, {})
            for way, colour in zip(ways, look.lines, strict=False):
                points = [
                    (step * seconds[way] if rate else mb, loss)
                    for step, mb, loss in race["courses"][way]
                    if rate is None or way in seconds
                ]
                panel.plot(*zip(*points, strict=True), color=colour, label=names[way] if rate is None else "_")
            panel.set(xscale="log", xlabel=f"seconds, {rate}" if rate else "MB sent by a rank")
            panel.minorticks_off()
        row[0].set_ylabel("test loss")
        row[0].set_title(f"{race['program']}, {race['ranks']} ranks")
        row[-1].set_xlim(right=10 * row[-1].get_xlim()[1])  # room for names
        name_lines(row[-1])
    return shown


def short(ways: Sequence[str]) -> dict[str, str]:
    """Return short names of ways: the algorithm, and / local steps, or all of it where that is not enough."""
    names = {}
    for way in ways:
        steps = re.search(r":local-steps=(\d+)", way)
        names[way] = way.split(":")[0] + (f" /{steps[1]}" if steps else "")
    often = Counter(names.values())
    return {way: name if often[name] == 1 else way for way, name in names.items()}
