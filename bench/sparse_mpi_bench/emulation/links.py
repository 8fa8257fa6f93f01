"""The links of emulated hosts: a schedule of rates while connections stay open, and the bytes that they have carried.

A record is a file of JSON lines, one when the command starts, one after each change, and one when it has ended:

    {"event": "start", "change" or "end", "seconds": since the start, "time": since 1970, in seconds, "rates":
     [bits a second of each host's link from now on, null for no limit, 0 for down], "sent": [bytes that have left each
     host since the start], "received": [bytes that have come to each]}
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import IO, NamedTuple

from sparse_mpi.predict.rates import MOST
from sparse_mpi_bench.emulation.hosts import SWITCH, Hosts, call, port, shaping
from sparse_mpi_bench.emulation.schedule import DOWN, Rates, Schedule, describe


class LinkBytes(NamedTuple):
    """Bytes on the link of each host, headers included."""

    sent: list[int]
    received: list[int]

    def since(self, before: LinkBytes) -> LinkBytes:
        return LinkBytes(*([b - a for a, b in zip(*pair, strict=True)] for pair in zip(before, self, strict=True)))


class Links:
    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.rates: Rates = (hosts.rate,) * hosts.count

    def change(self, rates: Rates) -> None:
        """Set rates both ways; a link goes down as a cable is pulled. Raises RuntimeError: the system refuses."""
        todo: dict[tuple[str, int], list[str]] = defaultdict(list)  # program and host -> what to do
        for host, (old, new) in enumerate(zip(self.rates, rates, strict=True), 1):
            if old == new:
                continue
            if new != DOWN:
                # A link loses its limit by a high one: with its queue it would lose the bytes in it
                bits = MOST if new is None else new
                todo["tc", host].append(" ".join(shaping("eth0", bits)))
                todo["tc", SWITCH].append(" ".join(shaping(port(host), bits)))
            if DOWN in (old, new):
                todo["ip", SWITCH].append(f"link set {port(host)} {'down' if new == DOWN else 'up'}")
        self._call(todo)
        self.rates = rates

    def _call(self, todo: dict[tuple[str, int], list[str]]) -> None:
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started = []
        for (program, host), lines in todo.items():
            line = [program, "-n", self.hosts.name(host), "-batch", "-"]
            started.append((lines, subprocess.Popen(line, **pipes)))  # type: ignore[call-overload]
        said = [(lines, each.communicate("\n".join(lines))[1], each.returncode) for lines, each in started]
        for lines, error, code in said:
            if code:
                raise RuntimeError(f"{'; '.join(lines)}: {error.strip() or f'exit code {code}'}")

    def carried(self) -> LinkBytes:
        """Return the bytes that the switch got from hosts, and gave them. Raises RuntimeError: the system refuses."""
        shown = call("ip", "-n", self.hosts.name(SWITCH), "-s", "-json", "link", "show")
        counts = {each["ifname"]: each["stats64"] for each in json.loads(shown)}
        ports = [counts[port(host)] for host in range(1, self.hosts.count + 1)]
        return LinkBytes([each["rx"]["bytes"] for each in ports], [each["tx"]["bytes"] for each in ports])


class RatePlayer:
    def __init__(self, links: Links, schedule: Schedule, record: IO[str] | None = None) -> None:
        self._links = links
        self._schedule = schedule
        self._record = record

    def play(self) -> Iterator[float]:
        """Yield the seconds at which changes are due, but late ones. Raises RuntimeError: the system refuses."""
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


def _megabytes(carried: LinkBytes) -> str:
    return f"{' + '.join(f'{each / 1e6:.2f}' for each in carried.sent)} MB"
