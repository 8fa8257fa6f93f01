"""Simulate a training step: what runs when on the compute stream, the communication stream and a CPU lane.

The model. A step computes for `Profile.before` seconds, then runs the backward pass, reduces all parts and updates. A
reduction is cut into `Part.partitions` equal pieces, and each piece is selected, exchanged and merged in that order.

Without overlap there is only one thing at a time: parts, their pieces and the phases of these follow one after another,
as in a training loop that reduces when the backward pass is through.

With overlap a part is ready when the last of its tensors is, and parts are reduced in the order of readiness:

- Selection on the compute stream interrupts the backward pass, and delays all the rest of it (Espresso, EuroSys'23).
  On the CPU lane it delays nothing, but waits for the selections before it.
- An exchange begins when its piece is selected and the exchanges before it are through: pieces are pipelined.
- Merging begins when the backward pass and all selections are through. Each merge waits for the exchange of its piece.
- The update waits for all merges.

It follows that at any time some stream is busy, and that overlap is never slower than no overlap of the same parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

from sparse_mpi.planning.base import Part, Profile

COMPUTE, COMMUNICATION, CPU = STREAMS = ("compute", "communication", "cpu")
KINDS = ("before", "backward", "select", "exchange", "merge", "update")
Entry = tuple[str, str, int, float, float]  # stream, kind, number of the part or -1, start, end
Span = tuple[float, float]  # from, to; seconds from the beginning of the step


class Stream:
    """The clock of what does one thing at a time, in the order in which it is asked."""

    __slots__ = ("free",)

    def __init__(self, free: float = -inf) -> None:
        self.free = free  # when it has done all that it was asked

    def run(self, seconds: float, ready: float = -inf) -> Span:
        """Do what takes so many seconds once it is ``ready`` and the stream is free; return from when to when."""
        start = self.free if self.free > ready else ready
        self.free = start + seconds
        return start, self.free

    def run_until(self, end: float) -> Span:
        """Do what takes until ``end`` from now on; return from when to when."""
        start, self.free = self.free, end
        return start, end


class Event(NamedTuple):
    """An interval in which a stream is busy with one thing."""

    stream: str  # one of STREAMS
    kind: str  # one of KINDS
    part: int | None  # index of the part it belongs to
    start: float  # seconds from the beginning of the step
    end: float


class Load(NamedTuple):
    """The work that a part brings: when it is ready, and the seconds that each of its pieces takes in each phase."""

    ready: float  # from the beginning of the backward pass
    pieces: int
    select: float
    exchange: float
    merge: float


class Timeline:
    """A simulated step.

    Attributes:
        events: all events of more than zero length, ascending in time on each stream.
        step: seconds of the whole step.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.step = entries[-1][4]
        self.events = tuple(
            Event(stream, kind, None if number < 0 else number, start, end)
            for stream, kind, number, start, end in entries
            if end > start
        )

    def spans(self, stream: str) -> list[Span]:
        """Return when a stream is busy, with a span for each event."""
        return [(event.start, event.end) for event in self.events if event.stream == stream]

    @cached_property
    def exposed_spans(self) -> list[Span]:
        """Return when there is communication while the compute stream is idle."""
        idle, end = [], 0.0
        for begin, until in [*self.spans(COMPUTE), (self.step, self.step)]:
            idle.append((end, begin))
            end = until
        overlaps = [(max(a, start), min(b, end)) for start, end in self.spans(COMMUNICATION) for a, b in idle]
        return [(start, end) for start, end in overlaps if end > start]

    @cached_property
    def exposed(self) -> float:
        """Return the seconds of communication that no computing hides."""
        return sum(end - start for start, end in self.exposed_spans)

    @cached_property
    def gaps(self) -> list[Span]:
        """Return when the communication stream is idle between its first event and its last: the *bubbles*."""
        spans = self.spans(COMMUNICATION)
        return [(end, start) for (_, end), (start, _) in zip(spans, spans[1:], strict=False) if start > end]


def simulate(profile: Profile, parts: Sequence[Part], overlap: bool = False, cpu_lane: bool = False) -> Timeline:
    """Return the timeline of a step of ``profile`` whose gradient is reduced as ``parts`` say."""
    return Timeline(schedule(profile, [load(profile, part) for part in parts], overlap, cpu_lane))


def load(profile: Profile, part: Part) -> Load:
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
    """Return everything that happens in a step as plain tuples, of which the last one is the update.

    Planners simulate thousands of steps, for which this is cheaper than `simulate`.
    """
    work = CPU if cpu_lane else COMPUTE
    entries: list[Entry] = [(COMPUTE, "before", -1, 0.0, profile.before)]
    end = (_overlapping if overlap else _sequential)(profile, loads, work, entries)
    entries.append((COMPUTE, "update", -1, end, end + profile.update))
    return entries


def _sequential(profile: Profile, loads: Sequence[Load], work: str, entries: list[Entry]) -> float:
    """Append all that happens between before and update to ``entries``; return when it ends."""
    only = Stream(profile.before)  # one thing at a time, whatever does it
    entries.append((COMPUTE, "backward", -1, *only.run(profile.backward)))
    for number, (_, pieces, select, exchange, merge) in enumerate(loads):
        for _ in range(pieces):
            entries.append((work, "select", number, *only.run(select)))
            entries.append((COMMUNICATION, "exchange", number, *only.run(exchange)))
            entries.append((work, "merge", number, *only.run(merge)))
    return only.free


def _overlapping(profile: Profile, loads: Sequence[Load], work: str, entries: list[Entry]) -> float:
    """Append what `_sequential` does, but with reductions that begin during the backward pass; return when it ends."""
    compute, communication = Stream(profile.before), Stream(profile.before)
    worker = compute if work == COMPUTE else Stream(profile.before)  # selections on it delay the backward pass
    passed = 0.0  # how much of the backward pass is through
    arrivals = []  # part and time of each exchanged piece, in the order of the exchanges
    # Part by part in the order of readiness: the backward pass until it is ready, its selections and its exchanges.
    for number in sorted(range(len(loads)), key=lambda number: loads[number].ready):
        ready, pieces, select, exchange, _ = loads[number]
        if worker is compute and ready > passed:
            entries.append((COMPUTE, "backward", -1, *compute.run_until(compute.free + ready - passed)))
            passed = ready
        for _ in range(pieces):
            selected = worker.run(select, profile.before + ready if worker is not compute else 0.0)
            entries.append((work, "select", number, *selected))
            exchanged = communication.run(exchange, selected[1])
            entries.append((COMMUNICATION, "exchange", number, *exchanged))
            arrivals.append((number, exchanged[1]))
    # The rest of the backward pass, or all of it where selections ran beside it.
    entries.append((COMPUTE, "backward", -1, *compute.run(profile.backward - passed)))
    worker.free = max(worker.free, compute.free)
    # Merges, in the order in which pieces arrive.
    for number, arrival in arrivals:
        entries.append((work, "merge", number, *worker.run(loads[number].merge, arrival)))
    return max(worker.free, communication.free)
