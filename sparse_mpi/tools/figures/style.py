"""The look of all figures, on a light and on a dark page: colours, sizes, panels, and how they are written.

A figure is made by a function of a `Look`, which `write` calls twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sparse_mpi.tools.figures.labels import spread
from sparse_mpi.tools.figures.svg import shorten

WIDTH = 9.0  # inches, of every figure
MOST = 6  # lines of a panel
DPI = 150
Drawn = TypeVar("Drawn")


class Look(NamedTuple):
    """Colours on a page. Those of lines differ for colour-blind eyes too, and stand out from the paper."""

    paper: str
    ink: str  # of text, and of the line that others are compared with
    grey: str  # of axes, and of what has no name
    grid: str
    colours: tuple[str, ...]  # of lines besides that of ink: `MOST` with it
    shades: tuple[str, ...]  # of bars that are not in the foreground, from the paper on

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the colours of the lines of a panel."""
        return (self.ink, *self.colours)

    @property
    def settings(self) -> dict[str, Any]:
        """Return what matplotlib is told."""
        return {
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
            "axes.prop_cycle": import_module("cycler").cycler(color=self.colours),
            "svg.hashsalt": "sparse_mpi",  # the same figure has the same bytes
            **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), self.paper),
            **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "legend.labelcolor"), self.ink),
            **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), self.grey),
            **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), self.ink),
            "grid.color": self.grid,
        }


LIGHT = Look(
    paper="#ffffff",
    ink="#1b1f24",
    grey="#8b95a1",
    grid="#e4e7ea",
    colours=("#0e52cb", "#cc7800", "#25a372", "#891900", "#86548f"),
    shades=("#e4e7ea", "#b9c0c8", "#8b95a1", "#4b535c"),
)
DARK = Look(
    paper="#131416",
    ink="#f0f2f4",
    grey="#77818c",
    grid="#2b3036",
    colours=("#538bfa", "#ffd60e", "#38de84", "#da6616", "#bb75a1"),
    shades=("#2f353c", "#545d67", "#7f8994", "#c8d0d8"),
)


def matplotlib(part: str = "") -> Any:
    """Return matplotlib, or a ``part`` of it.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return import_module(f"matplotlib.{part}".rstrip("."))
    except ImportError:
        raise ImportError("figures need matplotlib: pip install matplotlib") from None


def variants(file: str | Path) -> dict[Path, Look]:
    """Return the files that a figure is written to: ``file`` itself, and for dark pages ``NAME-dark``."""
    light = Path(file)
    return {light: LIGHT, light.with_name(f"{light.stem}-dark{light.suffix}"): DARK}


def write(make: Callable[[Look], Any], file: str | Path) -> None:
    """Write the figure that ``make`` draws for light and dark pages, in the format that the name of ``file`` says.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: it does not know the format.
        OSError: a file cannot be written.
    """
    for name, look in variants(file).items():
        figure = drawn(make, look)
        with matplotlib().rc_context(look.settings):
            figure.savefig(name, dpi=DPI, metadata=_undated(name))
        if name.suffix.lower() == ".svg":
            shorten(name)


def drawn(make: Callable[[Look], Any], look: Look) -> Any:
    """Return the figure that ``make`` draws, with the names of its lines apart."""
    with matplotlib().rc_context(look.settings):
        figure = make(look)
        spread(figure)
    return figure


def _undated(file: Path) -> dict[str, None]:
    """Return metadata without the date of today."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(file.suffix.lower(), {})


def paper(width: float, height: float) -> Any:
    """Return an empty figure, in inches."""
    figure = matplotlib("figure").Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)
    return figure


def panels(rows: int, columns: int, height: float, heading: str = "", **options: Any) -> tuple[Any, Any]:
    """Return a figure and its panels (rows, columns), each row ``height`` inches high."""
    size = (WIDTH, height * rows + 0.3 * bool(heading))
    figure = paper(*size)
    if heading:
        figure.suptitle(heading, x=0.01, ha="left")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def numbers(axes: Any, ticks: Sequence[float]) -> None:
    """Write ``ticks`` at a horizontal axis, which may be logarithmic, and nothing between."""
    axes.set_xticks(ticks, [f"{tick:.4g}" if tick % 1 else f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def batches(names: Sequence[Drawn], most: int) -> list[list[Drawn]]:
    """Return ``names`` in as few parts of at most ``most`` as there can be, about equally large."""
    count = max(1, -(-len(names) // most))
    ends = [len(names) * part // count for part in range(count + 1)]
    return [list(names[begin:end]) for begin, end in zip(ends, ends[1:], strict=False)]
