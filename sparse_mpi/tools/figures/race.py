"""Figures of ``train/study.py --emulate``: loss over time on slow networks, and over bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sparse_mpi.tools.figures.labels import name_lines
from sparse_mpi.tools.figures.style import MOST, Look, panels

Race = dict[str, Any]

AMOUNTS = {"density": "", "budget": "", "step-seconds": " s"}  # options that say how much is sent, and their units


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
                if rate is not None and way not in seconds:
                    continue
                steps, sent, heights = zip(*race["courses"][way], strict=True)
                at = sent if rate is None else _clock(seconds[way], steps)
                panel.plot(at, heights, color=colour, label=names[way] if rate is None else "_")
            panel.set(xscale="log", xlabel=f"seconds, {rate}" if rate else "MB sent by a rank")
            panel.minorticks_off()
        row[0].set_ylabel("test loss")
        row[0].set_title(f"{race['program']}, {race['ranks']} ranks")
        row[-1].set_xlim(right=10 * row[-1].get_xlim()[1])  # room for names
        name_lines(row[-1])
    return shown


def _clock(seconds: float | list[float], steps: Sequence[int]) -> list[float]:
    """Return when each of ``steps`` was over: ``seconds`` are those of a step, or these times themselves."""
    return seconds if isinstance(seconds, list) else [step * seconds for step in steps]


def short(ways: Sequence[str]) -> dict[str, str]:
    """Return short names of ways: the algorithm and what it was told to send, or all of it where that is not enough."""
    told = {way: dict(option.split("=", 1) for option in way.split(":") if "=" in option) for way in ways}
    names = {}
    for way, options in told.items():
        names[way] = way.split(":")[0] + (f" /{options['local-steps']}" if "local-steps" in options else "")
    if len(set(names.values())) < len(names):
        for way, options in told.items():
            names[way] += "".join(f" {options[name]}{unit}" for name, unit in AMOUNTS.items() if name in options)
    often = Counter(names.values())
    return {way: name if often[name] == 1 else way for way, name in names.items()}
