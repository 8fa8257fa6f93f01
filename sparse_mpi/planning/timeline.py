"""Simulate a training step: what runs when on the compute stream, the communication stream and a CPU lane.

A step computes for `Profile.before` seconds, then runs the backward pass, reduces all parts and updates. A reduction is
cut into equal pieces (`PlannedPart.partitions`); each is selected, exchanged and merged in that order.

Without overlap, parts, their pieces and the phases of these follow one another after the backward pass. With overlap a
part is ready when the last of its tensors is, and parts are reduced in the order of readiness:

- Selection on the compute stream delays the rest of the backward pass (Espresso, EuroSys'23). On the CPU lane it delays
  nothing, but waits for the selections before it.
- An exchange begins when its piece is selected and the exchanges before it are through.
- Merging begins when the backward pass and all selections are through; each merge waits for the exchange of its piece.
- The update waits for all merges.

Overlap is never slower than no overlap of the same parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from sparse_mpi.planning.base import PlannedPart, Profile

COMPUTE, COMMUNICATION, CPU = STREAMS = ("compute", "communication", "cpu")
KINDS = ("before", "backward", "select", "exchange", "merge", "update")
Span = tuple[float, float]  # from, to; seconds from the beginning of the step
Entry = tuple[str, str, int | None, float, float]  # the fields of an `Event`; planners simulate thousands of steps


class Event(NamedTuple):
    """An interval in which a stream is busy with one thing."""

    stream: str  # one of STREAMS
    kind: str  # one of KINDS
    part: int | None  # index of the part it belongs to
    start: float  # seconds from the beginning of the step
    end: float


class Load(NamedTuple):
    """When a part is ready, from the beginning of the backward pass, and the seconds of each piece in each phase."""

    ready: float
    pieces: int
    select: float
    exchange: float
    merge: float


class Stream:
    """A clock that does one thing at a time, in the order of the calls, and adds them to ``entries``."""

    __slots__ = ("entries", "free")

    def __init__(self, entries: list[Entry], free: float) -> None:
        self.entries, self.free = entries, free

    def run(self, stream: str, kind: str, part: int | None, seconds: float, ready: float = 0.0) -> float:
        """Begin when ``ready`` and free; return the end."""
        start = self.free if self.free > ready else ready
        self.free = end = start + seconds
        self.entries.append((stream, kind, part, start, end))
        return end


class Timeline:
    """A simulated step.

    Attributes:
        events: all events of more than zero length, ascending in time on each stream.
        step: seconds of the whole step.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.step = entries[-1][4]
        self.events = tuple(Event(*entry) for entry in entries if entry[4] > entry[3])

    def spans(self, stream: str) -> list[Span]:
        """Return when a stream is busy, with a span for each event."""
        return [(event.start, event.end) for event in self.events if event.stream == stream]

    @cached_property
    def exposed_spans(self) -> list[Span]:
        """Return when there is communication while the compute stream is idle."""
        busy = self.spans(COMPUTE)
        idle = zip([0.0, *(end for _, end in busy)], [*(start for start, _ in busy), self.step], strict=True)
        gaps = list(idle)
        overlaps = [(max(a, start), min(b, end)) for start, end in self.spans(COMMUNICATION) for a, b in gaps]
        return [(start, end) for start, end in overlaps if end > start]

    @property
    def exposed(self) -> float:
        """Return the seconds of communication that no computing hides."""
        return sum(end - start for start, end in self.exposed_spans)

    @cached_property
    def gaps(self) -> list[Span]:
        """Return when the communication stream is idle between its first event and its last: the *bubbles*."""
        spans = self.spans(COMMUNICATION)
        return [(end, start) for (_, end), (start, _) in zip(spans, spans[1:], strict=False) if start > end]


def simulate(profile: Profile, parts: Sequence[PlannedPart], overlap: bool = False, cpu_lane: bool = False) -> Timeline:
    """Return the timeline of a step of ``profile`` whose gradient is reduced as ``parts`` say."""
    return Timeline(schedule(profile, [load(profile, part) for part in parts], overlap, cpu_lane))


def load(profile: Profile, part: PlannedPart) -> Load:
    """Return what ``part`` costs, copies of tensors that are not neighbours included."""
    option = profile.option(part.option)
    elements = sum(profile.tensors[number].size for number in part.tensors) / part.partitions
    k = part.k / part.partitions
    neighbours = part.tensors[-1] - part.tensors[0] + 1 == len(part.tensors)
    whole = len(part.tensors) == len(profile.tensors)
    fusing = 0.0 if neighbours else profile.gather * elements
    parting = 2 * profile.gather * elements if option.dense and not whole else 0.0  # total and sent
    return Load(
        min(profile.backward, max(profile.tensors[number].ready for number in part.tensors)),
        part.partitions,
        option.select.seconds(elements, k) + fusing,
        option.exchange.seconds(elements, k),
        option.merge.seconds(elements, k) + parting,
    )


def schedule(profile: Profile, loads: Sequence[Load], overlap: bool, cpu_lane: bool) -> list[Entry]:
    """Return all events of a step, in no order but that the last one is the update."""
    work = CPU if cpu_lane else COMPUTE
    entries: list[Entry] = [(COMPUTE, "before", None, 0.0, profile.before)]
    end = (_overlapping if overlap else _sequential)(profile, loads, work, entries)
    entries.append((COMPUTE, "update", None, end, end + profile.update))
    return entries


def _sequential(profile: Profile, loads: Sequence[Load], work: str, entries: list[Entry]) -> float:
    only = Stream(entries, profile.before)  # one thing at a time, whatever does it
    only.run(COMPUTE, "backward", None, profile.backward)
    for number, (_, pieces, select, exchange, merge) in enumerate(loads):
        for _ in range(pieces):
            only.run(work, "select", number, select)
            only.run(COMMUNICATION, "exchange", number, exchange)
            only.run(work, "merge", number, merge)
    return only.free


def _overlapping(profile: Profile, loads: Sequence[Load], work: str, entries: list[Entry]) -> float:
    compute, communication = Stream(entries, profile.before), Stream(entries, profile.before)
    worker = compute if work == COMPUTE else Stream(entries, profile.before)
    passed = 0.0  # seconds of the backward pass that are through
    arrivals = []  # part and time of each exchanged piece
    for number in sorted(range(len(loads)), key=lambda number: loads[number].ready):
        ready, pieces, select, exchange, _ = loads[number]
        if worker is compute and ready > passed:
            start, compute.free = compute.free, compute.free + ready - passed
            entries.append((COMPUTE, "backward", None, start, compute.free))
            passed = ready
        for _ in range(pieces):
            selected = worker.run(work, "select", number, select, 0.0 if worker is compute else profile.before + ready)
            arrivals.append((number, communication.run(COMMUNICATION, "exchange", number, exchange, selected)))
    compute.run(COMPUTE, "backward", None, profile.backward - passed)
    worker.free = max(worker.free, compute.free)
    for number, arrival in arrivals:
        worker.run(work, "merge", number, loads[number].merge, arrival)
    return max(worker.free, communication.free)
