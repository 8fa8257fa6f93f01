"""`Traffic`, what a rank sent and received, and the `Ledger` it stands in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass
class Traffic:
    """The counters of what one rank sent and received, by the convention of `counting`."""

    sent: int = 0  #: payload bytes
    received: int = 0  #: payload bytes
    messages: int = 0  #: all messages sent, of control too
    control: int = 0  #: bytes sent for counts, boundaries, histograms
    seconds: float = 0.0  #: inside communication calls
    #: when each call began and ended, from when a list is put here; no part of copies, sums and differences
    calls: list[tuple[float, float]] | None = field(default=None, compare=False, repr=False)

    def copy(self) -> Traffic:
        return replace(self, calls=None)

    def _plus(self, other: Traffic, sign: int) -> Traffic:
        return Traffic(
            self.sent + sign * other.sent,
            self.received + sign * other.received,
            self.messages + sign * other.messages,
            self.control + sign * other.control,
            self.seconds + sign * other.seconds,
        )

    def __add__(self, other: Traffic) -> Traffic:
        return self._plus(other, 1)

    def __sub__(self, other: Traffic) -> Traffic:
        return self._plus(other, -1)

    def reset(self) -> None:
        self.sent = self.received = self.messages = self.control = 0
        self.seconds = 0.0


@dataclass
class Ledger:
    """The place of the counters that a communicator shares with those split off it."""

    traffic: Traffic = field(default_factory=Traffic)
