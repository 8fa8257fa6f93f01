"""``--timeline``: draw when a step passed over the model, and when it reduced every bucket.

The figure has rank 0's step. The record beside it has all ranks' steps as trace events, as Perfetto and Chrome read
them.

On a device times are from events on its streams: the host only queues work there. They are read once, for the step in
the figure, when training is over.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.cli.records import provenance
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import Span
from sparse_mpi.comm.base import hosts_of
from sparse_mpi.comm.streams import seconds_between
from sparse_mpi.monitor.tracer import BucketTrace, Interval
from sparse_mpi.training.reduction import GradientReduction
from sparse_train.records.metrics import STYLE, Stamps

RECENT = 21  # steps, of which the one of median length is drawn


class StepTrace(NamedTuple):
    """The times of the phases of one step of this rank."""

    number: int
    stamps: Stamps
    buckets: list[BucketTrace]
    marks: tuple[Any, ...] = ()  # events on the device at the stamps; None on the host

    @property
    def seconds(self) -> float:
        return self.stamps.updated - self.stamps.start

    @property
    def reducing(self) -> float:
        return sum(bucket.span.ended - bucket.span.began for bucket in self.buckets)

    @property
    def exposed(self) -> float:
        return self.stamps.reduced - self.stamps.backward


class Recorder:
    """A recorder of this rank's recent steps; the typical one is drawn.

    Args:
        reduction: gets a tracer of its buckets.
        file: PNG, SVG or another type, by its extension.
    """

    def __init__(self, reduction: GradientReduction, file: Path) -> None:
        self._tracer, self._file = reduction.record(), file
        self._steps: deque[StepTrace] = deque(maxlen=RECENT)
        self._marks: deque[Any] = deque(maxlen=len(Stamps._fields))

    def clock(self) -> float:
        """Return the time, in `time.perf_counter` seconds, and mark the work queued on the device so far."""
        now = perf_counter()  # time before the mark, see `on_device`
        self._marks.append(self._tracer.mark())
        return now

    def add(self, number: int, stamps: Stamps) -> None:
        """Add step ``number``, which is over; `clock` gave its stamps."""
        self._steps.append(StepTrace(number, stamps, list(self._tracer.buckets), tuple(self._marks)))

    def draw(self, comm: Comm) -> str:
        """Draw the recent step of median length on rank 0 of ``comm``, if there was one; return a line about it.

        Collective; other ranks return nothing.

        Raises OSError, ValueError: the file cannot be written, or its extension means nothing; on rank 0.
        """
        # By the host's clock, which keeps step with a device: every step waits there for its reductions
        ordered = sorted(self._steps, key=lambda step: step.seconds)
        median = ordered[len(ordered) // 2].number if ordered else 0
        number = int(comm.bcast(np.array([median]), control=True)[0])
        ranks = gathered(next((step for step in self._steps if step.number == number), None), comm)
        if comm.rank:
            return ""
        if (step := ranks[0]) is None:
            return f"no timeline in {self._file}: there was no step to draw"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draw(ranks, self._file)
        return (
            f"timeline of step {number} in {self._file}: {step['reducing']:.4f} s of reductions, "
            f"{step['exposed']:.4f} s exposed, in a step of {step['seconds']:.4f} s"
        )


def on_device(step: StepTrace) -> StepTrace:
    """Return the step in seconds of the device since its start; as it is if it was none of a device.

    Selections and calls have times of the host, which waits for each to end. The two clocks are tied by the stamps: the
    device reaches a mark no earlier than the host sets it, and at once where it had nothing left to do.
    """
    if not step.marks or step.marks[0] is None:
        return step
    first, last = step.marks[0], step.marks[-1]
    last.synchronize()  # it comes after everything else of the step
    times = [seconds_between(first, mark) for mark in step.marks]
    began = max(stamp - time for stamp, time in zip(step.stamps, times, strict=True))  # the host's time of ``first``

    def moved(bucket: BucketTrace) -> BucketTrace:
        assert bucket.marks is not None, "a bucket on a device has marks"
        span = Span(*(seconds_between(first, mark) for mark in bucket.marks))

        def inside(intervals: list[Interval]) -> list[Interval]:
            return [(max(start - began, span.began), min(end - began, span.ended)) for start, end in intervals]

        return BucketTrace(span, inside(bucket.selections), inside(bucket.calls))

    return StepTrace(step.number, Stamps(*times), list(map(moved, step.buckets)))


def gathered(step: StepTrace | None, comm: Comm) -> list[dict[str, Any] | None]:
    """Return by rank the `record_of` its ``step``, by rank 0's clock; None without. Collective."""
    hosts = hosts_of(comm)
    # Processes of a host have one clock. Other hosts' clocks are tied to it by a barrier, which all leave together
    comm.barrier()
    clocks = comm.allgather(np.array(perf_counter()), control=True)
    ahead = 0.0 if hosts[comm.rank] == hosts[0] else float(clocks[comm.rank] - clocks[0])
    record = None if step is None else record_of(on_device(step)) | {"start": step.stamps.start - ahead}
    texts, counts = comm.allgatherv(np.frombuffer(json.dumps(record).encode(), np.uint8))
    return [json.loads(text.tobytes()) for text in np.split(texts, np.cumsum(counts)[:-1])]


