"""Bars over time: what is drawn alike in all timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparse_mpi.tools.figures.style import matplotlib

BAR = 0.6  # height, of the distance between rows


def bars(axes: Any, row: int, spans: Sequence[tuple[float, float]], colour: Any, **options: Any) -> None:
    """Draw bars from a beginning to an end each, in one row."""
    there = [(begin, end - begin) for begin, end in spans if end > begin]
    axes.broken_barh(there, (row - BAR / 2, BAR), facecolors=colour, **{"linewidth": 0, **options})


def rows(axes: Any, names: Sequence[str]) -> None:
    """Name the rows, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)


def legend(figure: Any, colours: Mapping[str, Any], more: Sequence[Any] = ()) -> None:
    """Say what the colours stand for, above the panels."""
    patches = [matplotlib("patches").Patch(color=colour, label=name) for name, colour in colours.items()]
    handles = [*patches, *more]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), handlelength=1.2, columnspacing=1.4)
