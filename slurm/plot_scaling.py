"""Draw step time and bytes over the number of ranks from the records of slurm/scaling.sh.

python slurm/plot_scaling.py runs/scaling-20250101-120000 --out scaling.png
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.cli import values
from sparse_mpi.cli.values import Parser
from sparse_mpi_bench.figures.style import LINES, MOST, batches, finish, panels, write


class Point(NamedTuple):
    """One algorithm on one number of ranks."""

    panel: str  # what was measured: points of one panel can be compared
    algorithm: str
    ranks: int
    seconds: float  # of a step
    megabytes: float  # that a rank sends in a step


def read(file: Path) -> list[Point]:
    """Return the points of one record of ``bench steps`` or ``train/pace.py``.

    Raises:
        ValueError: it is neither.
    """
    try:
        record = json.loads(file.read_text())
        ranks, options = record["ranks"], record["options"]
        if "medians" in record:
            panel = f"{record['program']} {' '.join(options)}, training"
            return [Point(panel, way, ranks, of["seconds"], of["mb"]) for way, of in record["medians"].items()]
        what = options["model"] or f"n = {options['n']:,}"
        panel = f"{what}, reduction, density {options['density']:g}"
        return [Point(panel, name, ranks, of["step"], of["bytes"] / 1e6) for name, of in record["results"].items()]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} must be a record of bench steps --json or train/pace.py --json, got {error!r}; "
            f"draw only files that slurm/scaling.sh has made"
        ) from None


def figure(points: Iterable[Point]) -> Any:
    """Draw step time on the left and MB on the right; a row for everything that was measured and few algorithms."""
    points = sorted(points, key=lambda point: point.ranks)
    panels_of = sorted({p.panel for p in points})
    rows = [
        (panel, names)
        for panel in panels_of
        for names in batches(list(dict.fromkeys(p.algorithm for p in points if p.panel == panel)), MOST)
    ]
    shown, axes = panels(len(rows), 2, 2.2, "", "ranks")
    for row, (panel, names) in zip(axes, rows, strict=True):
        for axis, field, label in zip(row, ("seconds", "megabytes"), ("s a step", "MB a step and rank"), strict=True):
            for name, colour in zip(names, LINES, strict=False):
                line = [p for p in points if (p.panel, p.algorithm) == (panel, name)]
                values = [getattr(p, field) for p in line]
                axis.loglog([p.ranks for p in line], values, "o-", color=colour, label=name)
            finish(axis, sorted({p.ranks for p in points}), title=f"{panel}: {label}")
    return shown


def records(paths: Sequence[Path]) -> list[Path]:
    """Return the files among ``paths``, and the records in the folders among them.

    Raises:
        ValueError: there is none.
    """
    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not files:
        raise ValueError(
            f"there is no *.json in {', '.join(map(str, paths))}; did the jobs of slurm/scaling.sh end well?"
        )
    return files


def _there(text: str) -> Path:
    if not text or not Path(text).exists():
        raise ValueError
    return Path(text)


def main(argv: Sequence[str] | None = None) -> None:
    """Read, and draw."""
    parser = Parser(description=__doc__)
    parser.add_argument(
        "paths",
        nargs="+",
        type=values.Value(_there, "a file or a folder that is there", "scaling-4.json"),
        metavar="PATH",
        help="records, or folders of them",
    )
    text = "figure (default: scaling.png beside the first record)"
    parser.add_argument("--out", type=values.figure, metavar="FILE", help=text)
    args: Any = parser.parse_args(argv)
    try:
        files = records(args.paths)
        out = args.out or files[0].parent / "scaling.png"
        write(partial(figure, [point for file in files for point in read(file)]), out)
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"error: {error}")
    print(out)


if __name__ == "__main__":
    main()
