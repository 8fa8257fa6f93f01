"""The figure of ``plan``: the step all dense, and as planned."""

from __future__ import annotations

from typing import Any

from sparse_mpi.tools.figures.bars import BAR, bars, legend, rows
from sparse_mpi.tools.figures.style import Look, matplotlib, panels
from sparse_mpi.tools.plan.base import Plan, Profile
from sparse_mpi.tools.plan.planners.single import dense
from sparse_mpi.tools.plan.timeline import COMMUNICATION, KINDS, STREAMS, Timeline, simulate


def figure(profile: Profile, plan: Plan, look: Look) -> Any:
    """Draw two panels over one time axis."""
    plans = {"all dense": dense(profile, plan.overlap, plan.cpu_lane), f"planned ({plan.planner})": plan}
    timelines = {name: simulate(profile, p.parts, p.overlap, p.cpu_lane) for name, p in plans.items()}
    streams = [stream for stream in STREAMS if any(timeline.spans(stream) for timeline in timelines.values())]
    colours = dict(zip(KINDS, (*look.shades[1:3], *look.colours[1::-1], look.colours[2], look.shades[3]), strict=True))
    shown, axes = panels(2, 1, 0.7 + 0.32 * len(streams), " ", sharex=True)
    for panel, (name, timeline) in zip(axes[:, 0], timelines.items(), strict=True):
        _panel(panel, timeline, streams, colours, look)
        seconds = f"step {timeline.step:.4g} s, exposed communication {timeline.exposed:.4g} s"
        panel.set_title(f"{name}: {seconds}")
    axes[-1, 0].set(
        xlabel="seconds from the beginning of the step",
        xlim=(0, max(timeline.step for timeline in timelines.values()) or None),
    )
    used = {event.kind for timeline in timelines.values() for event in timeline.events}
    named = {kind: colour for kind, colour in colours.items() if kind in used}
    more = []
    if any(timeline.gaps for timeline in timelines.values()):
        idle = matplotlib("patches").Patch(facecolor="none", edgecolor=look.grey, hatch="////", label="idle gap")
        more = [idle]
    legend(shown, named | {"exposed": look.colours[3]}, more)
    return shown


def _panel(axes: Any, timeline: Timeline, streams: list[str], colours: dict[str, str], look: Look) -> None:
    """Draw the bars of one timeline, a row a stream; under communication a line wherever it is exposed."""
    for row, stream in enumerate(streams):
        events = [event for event in timeline.events if event.stream == stream]
        for kind in dict.fromkeys(event.kind for event in events):
            spans = [(event.start, event.end) for event in events if event.kind == kind]
            bars(axes, row, spans, colours[kind], edgecolor=look.paper, linewidth=0.2)
    row = streams.index(COMMUNICATION) if COMMUNICATION in streams else 0
    bars(axes, row, timeline.gaps, "none", edgecolor=look.grey, hatch="////")
    exposed = [(start, end - start) for start, end in timeline.exposed_spans]
    axes.broken_barh(exposed, (row + BAR / 2 + 0.04, 0.1), facecolors=look.colours[3])
    rows(axes, streams)
