"""Chaos in the job that a command has started: its lines on stderr, and its record."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from sparse_mpi.cli import records
from sparse_mpi.cli.values import Refused
from sparse_mpi_bench.chaos.drawing import ChaosSettings, draw
from sparse_mpi_bench.chaos.faults import Chaos, Fault, has_mpi, ranks_below, shown
from sparse_mpi_bench.emulation.links import Links

MOST_SHOWN = 6  # faults that the last line lists


class ChaosJob:
    """The faults of the job of a process that is `apart`, and its record, written with each.

    Raises Refused: the record cannot be written.
    """

    def __init__(
        self, settings: ChaosSettings, ranks: int, elastic: bool, mpi: str, links: Links | None = None
    ) -> None:
        self._settings, self._ranks, self._elastic = settings, ranks, elastic
        self._chaos = Chaos(self._faults(), ranks_below, self._ready, links, self._tell)
        self.play = self._chaos.play
        self._began, self._started = time.time(), time.monotonic()
        made = records.provenance()
        self._facts: dict[str, Any] = {"settings": vars(settings), "ranks": ranks, "elastic": elastic, **made}
        self._facts["versions"] |= {"mpi": mpi}
        try:
            self._write()
        except OSError as error:
            raise Refused(f"--chaos: {settings.record} cannot be written: {error.strerror}; give record=FILE") from None

    def end(self, status: int) -> int:
        seconds = time.monotonic() - self._started
        text = outcome(self._chaos, self._ranks, self._elastic, status, seconds)
        self._facts |= {"ready_after": self._chaos.ready_after, "status": status, "seconds": round(seconds, 3)}
        self._facts |= {"lost": sorted(self._chaos.lost), "outcome": text}
        self._write()
        _say(f"{text}; see {self._settings.record}")
        return status

    def _faults(self) -> Iterator[Fault]:
        wait = self._settings.after if isinstance(self._settings.after, float) else 0.0
        return (fault._replace(seconds=wait + fault.seconds) for fault in draw(self._settings, self._ranks))

    def _ready(self) -> bool:
        after = self._settings.after
        if not isinstance(after, float):
            return after.exists() and after.stat().st_mtime >= self._began - 1  # clocks of file systems tick slowly
        found = ranks_below()
        return len(found) == self._ranks and all(map(has_mpi, found.values()))

    def _tell(self, text: str) -> None:
        _say(text)
        self._write()

    def _write(self) -> None:
        records.write(self._settings.record, self._facts | {"cases": self._chaos.done})


def outcome(chaos: Chaos, ranks: int, elastic: bool, status: int, seconds: float) -> str:
    done = [fault for fault in chaos.done if fault["refused"] is None]
    faults = [shown(fault) for fault in done]
    if len(done) > MOST_SHOWN:
        faults = [f"{number} x {kind}" for kind, number in Counter(fault["kind"] for fault in done).items()]
    if slept := sorted(chaos.lost - {fault["rank"] for fault in done if fault["kind"] == "kill"}):
        faults.append(f"rank{'s' if slept[1:] else ''} {', '.join(map(str, slept))} ended while frozen")
    left = f"{ranks - len(chaos.lost)} of {ranks}" if chaos.lost else f"all {ranks}"
    ended = f"ended with status {status} after {seconds:.1f} s"
    if not faults:
        return f"no fault came before the job {ended}"
    if status == 0:
        became = f"went on with {left} ranks and {ended}"
    elif chaos.lost and not elastic:
        became = f"{ended}, as jobs without --elastic do"
    else:
        became = f"{ended}; the faults had left {left} ranks"
    return f"{'; '.join(faults)}; the job {became}"


def _say(text: str) -> None:
    print(f"chaos: {text}", file=sys.stderr, flush=True)
