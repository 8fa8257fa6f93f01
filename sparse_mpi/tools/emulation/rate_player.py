"""Play a schedule of rates on emulated links while a command runs: `RatePlayer` sets, tells and records them.

A record is a file of JSON lines, one when the command starts, one after each change, and one when it has ended:

    {"event": "start", "change" or "end", "seconds": since the start, "time": since 1970, in seconds, "rates":
     [bits a second of each host's link from now on, null for no limit, 0 for down], "sent": [bytes that have left each
     host since the start], "received": [bytes that have come to each]}
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import IO

from sparse_mpi.tools.emulation.links import Carried, Links
from sparse_mpi.tools.emulation.schedule import Schedule, describe


class RatePlayer:
    """The changes of links while a command runs, for `launch.run` to make ``meanwhile``."""

    def __init__(self, links: Links, schedule: Schedule, record: IO[str] | None = None) -> None:
        """Take links with the rates of second 0, and perhaps a file that is open for writing."""
        self._links = links
        self._schedule = schedule
        self._record = record

    def play(self) -> Iterator[float]:
        """Yield the seconds at which changes are due; each is made when it is asked for what comes next.

        Where this machine is late, rates that have been replaced already are left out.

        Raises:
            RuntimeError: the system refuses; the message has its reason.
        """
        self._began, self._phase = time.monotonic(), 0.0
        self._first = self._last = self._links.carried()
        self._note("start", 0.0)
        due = self._schedule.after(Fraction(0))
        while due is not None:
            yield float(due)
            due = max(due, Fraction(self._second()))
            old, rates = self._links.rates, self._schedule.at(due)
            self._links.change(rates)
            self._end_phase("change", f"links go from {describe(old)} to {describe(rates)}")
            due = self._schedule.after(due)

    def end(self) -> None:
        """Tell what was sent since the last change and in all.

        Raises:
            RuntimeError: the system refuses; the message has its reason.
        """
        several = self._phase > 0
        self._end_phase("end", "the command has ended")
        if several:
            _tell(f"hosts have sent {_megabytes(self._last.since(self._first))} in all")

    def _end_phase(self, event: str, news: str) -> None:
        second, before = self._second(), self._last
        self._last = self._links.carried()
        _tell(
            f"{second:.1f} s: {news}; hosts have sent {_megabytes(self._last.since(before))} since {self._phase:.1f} s"
        )
        self._note(event, second)
        self._phase = second

    def _note(self, event: str, second: float) -> None:
        if self._record is not None:
            line = {"event": event, "seconds": round(second, 6), "time": time.time(), "rates": self._links.rates}
            line |= self._last.since(self._first)._asdict()
            print(json.dumps(line), file=self._record, flush=True)

    def _second(self) -> float:
        return time.monotonic() - self._began


def _tell(text: str) -> None:
    print(f"bench network: {text}", file=sys.stderr, flush=True)


def _megabytes(carried: Carried) -> str:
    return f"{' + '.join(f'{each / 1e6:.2f}' for each in carried.sent)} MB"
