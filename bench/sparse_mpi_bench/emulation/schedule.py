"""Rates of links that change with time, as a function of time: in turns, or as a trace says."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from sparse_mpi.predict.rates import parse, show

DOWN = 0  # the rate of a link without traffic
SECONDS = {"ms": Fraction(1, 1000), "s": Fraction(1), "min": Fraction(60)}
SHORTEST = Fraction(1, 10)  # seconds: a turn takes many times as long as the commands that change the links
NUMBER = r"\d{1,9}\.?\d{0,9}"  # seconds, so that exact ones stay short

Rates = tuple[int | None, ...]  # bits a second of the link of each host; None is no limit


@dataclass(frozen=True)
class Schedule:
    """A step function of time, in exact seconds: after `period` it begins again, without one its last rates stay."""

    starts: tuple[Fraction, ...]  # seconds, ascending from 0
    rates: tuple[Rates, ...]  # rates from each start on
    period: Fraction | None = None  # seconds

    def at(self, second: Fraction) -> Rates:
        within = second if self.period is None else second % self.period
        return self.rates[bisect_right(self.starts, within) - 1]

    def after(self, second: Fraction) -> Fraction | None:
        """Return the first time after ``second`` from which on other rates may hold; None if there is none."""
        begun = Fraction(0) if self.period is None else second // self.period * self.period
        coming = bisect_right(self.starts, second - begun)
        if coming < len(self.starts):
            return begun + self.starts[coming]
        return None if self.period is None else begun + self.period


def turns(rates: str, every: str | None, hosts: int) -> Schedule:
    """Return the schedule of ``1gbit,50mbit`` every ``30s`` or ``30s,2s``. Raises ValueError: they do not fit."""
    parsed = [link(text) for text in rates.split(",")]
    if len(parsed) == 1 and every is not None:
        raise ValueError(f"every needs several rates such as 1gbit,50mbit to take turns, got {rates} alone")
    if len(parsed) > 1 and every is None:
        raise ValueError(f"every must say how long each of the rates {rates} holds, such as 30s, but is not given")
    if every is None:
        return _startable(Schedule((Fraction(0),), ((parsed[0],) * hosts,)), "rate")
    lengths = [length(text) for text in every.split(",")]
    if len(lengths) not in (1, len(parsed)):
        raise ValueError(f"every must be one length of time or {len(parsed)}, one for each rate, got {every}")
    lengths *= len(parsed) // len(lengths)
    starts = tuple(sum(lengths[:turn], Fraction(0)) for turn in range(len(parsed)))
    return _startable(Schedule(starts, tuple((each,) * hosts for each in parsed), sum(lengths, Fraction(0))), "rate")


def trace(file: Path, before: str, hosts: int) -> Schedule:
    """Return the schedule of a file with lines ``seconds rate [host]``. Raises ValueError: a line is wrong."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"trace {file} cannot be read: {error}") from None
    rows = [
        (number, words)
        for number, line in enumerate(lines, 1)
        if (words := line.partition("#")[0].replace(",", " ").split())
    ]
    if rows and rows[0][1][0].lower() == "seconds":
        rows = rows[1:]
    if not rows:
        raise ValueError(f"trace {file} is empty; expected lines such as: 30 50mbit")
    rates = [link(before)] * hosts
    phases = {Fraction(0): tuple(rates)}
    last, named = Fraction(-1), set[int | None]()
    for number, words in rows:
        try:
            second, each, host = _row(words, hosts)
            named = named if second == last else set()
            # Of one second there may be a line for all hosts, and then one for each
            if second < last or host in named or (named and host is None):
                raise ValueError(f"seconds must ascend, got {words[0]} after {float(last):g}")
        except ValueError as error:
            raise ValueError(f"trace {file}, line {number}: {error}") from None
        last = second
        named.add(host)
        rates = [each if host in (None, other) else rate_ for other, rate_ in enumerate(rates, 1)]
        phases[second] = tuple(rates)
    return _startable(Schedule(tuple(phases), tuple(phases.values())), f"trace {file}")


def describe(rates: Rates) -> str:
    """Return a short text, for example ``1gbit`` or ``1gbit (host 2 50mbit)``."""
    most = max(rates, key=rates.count)
    others = [f"host {host} {_show(each)}" for host, each in enumerate(rates, 1) if each != most]
    return _show(most) + (f" ({', '.join(others)})" if others else "")


def _show(bits: int | None) -> str:
    return {DOWN: "down", None: "no limit"}.get(bits) or show(bits)


def _startable(schedule: Schedule, name: str) -> Schedule:
    if DOWN in schedule.rates[0]:
        raise ValueError(f"{name} must not be down at second 0: the command is started over the links")
    return schedule


def link(text: str) -> int | None:
    """Return bits a second of a rate, which may be `DOWN`; raise ValueError if it is no rate."""
    if text == "down":
        return DOWN
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{error}; down stops a link") from None


def length(text: str) -> Fraction:
    match = re.fullmatch(rf"({NUMBER})([a-z]+)", text)
    if match is None or match[2] not in SECONDS:
        raise ValueError(f"every must be a number with one of the units {', '.join(SECONDS)}, got {text!r}")
    seconds = Fraction(match[1]) * SECONDS[match[2]]
    if seconds < SHORTEST:
        raise ValueError(f"every must be at least {float(SHORTEST):g}s, got {text}")
    return seconds


def _row(words: list[str], hosts: int) -> tuple[Fraction, int | None, int | None]:
    if len(words) not in (2, 3):
        raise ValueError(f"expected seconds, a rate, and perhaps a host, got {' '.join(words)!r}")
    if re.fullmatch(NUMBER, words[0]) is None:
        raise ValueError(f"seconds must be a number such as 30 or 0.5, got {words[0]!r}")
    if len(words) == 3 and words[2] not in map(str, range(1, hosts + 1)):
        raise ValueError(f"host must be 1 to {hosts}, got {words[2]!r}")
    return Fraction(words[0]), link(words[1]), int(words[2]) if len(words) == 3 else None
