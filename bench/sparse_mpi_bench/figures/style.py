"""The style of all figures: colours, panels, names where lines end, bars over time, files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

WIDTH = 9.0  # inches, of every figure
MOST = 6  # lines of a panel
DPI = 150
BAR = 0.6  # height of a bar, of the distance between rows
NAME = "the name of a line"  # mark of annotations
DISTANCE = 9.0  # points from the end of a line to its name
LEADING = 1.12  # distance of two names, over their height

# Colours of lines differ for colour-blind eyes too, and stand out from the paper
PAPER, INK = "#ffffff", "#1b1f24"
GREY, GRID = "#8b95a1", "#e4e7ea"  # colours of axes, and of lines without a name
COLOURS = ("#0e52cb", "#cc7800", "#25a372", "#891900", "#86548f")
LINES = (INK, *COLOURS)  # colours of the lines of a panel: others are compared with the first
SHADES = ("#e4e7ea", "#b9c0c8", "#8b95a1", "#4b535c")  # colours of bars that are not in the foreground

SETTINGS: dict[str, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "figure.titlesize": 9,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "axes.formatter.min_exponent": 4,
    "svg.hashsalt": "sparse_mpi",  # the same figure has the same bytes
    "svg.fonttype": "none",  # words are text
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "legend.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), GREY),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), INK),
    "grid.color": GRID,
}

Drawn = TypeVar("Drawn")


def matplotlib(part: str = "") -> Any:
    """Return matplotlib, or a ``part`` of it. Raises ImportError: it is not installed."""
    try:
        return import_module(f"matplotlib.{part}".rstrip("."))
    except ImportError:
        raise ImportError("figures need matplotlib: pip install matplotlib") from None


def write(make: Callable[[], Any], file: str | Path) -> None:
    """Write a figure as the name of ``file`` says. Raises ImportError, ValueError (unknown format) or OSError."""
    figure = drawn(make)
    with _settings():
        dates = {".svg": ("Creator", "Date", "Format", "Type"), ".pdf": ("CreationDate",)}
        figure.savefig(file, dpi=DPI, metadata=dict.fromkeys(dates.get(Path(file).suffix.lower(), ())))


def drawn(make: Callable[[], Any]) -> Any:
    with _settings():
        figure = make()
        spread(figure)
    return figure


def _settings() -> Any:
    cycle = matplotlib().cycler(color=COLOURS)
    return matplotlib().rc_context(SETTINGS | {"axes.prop_cycle": cycle})


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
    for _ in range(2):  # the width of names is known once the panels have their places
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
    """Return places nearest to the ``wanted`` ones, ``distance`` apart and, where there is room, in ``[low, high]``."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    # Take the distances out: then places must only not fall, which merging of falling neighbours achieves
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


def paper(width: float, height: float) -> Any:
    figure = matplotlib("figure").Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)
    return figure


def panels(
    rows: int, columns: int, height: float, heading: str = "", xlabel: str = "", ylabel: str = "", **options: Any
) -> tuple[Any, Any]:
    """Return a figure and its panels (rows, columns), each row ``height`` inches high, with labels below and left."""
    figure = paper(WIDTH, height * rows + 0.3 * bool(heading))
    if heading:
        figure.suptitle(heading, x=0.01, ha="left")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for panel in axes[-1]:
        panel.set_xlabel(xlabel)
    for panel in axes[:, 0]:
        panel.set_ylabel(ylabel)
    return figure, axes


def grid(count: int, columns: int, height: float, *texts: str, **options: Any) -> tuple[Any, list[Any]]:
    """Return a figure and its first ``count`` panels, as `panels` has them, row by row; others do not show."""
    figure, axes = panels(-(-count // columns), columns, height, *texts, **options)
    for panel in axes.flat[count:]:
        panel.set_visible(False)
    return figure, list(axes.flat[:count])


def finish(axes: Any, ticks: Sequence[float] | None = None, **settings: Any) -> None:
    """Set up a panel with drawn lines: names at their ends, plain numbers, and ``ticks`` at the x axis."""
    axes.set(**settings)
    if ticks is not None:
        axes.set_xticks(ticks, [f"{tick:.4g}" if tick % 1 else f"{tick:g}" for tick in ticks])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    name_lines(axes)


def batches(names: Sequence[Drawn], most: int) -> list[list[Drawn]]:
    """Return ``names`` in as few parts of at most ``most`` as there can be, about equally large."""
    count = max(1, -(-len(names) // most))
    ends = [len(names) * part // count for part in range(count + 1)]
    return [list(names[begin:end]) for begin, end in zip(ends, ends[1:], strict=False)]


def bars(axes: Any, row: int, spans: Sequence[tuple[float, float]], colour: Any, **options: Any) -> None:
    there = [(begin, end - begin) for begin, end in spans if end > begin]
    if there:
        axes.broken_barh(there, (row - BAR / 2, BAR), facecolors=colour, **{"linewidth": 0, **options})


def rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)


def legend(figure: Any, colours: Mapping[str, Any]) -> None:
    handles = [matplotlib("patches").Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), handlelength=1.2, columnspacing=1.4)
