"""The figure of ``--timeline`` of the training programs: one step, bucket by bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparse_mpi.tools.figures.bars import bars, legend, rows
from sparse_mpi.tools.figures.style import Look, panels


def figure(records: Sequence[dict[str, Any]], look: Look) -> Any:
    """Draw a row for the passes over the model and one for every bucket, in milliseconds from the start of the step."""
    step = records[0]["timeline"]
    colours = {
        "in line": look.shades[0],
        "forward": look.shades[1],
        "backward": look.shades[2],
        "update": look.shades[3],
        "exchange": look.colours[0],
        "selection": look.colours[1],
        "merging": look.colours[2],
        "exposed": look.colours[3],
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
