"""The figure of ``trace``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparse_mpi.analysis.replay import Trace
from sparse_mpi.cli.figures import matplotlib, save

ARROWS = 400  # messages of a step up to which each has an arrow
BAR = 0.6  # height, of the distance between ranks


def draw(traces: Sequence[Trace], heading: str, file: str) -> None:
    """Draw a row for each algorithm: who sends how many bytes to whom, and when what leaves.

    Raises:
        SystemExit: matplotlib is not installed, or does not know the extension.
    """
    figures, patches, maps = matplotlib("figure"), matplotlib("patches"), matplotlib().colormaps
    phases = dict.fromkeys(transfer.phase for trace in traces for transfer in trace.transfers)
    colours = {phase: maps["tab20" if len(phases) > 10 else "tab10"](index) for index, phase in enumerate(phases)}
    height = 1.2 + max(2.6, 0.22 * traces[0].ranks) * len(traces)
    figure = figures.Figure(figsize=(15, height), layout="constrained")
    figure.suptitle(heading, fontsize="medium")
    panels = figure.subplots(len(traces), 2, squeeze=False, width_ratios=(1, 3.2))
    for (left, right), trace in zip(panels, traces, strict=True):
        _matrix(figure, left, trace)
        _timeline(right, trace, colours)
    handles = [patches.Patch(color=colour, label=phase) for phase, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize="small")
    save(figure, file)


def _matrix(figure: Any, axes: Any, trace: Trace) -> None:
    """Draw bytes by sender and receiver."""
    image = axes.imshow(trace.matrix / 1e3, cmap="viridis", vmin=0)
    figure.colorbar(image, ax=axes, label="KB")
    axes.set(title=f"{trace.algorithm}: {trace.matrix.sum() / 1e3:.1f} KB", xlabel="receiver", ylabel="sender")


def _timeline(axes: Any, trace: Trace, colours: dict[str, Any]) -> None:
    """Draw a bar for each message on its sender's line, and an arrow to where it arrives."""
    for phase, colour in colours.items():
        chosen = [transfer for transfer in trace.transfers if transfer.phase == phase]
        for rank in range(trace.ranks):
            spans = [(1e6 * t.start, 1e6 * (t.end - t.start)) for t in chosen if t.source == rank]
            axes.broken_barh(spans, (rank - BAR / 2, BAR), facecolors=colour, edgecolor="white", linewidth=0.4)
        if len(trace.transfers) <= ARROWS:
            for t in chosen:
                arrow = {"arrowstyle": "->", "color": colour, "linewidth": 0.6, "alpha": 0.6}
                axes.annotate("", (1e6 * t.end, t.dest), (1e6 * t.start, t.source), arrowprops=arrow)
    axes.set(
        title=f"{trace.algorithm}: {1e6 * trace.seconds:.1f} us, {len(trace.transfers)} messages",
        xlabel="us from the beginning of the step",
        ylabel="rank",
        xlim=(0, 1e6 * trace.seconds or None),
        ylim=(trace.ranks - 0.5, -0.5),
    )
