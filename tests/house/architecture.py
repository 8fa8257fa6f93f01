"""Draw which folder of the package calls which, by the imports that are in its files.

python -m tests.house.architecture --plot docs/explanation/architecture.svg

An arrow that others imply is left out: who calls the reducer may call what the reducer calls.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from sparse_mpi.cli import values
from sparse_mpi.cli.values import Parser
from sparse_mpi_bench.benchmark import save
from sparse_mpi_bench.figures.style import COLOURS, GREY, INK, SHADES, WIDTH, matplotlib, paper

from .test_layers import LIBRARY, PACKAGE, imports, room

PROGRAM = "your program"
CALLED = ("ddp", "optim", "fsdp", "training", "reduction", "collectives", "checkpoint")  # by it
LEFT_OUT = ("__main__", "checks", "states", "testing")  # the start of the command line, what all need, and tests


class Box(NamedTuple):
    """Where a folder is drawn, in boxes from the left and in rows from the top, and what it is in a few words."""

    x: float
    row: int
    words: str


BOXES = {
    PROGRAM: Box(2.2, 0, "or one of train/"),
    "planning": Box(5.2, 0, "plans of a step"),
    "predict": Box(5.2, 1, "does it pay?"),
    "cli": Box(5.2, 2, "run, doctor"),
    "integrations": Box(0.0, 0, "of frameworks"),
    "ddp": Box(0.0, 1, "torch's DDP hook"),
    "fsdp": Box(0.95, 1, "sharded models"),
    "optim": Box(1.9, 1, "optimizer"),
    "training": Box(0.7, 2, "overlap, local steps"),
    "fault_tolerance": Box(0.7, 3, "lost ranks"),
    "reduction": Box(1.6, 4, "one gradient"),
    "collectives": Box(3.6, 4, "sparse data"),
    "contrib": Box(3.6, 3, "without a promise"),
    "feedback": Box(0.0, 5, "what is not sent"),
    "monitor": Box(1.6, 5, "metrics, ranges"),
    "algorithms": Box(3.3, 5, "how to add up"),
    "checkpoint": Box(4.8, 5, "files of a job"),
    "comm": Box(2.0, 6, "MPI, NCCL, World"),
    "select": Box(3.3, 6, "which entries"),
    "wire": Box(4.3, 6, "message formats"),
    "rows": Box(3.8, 7, "matrices in it"),
    "sparse": Box(2.0, 8, "sparse vectors"),
    "kernels": Box(2.0, 9, "CPU and CUDA"),
    "arrays": Box(2.0, 10, "NumPy or CuPy"),
}


def calls() -> dict[str, set[str]]:
    """Return which folders each one imports from, without those that another import implies."""
    graph: dict[str, set[str]] = {}
    for name, file in LIBRARY.items():
        for found in imports(name, file, LIBRARY):
            if name != PACKAGE and found.target in LIBRARY and found.target != PACKAGE:
                graph.setdefault(room(name), set()).add(room(found.target))
    graph = {caller: of - {caller, *LEFT_OUT} for caller, of in graph.items() if caller not in LEFT_OUT}
    return {PROGRAM: set(CALLED)} | {
        caller: {callee for callee in of if not any(callee in _below(graph, other) for other in of - {callee})}
        for caller, of in graph.items()
    }


def _below(graph: Mapping[str, set[str]], name: str) -> set[str]:
    """Return all that a folder calls, itself or by others."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = graph.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def figure() -> Any:
    rows = 1 + max(box.row for box in BOXES.values())
    drawn = paper(WIDTH, 0.2 + 0.62 * rows)
    axes = drawn.subplots()
    patches = matplotlib("patches")
    for name, box in BOXES.items():
        edge = COLOURS[0] if name == PROGRAM else INK
        shape = patches.FancyBboxPatch(
            (box.x - 0.4, box.row - 0.22), 0.8, 0.44, boxstyle="round,pad=0,rounding_size=0.06", mutation_aspect=1
        )
        shape.set(facecolor=SHADES[0], edgecolor=edge, linewidth=0.8)
        axes.add_patch(shape)
        axes.text(box.x, box.row - 0.07, name, ha="center", va="center", fontsize=7.5, fontweight="bold")
        axes.text(box.x, box.row + 0.12, box.words, ha="center", va="center", fontsize=6.5)
    for caller, of in calls().items():
        for callee in of:
            begin, end = BOXES[caller], BOXES[callee]
            arrow = {"arrowstyle": "-|>,head_width=0.15,head_length=0.3", "color": GREY, "linewidth": 0.9}
            ends = (end.x, end.row - 0.22), (begin.x, begin.row + 0.22)
            axes.annotate("", *ends, arrowprops={**arrow, "shrinkA": 0, "shrinkB": 0}, zorder=0)
    axes.set(xlim=(-0.5, 5.7), ylim=(rows - 0.7, -0.35))
    axes.axis("off")
    return drawn


def main() -> int:
    parser = Parser(prog="python -m tests.house.architecture", description=__doc__)
    parser.add_argument("--plot", type=values.figure, required=True, metavar="FILE", help="where to draw it")
    save(figure, parser.parse_args().plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
