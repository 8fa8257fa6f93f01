"""The event simulator: what ranks and streams do when, behind plans, predictions and replayed traces.

A `Stream` does one thing after another: a link, a compute stream, a CPU lane. `simulate` runs a `Program` of all ranks:

- A rank goes through its rounds in order: it computes, pays for what it sends, sends, waits for all that it is to
  receive, and pays for that. So it is late where those it waits for are late: critical paths need no formula.
- The ranks of a node share its cores evenly. Ranks that wait poll, and take a share as well. Where more want a
  core than there are, all compute more slowly, and who waits for his turn counts that to the message he waited for.
- A link carries one byte after another in each direction. A message arrives when the sender's link and the receiver's
  have both carried it, and all that was posted before it, and alpha has passed. A link that was idle lets a burst pass.

On a `Network`, which is alpha and beta alone, nothing is shared: computing has cores, and each message a link, of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from sparse_mpi.network.cluster import Cluster
from sparse_mpi.network.model import Network

TINY = 1e-12  # seconds of processor time that count as none

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


class Message(NamedTuple):
    """A message of a program."""

    source: int
    dest: int
    bytes: float
    phase: str = ""  # what it is for
    round: int = 0  # messages that it waits for are in earlier rounds
    control: bool = False


class Round(NamedTuple):
    """A rank computes, then sends, then waits."""

    compute: float  # seconds of processor time
    sends: tuple[int, ...] = ()  # numbers of messages
    receives: tuple[int, ...] = ()


class Program(NamedTuple):
    """A step of all ranks."""

    rounds: list[list[Round]]  # of each rank
    messages: list[Message]  # by number
    blocking: bool = False  # ranks also wait until what they send has arrived

    @property
    def ranks(self) -> int:
        """Return P."""
        return len(self.rounds)


class Outcome(NamedTuple):
    """When the ranks ended, and how long they computed, waiting for a core included; seconds, by rank."""

    ends: list[float]
    computing: list[float]
    messages: Sequence[Span] = ()  # when each was sent and when it arrived, by number

    @property
    def step(self) -> float:
        """Return the seconds until the last rank has ended."""
        return max(self.ends)

    @property
    def exchanges(self) -> list[float]:
        """Return the seconds that each rank spends in communication, waiting for other ranks included."""
        return [end - computing for end, computing in zip(self.ends, self.computing, strict=True)]

    def longer(self, factor: float) -> Outcome:
        """Return the outcome of a step in which everything takes that many times as long."""
        return Outcome([factor * end for end in self.ends], [factor * span for span in self.computing])


def simulate(program: Program, on: Cluster | Network) -> Outcome:
    """Return what a step of ``program`` takes on a cluster or a network.

    Raises:
        ValueError: ranks wait for messages that nobody sends.
    """
    return _Run(program, on).outcome()


class _Run:
    """A step that is being simulated."""

    def __init__(self, program: Program, network: Cluster | Network) -> None:
        ranks, on = program.ranks, network if isinstance(network, Cluster) else Cluster(network.alpha, network.beta)
        self._on, self._messages = on, program.messages
        self._links_are_shared = on is network
        self._now = 0.0
        self._left = [0.0] * ranks  # seconds of processor time that a rank needs before it goes on
        self._held = [0.0] * ranks  # seconds of a core that it has had for that
        self._node = [rank // on.node for rank in range(ranks)]
        self._members = [0] * (self._node[-1] + 1)  # ranks of each node
        for node in self._node:
            self._members[node] += 1
        self._active: list[set[int]] = [set() for _ in self._members]  # ranks of each node that need a core
        self._out, self._into = ([Stream() for _ in range(ranks)] for _ in range(2))  # the link of each rank
        self._spans: list[Span] = [(0.0, 0.0)] * len(program.messages)
        self._arrivals: list[tuple[float, int]] = []  # a heap of time and number of a message
        self._arrived = bytearray(len(program.messages))
        self._awaited: dict[int, list[int]] = {}  # the ranks that wait for a message
        self._missing = [0] * ranks  # messages that a rank waits for
        self._ends: list[float | None] = [None] * ranks
        self._computing = [0.0] * ranks
        self._stories = [self._story(rank, program) for rank in range(ranks)]

    def outcome(self) -> Outcome:
        """Run until every rank has ended."""
        for rank in range(len(self._stories)):
            self._go_on(rank)
        while True:
            # What is next: a rank that has computed enough, or a message that arrives.
            shares = [self._share(node) for node in range(len(self._members))]
            span = min(
                (self._left[r] / self._speed(shares[node]) for node, active in enumerate(self._active) for r in active),
                default=inf,
            )
            arrives = bool(self._arrivals) and self._arrivals[0][0] <= self._now + span
            if not arrives and span == inf:
                break
            # Until then all that need a core compute.
            self._pass(max(self._now, self._arrivals[0][0]) if arrives else self._now + span, shares)
            if arrives:
                self._arrive(heappop(self._arrivals)[1])
            else:
                for rank in [r for active in self._active for r in sorted(active) if self._left[r] <= TINY]:
                    self._go_on(rank)
        ends = [end for end in self._ends if end is not None]
        if len(ends) < len(self._ends):
            rank = self._ends.index(None)
            raise ValueError(f"program must send all that is waited for, but rank {rank} waits for ever")
        return Outcome(ends, self._computing, self._spans)

    def _story(self, rank: int, program: Program) -> Iterator[None]:
        """Go through the rounds of a rank; pause wherever it needs a core or waits."""
        on, messages = self._on, self._messages
        for compute, sends, receives in program.rounds[rank]:
            if compute:
                began = self._now
                self._need(rank, compute * on.speed)
                yield
                self._computing[rank] += self._noticed(self._held[rank], self._now - began, began > 0)
            if sends and (cost := sum(on.message + on.byte * messages[number].bytes for number in sends)):
                self._need(rank, cost)
                yield
            for number in sends:
                self._send(number)
            awaited = (*sends, *receives) if program.blocking else receives
            waits = [number for number in awaited if not self._arrived[number]]
            if waits:
                self._missing[rank] = len(waits)
                for number in waits:
                    self._awaited.setdefault(number, []).append(rank)
                yield
            if receives and (cost := sum(on.message + on.byte * messages[number].bytes for number in receives)):
                self._need(rank, cost)
                yield
        self._ends[rank] = self._now

    def _go_on(self, rank: int) -> None:
        """Let a rank go on to where it needs a core, waits or ends."""
        self._active[self._node[rank]].discard(rank)
        next(self._stories[rank], None)

    def _noticed(self, held: float, took: float, waited: bool) -> float:
        """Return what a rank that computes notices of the seconds that it ``took``, in which it ``held`` a core.

        In truth others compute before it for whole slices of time. Where it has ``waited`` for a message it still
        does so during the first, and finds that the message took longer.
        """
        before = min(1.0, self._on.slice / held) if waited else 0.0
        return took - before * (took - held)

    def _need(self, rank: int, seconds: float) -> None:
        """Have a rank compute for so many seconds of processor time."""
        self._left[rank], self._held[rank] = seconds, 0.0
        self._active[self._node[rank]].add(rank)

    def _share(self, node: int) -> float:
        """Return the share of a core that each rank of a node gets that needs one."""
        needing = len(self._active[node])
        wanted = needing + self._on.polling * (self._members[node] - needing) + self._on.others
        return min(1.0, self._on.cores / wanted) if wanted else 1.0

    def _speed(self, share: float) -> float:
        """Return how fast a rank computes that has that share of a core, over what it does alone."""
        return share / (1 + self._on.crowding * (1 - share))

    def _pass(self, until: float, shares: list[float]) -> None:
        """Let time pass."""
        seconds, self._now = until - self._now, until
        for active, share in zip(self._active, shares, strict=True):
            for rank in active:
                self._left[rank] -= seconds * self._speed(share)
                self._held[rank] += seconds * share

    def _send(self, number: int) -> None:
        """Put a message on the links of its sender and its receiver."""
        source, dest, length, *_ = self._messages[number]
        if self._links_are_shared:
            full = self._now - self._on.burst * self._on.beta  # a link free since then has all of its burst
            taken = length * self._on.beta
            carried = max(self._out[source].run(taken, full)[1], self._into[dest].run(taken, full)[1])
            end = max(self._now, carried) + self._on.alpha
        else:
            end = self._now + self._on.alpha + self._on.beta * length
        self._spans[number] = self._now, end
        heappush(self._arrivals, (end, number))

    def _arrive(self, number: int) -> None:
        """Let a message arrive, and go on who waits for it if it is the last one."""
        self._arrived[number] = 1
        for rank in self._awaited.pop(number, ()):
            self._missing[rank] -= 1
            if not self._missing[rank]:
                self._go_on(rank)
