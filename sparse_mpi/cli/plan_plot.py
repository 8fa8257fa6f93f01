"""The figure of ``plan``: the step as it is, all dense, and as planned."""

from __future__ import annotations

from typing import Any

from sparse_mpi.cli.figures import matplotlib, save
from sparse_mpi.plan.base import Plan, Profile
from sparse_mpi.plan.planners.single import dense
from sparse_mpi.plan.timeline import COMMUNICATION, KINDS, STREAMS, Timeline, simulate

COLOURS = dict(zip(KINDS, ("#b0b7bf", "#7f8fa6", "#e1a23b", "#3b7dd8", "#4f9d69", "#5d5d5d"), strict=True))
EXPOSED, IDLE = "#c0392b", "#999999"
BAR = 0.6  # height, of the distance between streams


def draw(profile: Profile, plan: Plan, file: str) -> None:
    """Draw two panels over one time axis; ``file`` is PNG, SVG or whatever its extension says.

    Raises:
        SystemExit: matplotlib is not installed, or does not know the extension.
    """
    figures, patches = matplotlib("figure"), matplotlib("patches")
    plans = {"all dense": dense(profile, plan.overlap, plan.cpu_lane), f"planned ({plan.planner})": plan}
    timelines = {name: simulate(profile, p.parts, p.overlap, p.cpu_lane) for name, p in plans.items()}
    streams = [stream for stream in STREAMS if any(timeline.spans(stream) for timeline in timelines.values())]
    figure = figures.Figure(figsize=(11, 1.6 + 1.5 * len(streams)), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, (name, timeline) in zip(panels, timelines.items(), strict=True):
        _panel(axes, timeline, streams)
        seconds = f"step {timeline.step:.4g} s, exposed communication {timeline.exposed:.4g} s"
        axes.set_title(f"{name}: {seconds}", loc="left", fontsize="medium")
    panels[-1].set(
        xlabel="seconds from the beginning of the step",
        xlim=(0, max(timeline.step for timeline in timelines.values()) or None),
    )
    used = {event.kind for timeline in timelines.values() for event in timeline.events}
    legend = [patches.Patch(color=COLOURS[kind], label=kind) for kind in KINDS if kind in used]
    legend.append(patches.Patch(color=EXPOSED, label="exposed"))
    if any(timeline.gaps for timeline in timelines.values()):
        legend.append(patches.Patch(facecolor="none", edgecolor=IDLE, hatch="////", label="idle gap"))
    figure.legend(handles=legend, loc="outside right upper", fontsize="small")
    save(figure, file)


def _panel(axes: Any, timeline: Timeline, streams: list[str]) -> None:
    """Draw the bars of one timeline, a row a stream; under communication a line wherever it is exposed."""
    for row, stream in enumerate(streams):
        events = [event for event in timeline.events if event.stream == stream]
        spans = [(event.start, event.end - event.start) for event in events]
        colours = [COLOURS[event.kind] for event in events]
        axes.broken_barh(spans, (row - BAR / 2, BAR), facecolors=colours, edgecolor="white", linewidth=0.2)
    row = streams.index(COMMUNICATION) if COMMUNICATION in streams else 0
    gaps = [(start, end - start) for start, end in timeline.gaps]
    axes.broken_barh(gaps, (row - BAR / 2, BAR), facecolors="none", edgecolor=IDLE, hatch="////", linewidth=0)
    exposed = [(start, end - start) for start, end in timeline.exposed_spans]
    axes.broken_barh(exposed, (row + BAR / 2 + 0.04, 0.1), facecolors=EXPOSED)
    axes.set(yticks=range(len(streams)), yticklabels=streams, ylim=(len(streams) - 0.4, -0.6))
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
