"""Ranks of a running job, beside each other, by their metrics: how fast, and who waits for whom."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sparse_mpi.monitor.metrics import METRICS, OTHER, SECONDS

LINE = re.compile(r'sparse_mpi_(\w+)\{job="((?:[^"\\]|\\.)*)",rank="(\d+)",reducer="(\w+)"\} (\S+)')
WAITS = 0.1  # fraction of a step: where other ranks wait longer, the awaited rank is slow
SUMS = ["elements", *(name for name, *_ in METRICS[:9])]  # metrics up to wall_seconds_total
STALE, STEPS = 3 * SECONDS, 3  # seconds and steps without news


class Written(NamedTuple):
    """A rank's file: the sums over its reducers, and steps and seconds of the one with most steps."""

    job: str
    rank: int
    when: float  # seconds since 1970
    steps: float
    wall: float  # seconds from the end of the first step to that of the last
    sums: dict[str, float]  # metric -> its sum
    density: float  # density of the last step, over all elements
    residual: float  # L2 norm


class RankRow(NamedTuple):
    """A rank's row of the table; seconds and counts are of a step."""

    rank: int
    state: str  # "", "slow" or "stale"
    step: int
    per_second: float | None  # steps; None after the first
    sent_total: float  # bytes
    waits: float | None  # seconds in exchange beyond the rank with the fewest
    density: float
    residual: float
    sent: float
    received: float
    messages: float
    select: float
    exchange: float
    merge: float
    age: float  # seconds since it has written


def read(text: str, when: float) -> Written | None:
    """Return the content of a rank's file; None before its first step. ValueError or LookupError if text is damaged."""
    series: dict[str, dict[str, float]] = {}
    found = LINE.findall(text)
    for name, _, _, reducer, value in found:
        series.setdefault(reducer, {})[name] = float(value)
    if not found:
        return None
    own = [metrics for reducer, metrics in series.items() if reducer != OTHER]
    most = max(own, key=lambda metrics: metrics["steps_total"])
    sums = {name: sum(metrics[name] for metrics in series.values()) for name in SUMS}
    least, whole = min(most["steps_total"], sums["elements"]), math.isfinite(sum(sums.values())) and text.endswith("\n")
    if least < 1 or not whole or len({of[1:3] for of in found}) > 1:
        raise ValueError("a number or a label is damaged, or the end is missing")
    density = sum(metrics["density_ratio"] * metrics["elements"] for metrics in series.values()) / sums["elements"]
    norm = math.hypot(*(metrics["residual_norm"] for metrics in own))
    job = "".join(sign if sign.isprintable() else "?" for sign in re.sub(r"\\(.)", r"\1", found[0][1]))
    return Written(job, int(found[0][2]), when, most["steps_total"], most["wall_seconds_total"], sums, density, norm)


class Ranks:
    """The ranks of ``job``, or of the one that wrote last, by their files in ``folder``."""

    def __init__(self, folder: Path, job: str | None = None, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._wanted, self.job, self._clock = folder, job, job, clock
        self._seen: dict[Path, float] = {}  # file -> time at which it was written
        self._last: dict[Path, tuple[Written, Written | None]] = {}  # each file's last contents, and the ones before
        self.damaged: set[Path] = set()  # files that are not shown, or as they were

    def rows(self) -> list[RankRow]:
        for file in self._folder.glob("sparse_mpi-*.prom"):
            self._look(file)
        if self._wanted is None and self._last:
            self.job = max((last for last, _ in self._last.values()), key=lambda written: written.when).job
        found = [(last, before) for last, before in self._last.values() if last.job == self.job]
        return marked([self._row(*written) for written in sorted(found, key=lambda written: written[0].rank)])

    def _look(self, file: Path) -> None:
        with suppress(OSError):
            if (when := file.stat().st_mtime) == self._seen.get(file) or not file.is_file():
                return
            text = file.read_text(encoding="utf-8", errors="replace")
            self._seen[file] = when
            self.damaged.add(file)
            with suppress(LookupError, ValueError):
                if (written := read(text, when)) is not None:
                    self._last[file] = written, self._last.get(file, [None])[0]
                self.damaged.remove(file)

    def _row(self, last: Written, before: Written | None) -> RankRow:
        if before is None or not before.steps < last.steps:  # the first of all, or of a job that has begun anew
            steps, ended, seconds, former = last.steps, last.steps - 1, last.wall, dict.fromkeys(last.sums, 0.0)
        else:
            steps = ended = last.steps - before.steps
            seconds, former = last.wall - before.wall, before.sums
        step = {name: (last.sums[name] - former.get(name, 0.0)) / steps for name in last.sums}
        age = max(0.0, self._clock() - last.when)
        per_second = ended / seconds if seconds > 0 else None
        patience = max(STALE, STEPS / per_second if per_second else 0.0)
        return RankRow(
            last.rank, "stale" if age > patience else "", int(last.steps), per_second,
            last.sums["sent_bytes_total"] + last.sums["control_bytes_total"], None, last.density, last.residual,
            step["sent_bytes_total"] + step["control_bytes_total"], step["received_bytes_total"],
            step["messages_total"], step["select_seconds_total"], step["exchange_seconds_total"],
            step["merge_seconds_total"], age,
        )  # fmt: skip


def marked(rows: Sequence[RankRow]) -> list[RankRow]:
    """Return the rows with each rank's wait, and a mark at the awaited one."""
    lively = {row: rate for row in rows if (rate := row.per_second) and row.age < SECONDS + STEPS / rate}
    if len(lively) < 2:
        return list(rows)
    first = min(lively, key=lambda row: row.exchange)
    waits = {row.rank: row.exchange - first.exchange for row in lively}
    shares = [waits[row.rank] * per_second for row, per_second in lively.items() if row is not first]
    slow = first.rank if statistics.median(shares) > WAITS else None
    return [row._replace(waits=waits.get(row.rank), state="slow" if row.rank == slow else row.state) for row in rows]
