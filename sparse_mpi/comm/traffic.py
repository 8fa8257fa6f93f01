"""`Traffic`, what a rank sent and received, and the `Ledger` it stands in."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace


@dataclass
class Traffic:
    """The counters of what one rank sent and received, by the convention of `counting`."""

    sent: int = 0  #: payload bytes
    received: int = 0  #: payload bytes
    messages: int = 0  #: all messages sent, of control too
    control: int = 0  #: bytes sent for counts, boundaries, histograms
    seconds: float = 0.0  #: inside communication calls

    def copy(self) -> Traffic:
        return replace(self)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def reset(self) -> None:
        self.sent = self.received = self.messages = self.control = 0
        self.seconds = 0.0


@dataclass
class Ledger:
    """The counters that a communicator shares with those split off it."""

    traffic: Traffic = field(default_factory=Traffic)
    calls: list[tuple[float, float]] | None = None  # when each began and ended, if somebody wants to know
