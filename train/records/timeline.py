"""``--timeline``: draw when a step passed over the model, and when it reduced every bucket."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from records.meter import Stamps
from records.metrics import plotting
from sparse_mpi.buckets.reduction import GradientReduction
from sparse_mpi.buckets.trace import BucketTrace, Interval

RECENT = 21  # steps, of which the one of median length is drawn
COLOURS = {
    "forward": "#b0b7bf",
    "backward": "#7f8fa6",
    "exposed": "#c0392b",
    "update": "#5d5d5d",
    "in line": "#e8e4da",
    "merging": "#4f9d69",
    "selection": "#e1a23b",
    "exchange": "#3b7dd8",
}
BAR = 0.6  # height, of the distance between rows


class StepTrace(NamedTuple):
    """When one step of this rank did what."""

    number: int
    stamps: Stamps
    buckets: list[BucketTrace]

    @property
    def seconds(self) -> float:
        """Return the seconds from the start of the batch to the last updated weight."""
        return self.stamps.updated - self.stamps.start

    @property
    def reducing(self) -> float:
        """Return the seconds in which buckets were reduced, added up."""
        return sum(bucket.span.ended - bucket.span.began for bucket in self.buckets)

    @property
    def exposed(self) -> float:
        """Return the seconds of them that came after the backward pass."""
        return self.stamps.reduced - self.stamps.backward


class Recorder:
    """A recorder of this rank's recent steps, which draws the typical one.

    Args:
        reduction: gets a tracer of its buckets.
        file: PNG, SVG or whatever its extension says.
    """

    def __init__(self, reduction: GradientReduction, file: Path) -> None:
        self._tracer, self._file = reduction.record(), file
        self._steps: deque[StepTrace] = deque(maxlen=RECENT)

    def add(self, number: int, stamps: Stamps) -> None:
        """Add step ``number``, which is over."""
        self._steps.append(StepTrace(number, stamps, list(self._tracer.buckets)))

    def draw(self) -> str:
        """Draw the recent step of median length, if there was one; return a line about it.

        Raises:
            OSError, ValueError: the file cannot be written, or its extension means nothing.
        """
        if not self._steps:
            return f"no timeline in {self._file}: there was no step to draw"
        step = sorted(self._steps, key=lambda step: step.seconds)[len(self._steps) // 2]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draw(step, self._file)
        return (
            f"timeline of step {step.number} in {self._file}: {step.reducing:.4f} s of reductions, "
            f"{step.exposed:.4f} s exposed, in a step of {step.seconds:.4f} s"
        )


def draw(step: StepTrace, file: Path) -> None:
    """Draw a row for the passes over the model and one for every bucket, in milliseconds from the start of the step."""
    figure = plotting("--timeline").Figure(figsize=(11, 1.8 + 0.4 * len(step.buckets)), layout="constrained")
    axes = figure.subplots()
    origin, stamps = step.stamps.start, step.stamps
    passes: dict[str, list[Interval]] = {
        "forward": [(stamps.start, stamps.forward)],
        "backward": [(stamps.forward, stamps.backward)],
        "exposed": [(stamps.backward, stamps.reduced)],
        "update": [(stamps.reduced, stamps.updated)],
    }
    _row(axes, 0, passes, origin)
    for number, bucket in enumerate(step.buckets, 1):
        span = bucket.span
        parts = {"in line": [(span.given, span.began)], "merging": [(span.began, span.ended)]}
        _row(axes, number, parts | {"selection": bucket.selections, "exchange": bucket.calls}, origin)
    names = ["passes", *(f"bucket {number}" for number in range(1, len(step.buckets) + 1))]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(
        xlabel="milliseconds from the beginning of the step",
        title=f"step {step.number}: {step.seconds * 1e3:.1f} ms, reductions {step.reducing * 1e3:.1f} ms, "
        f"exposed {step.exposed * 1e3:.1f} ms",
    )
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(file, dpi=120)


def _row(axes: Any, row: int, parts: dict[str, list[Interval]], origin: float) -> None:
    """Draw the bars of one row, later kinds over earlier ones; the legend names each kind once."""
    named = axes.get_legend_handles_labels()[1]
    for kind, intervals in parts.items():
        bars = [((start - origin) * 1e3, (end - start) * 1e3) for start, end in intervals if end > start]
        label = None if kind in named else kind
        axes.broken_barh(bars, (row - BAR / 2, BAR), facecolors=COLOURS[kind], label=label)
