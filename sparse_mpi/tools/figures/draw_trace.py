"""The figure of ``trace``: who sends how many bytes to whom, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparse_mpi.tools.figures.bars import bars, rows
from sparse_mpi.tools.figures.style import WIDTH, Look, matplotlib, paper

ARROWS = 400  # messages of a step up to which each has an arrow


def figure(records: Sequence[dict[str, Any]], look: Look) -> Any:
    """Draw a row for each algorithm: a matrix of bytes, and a bar for each message on its sender's line."""
    record = records[0]
    steps = record["algorithms"]
    ranks = len(next(iter(steps.values()))["matrix"])
    height = 0.5 + max(1.9, 0.2 * ranks) * len(steps)
    shown = paper(WIDTH, height)
    shown.suptitle(record.get("heading", ""), x=0.01, ha="left", fontsize=8)
    axes = shown.subplots(len(steps), 2, squeeze=False, width_ratios=(1, 4))
    for (left, right), (name, step) in zip(axes, steps.items(), strict=True):
        _matrix(left, np.array(step["matrix"]), look)
        left.set_title(f"{name}: {1e6 * step['seconds']:.1f} us\n{len(step['transfers'])} messages")
        _timeline(right, step, ranks, look)
    axes[-1, 1].set_xlabel("us from the beginning of the step")
    return shown


def _matrix(axes: Any, sent: np.ndarray, look: Look) -> None:
    """Draw bytes by sender and receiver."""
    axes.imshow(sent, cmap=matplotlib("colors").LinearSegmentedColormap.from_list("", (look.paper, look.colours[0])))
    axes.set_ylabel("sender")
    axes.set_xlabel(f"receiver; {sent.sum() / 1e3:.1f} kB")
    axes.set_xticks([])
    axes.grid(False)


def _timeline(axes: Any, step: dict[str, Any], ranks: int, look: Look) -> None:
    """Draw a bar for each message on its sender's line, and an arrow to where it arrives; name the phases."""
    transfers = step["transfers"]
    colours = phases([transfer["phase"] for transfer in transfers], look)
    for phase, colour in colours.items():
        chosen = [transfer for transfer in transfers if transfer["phase"] == phase]
        for rank in range(ranks):
            spans = [(1e6 * t["start"], 1e6 * t["end"]) for t in chosen if t["source"] == rank]
            bars(axes, rank, spans, colour, edgecolor=look.paper, linewidth=0.4)
        if len(transfers) <= ARROWS:
            for t in chosen:
                arrow = {"arrowstyle": "->", "color": colour, "linewidth": 0.5, "alpha": 0.6}
                axes.annotate("", (1e6 * t["end"], t["dest"]), (1e6 * t["start"], t["source"]), arrowprops=arrow)
    rows(axes, [str(rank) for rank in range(ranks)])
    axes.set_xlim(0, 1e6 * step["seconds"] or None)
    patch = matplotlib("patches").Patch
    patches = [patch(color=colour, label=phase.partition(":")[0]) for phase, colour in colours.items()]
    place = {"loc": "lower left", "bbox_to_anchor": (0, 0.97), "ncols": 4}
    axes.legend(handles=patches, handlelength=1, columnspacing=1, borderpad=0, **place)


def phases(of: Sequence[str], look: Look) -> dict[str, str]:
    """Return a colour for each phase, in the order in which they begin."""
    colours = (*look.colours, *look.shades[:0:-1], look.ink)
    return {phase: colours[index % len(colours)] for index, phase in enumerate(dict.fromkeys(of))}
