"""Timelines of a training step (``--timeline``), and of the messages of a step (``trace``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparse_mpi_bench.figures.style import (
    COLOURS,
    INK,
    PAPER,
    SHADES,
    WIDTH,
    bars,
    legend,
    matplotlib,
    panels,
    paper,
    rows,
)

ARROWS = 400  # messages of a step up to which each has an arrow


def figure(records: Sequence[dict[str, Any]]) -> Any:
    step = records[0]["timeline"]
    colours = {
        "in line": SHADES[0],
        "forward": SHADES[1],
        "backward": SHADES[2],
        "update": SHADES[3],
        "exchange": COLOURS[0],
        "selection": COLOURS[1],
        "merging": COLOURS[2],
        "exposed": COLOURS[3],
    }
    shown, axes = panels(1, 1, 1.1 + 0.27 * len(step["rows"]))
    for number, parts in enumerate(step["rows"].values()):
        for kind, spans in parts.items():
            bars(axes[0, 0], number, [(1e3 * begin, 1e3 * end) for begin, end in spans], colours[kind])
    rows(axes[0, 0], list(step["rows"]))
    axes[0, 0].set(
        xlabel="milliseconds from the beginning of the step",
        xlim=(0, 1e3 * step["seconds"] or None),
        title=f"step {step['number']}: {1e3 * step['seconds']:.1f} ms, reductions {1e3 * step['reducing']:.1f} ms, "
        f"exposed {1e3 * step['exposed']:.1f} ms",
    )
    used = {kind for parts in step["rows"].values() for kind, spans in parts.items() if spans}
    legend(shown, {kind: colour for kind, colour in colours.items() if kind in used})
    return shown


def trace(records: Sequence[dict[str, Any]]) -> Any:
    record = records[0]
    steps = record["algorithms"]
    ranks = len(next(iter(steps.values()))["matrix"])
    height = 0.5 + max(1.9, 0.2 * ranks) * len(steps)
    shown = paper(WIDTH, height)
    shown.suptitle(record.get("heading", ""), x=0.01, ha="left", fontsize=8)
    axes = shown.subplots(len(steps), 2, squeeze=False, width_ratios=(1, 4))
    for (left, right), (name, step) in zip(axes, steps.items(), strict=True):
        _matrix(left, np.array(step["matrix"]))
        left.set_title(f"{name}: {1e6 * step['seconds']:.1f} us\n{len(step['transfers'])} messages")
        _messages(right, step, ranks)
    axes[-1, 1].set_xlabel("us from the beginning of the step")
    return shown


def _matrix(axes: Any, sent: np.ndarray) -> None:
    axes.imshow(sent, cmap=matplotlib("colors").LinearSegmentedColormap.from_list("", (PAPER, COLOURS[0])))
    axes.set_ylabel("sender")
    axes.set_xlabel(f"receiver; {sent.sum() / 1e3:.1f} kB")
    axes.set_xticks([])
    axes.grid(False)


def _messages(axes: Any, step: dict[str, Any], ranks: int) -> None:
    transfers = step["transfers"]
    colours = phases([transfer["phase"] for transfer in transfers])
    for phase, colour in colours.items():
        chosen = [transfer for transfer in transfers if transfer["phase"] == phase]
        for rank in range(ranks):
            spans = [(1e6 * t["start"], 1e6 * t["end"]) for t in chosen if t["source"] == rank]
            bars(axes, rank, spans, colour, edgecolor=PAPER, linewidth=0.4)
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


def phases(of: Sequence[str]) -> dict[str, str]:
    colours = (*COLOURS, *SHADES[:0:-1], INK)
    return {phase: colours[index % len(colours)] for index, phase in enumerate(dict.fromkeys(of))}