def draw(ranks: Sequence[dict[str, Any] | None], file: Path) -> None:
    """Draw a row for the passes of rank 0 over the model and one for every bucket; write a record beside it, as JSON.

    ``python -m sparse_mpi bench draw`` draws that record anew. In it are the trace events of all ``ranks``: they come
    first, because Perfetto reads no further.
    """
    record = {"traceEvents": trace_events(ranks), "displayTimeUnit": "ms", "timeline": ranks[0]}
    file.with_suffix(".json").write_text(json.dumps(record | provenance()) + "\n")
    figure = import_module("sparse_mpi_bench.figures.draw_timeline").figure
    import_module(STYLE).write(partial(figure, [record]), file)


def trace_events(ranks: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Return the steps of the ranks as events of Chrome's trace format, in microseconds from the first one's start.

    A rank is a process, its passes over the model and each of its buckets are threads. An arrow goes from where the
    gradients of a bucket were there to where its reduction began.
    """
    first = min((step["start"] for step in ranks if step is not None), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, step in enumerate(ranks):
        if step is None:
            continue

        def event(kind: str, name: str, thread: int, at: float = first, rank: int = rank, **more: Any) -> None:
            when = {} if kind == "M" else {"ts": round(1e6 * (at - first), 3), "cat": "sparse_mpi"}
            events.append({"ph": kind, "name": name, "pid": rank, "tid": thread, **when, **more})

        event("M", "process_name", 0, args={"name": f"rank {rank}"})
        for thread, (row, kinds) in enumerate(step["rows"].items()):
            event("M", "thread_name", thread, args={"name": row})
            for kind, spans in kinds.items():
                for begin, end in spans:
                    event("X", kind, thread, step["start"] + begin, dur=round(1e6 * (end - begin), 3))
            for given, began in kinds.get("in line", ()):
                arrow = f"{rank}.{thread}"
                event("s", "gradients", 0, step["start"] + given, id=arrow)
                event("f", "gradients", thread, step["start"] + began, id=arrow, bp="e")
    return events


def record_of(step: StepTrace) -> dict[str, Any]:
    """Return the times of the step's phases, in seconds from its start: rows of kinds, of which later ones lie on top.

    The start is in seconds of this process's `time.perf_counter`.
    """
    stamps = step.stamps
    rows: dict[str, dict[str, list[Interval]]] = {
        "passes": {
            "forward": [(stamps.start, stamps.forward)],
            "backward": [(stamps.forward, stamps.backward)],
            "exposed": [(stamps.backward, stamps.reduced)],
            "update": [(stamps.reduced, stamps.updated)],
        }
    }
    for number, bucket in enumerate(step.buckets, 1):
        span = bucket.span
        rows[f"bucket {number}"] = {
            "in line": [(span.given, span.began)],
            "merging": [(span.began, span.ended)],
            "selection": bucket.selections,
            "exchange": bucket.calls,
        }
    since = {
        row: {kind: [[round(at - stamps.start, 7) for at in interval] for interval in of] for kind, of in kinds.items()}
        for row, kinds in rows.items()
    }
    times = {"seconds": step.seconds, "reducing": step.reducing, "exposed": step.exposed}
    return {"number": step.number, "start": stamps.start, **times, "rows": since}
