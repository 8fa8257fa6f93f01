"""Names of lines where the lines end, none over another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

NAME = "the name of a line"  # by which annotations are known
DISTANCE = 9.0  # points from the end of a line to its name
LEADING = 1.12  # distance of two names, over their height


def name_lines(axes: Any) -> None:
    """Write the name of each line that has one at its end, in its colour; `spread` moves them apart."""
    for line in axes.get_lines():
        points = line.get_xydata()
        points = points[np.isfinite(points).all(1)]
        if len(points) and not line.get_label().startswith("_"):
            name_point(axes, line.get_label(), tuple(points[-1]), line.get_color())


def name_point(axes: Any, name: str, point: tuple[float, float], colour: str) -> None:
    """Write ``name`` to the right of a point; `spread` moves it away from others."""
    lead = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)}
    text = {"color": colour, "fontsize": 7.5, "va": "center", "gid": NAME, "annotation_clip": False}
    box = {"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 0.4}
    axes.annotate(name, point, (DISTANCE, 0), textcoords="offset points", arrowprops=lead, bbox=box, **text)


def spread(figure: Any) -> None:
    """Lay the figure out, then move the names in each panel up or down until none lies on another."""
    for _ in range(2):  # how wide the names may be is known once the panels have their places
        figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        names = [text for text in axes.texts if text.get_gid() == NAME]
        if names:
            box = axes.get_window_extent()
            points = [axes.transData.transform(text.xy) for text in names]
            heights = [float(y) for _, y in points]
            extents = [text.get_window_extent() for text in names]
            places = apart(heights, LEADING * max(extent.height for extent in extents), box.y0, box.y1)
            for text, extent, (x, y), place in zip(names, extents, points, places, strict=True):
                covered = max([x, *(other for other, _ in points if x < other < extent.x1)])
                text.xyann = (DISTANCE + (covered - x) * 72 / figure.dpi, (place - y) * 72 / figure.dpi)


def apart(wanted: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """Return places as near as can be to those ``wanted``, in their order and ``distance`` apart.

    Where there is room they lie between ``low`` and ``high``.
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    # Take the distances out: what is left must only not fall, which merging neighbours that do makes true
    blocks: list[list[float]] = []
    for rank, index in enumerate(order):
        blocks.append([wanted[index] - rank * distance, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (mean, count), (other, more) = blocks[-2:]
            blocks[-2:] = [[(mean * count + other * more) / (count + more), count + more]]
    flat = [mean for mean, count in blocks for _ in range(int(count))]
    top = max(low, high - (len(wanted) - 1) * distance)
    found = [0.0] * len(wanted)
    for rank, index in enumerate(order):
        found[index] = min(max(flat[rank], low), top) + rank * distance
    return found
