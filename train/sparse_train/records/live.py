"""Training runs as real jobs on emulated hosts, one after another, on links that may change meanwhile."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparse_mpi.tools.analysis.interval import Interval
from sparse_train.records.duration import reached, with_steps
from sparse_train.records.spending import EVENT

TRAIN = Path(__file__).parents[2]
LIMIT = 1800  # seconds that a job may take
PARTS = ("compute_seconds", "exposed_seconds", "update_seconds")  # of a step

Records = Sequence[dict[str, Any]]


def start(program: str, ranks: int, links: Sequence[str], argv: Sequence[str], log: Path) -> None:
    """Run a program of train/ on emulated hosts until it ends.

    Args:
        program: its file's name, without .py.
        ranks: as many hosts.
        links: options of ``bench network`` that say what their links give.
        argv: options of the program.
        log: the file for what is printed.

    Raises:
        SystemExit: the job fails, with its exit code; what was wrong has been said.
    """
    command = [sys.executable, "-m", "sparse_mpi", "bench", "network", "--ranks", str(ranks), *links]
    command += ["--timeout", str(LIMIT), "--", str(TRAIN / f"{program}.py"), *argv]
    with log.open("w") as printed:
        if code := subprocess.run(command, stdout=printed, stderr=printed).returncode:
            print(log.read_text()[-2000:], file=sys.stderr)
            raise SystemExit(code)


def step_seconds(events: Records) -> list[float]:
    """Return how long each step took that the records of a run tell of."""
    return [sum(event[part] for part in PARTS) for event in events if event["event"] == "step"]


def measured(events: Records) -> dict[str, Any]:
    """Return what the records of a whole run tell of its time: a median step, and what a budget let it send.

    A budget counts the time between two steps too; ``spent`` has the bytes it counted, its seconds, its steps, and the
    share of these that were dense.
    """
    found: dict[str, Any] = {"step_seconds": statistics.median(step_seconds(events))}
    if decisions := [event for event in events if event["event"] == EVENT]:
        last = decisions[-1]
        seconds = last["elapsed"] - decisions[0]["elapsed"]
        found["spent"] = {
            "mb": sum(event["mb_sent"] for event in decisions[1:]),
            "mb_credit": last["mb_credit"] - decisions[0]["mb_credit"],
            "seconds": seconds,
            "steps": len(decisions) - 1,
            "dense": statistics.mean(event["dense"] for event in decisions),
        }
    return found


def clock(epochs: Records) -> list[float]:
    """Return after how many seconds of steps each epoch was over; tests take no time in it."""
    ends, now = [], 0.0
    for epoch in epochs:
        now += epoch["seconds"]
        ends.append(now)
    return ends


def until(record: dict[str, Any], target: float) -> float | None:
    """Return after how many seconds of steps a run is tested to be as good as ``target``; None if it never is."""
    index = reached(record, target)
    return None if index is None else clock(record["epochs"])[index]


def courses(records: Records) -> dict[str, list[float]]:
    """Return the `clock` of each way, means over its runs."""
    found = {}
    for way in dict.fromkeys(record["way"] for record in records):
        clocks = [clock(record["epochs"]) for record in records if record["way"] == way]
        found[way] = [statistics.mean(ends) for ends in zip(*clocks, strict=True)]
    return found


def table(records: Records, links: str, target: float | None) -> str:
    """Return a table of how fast the ways were on ``links``; means over seeds, of medians for a step."""
    column = f" s until {records[0]['headline']} {target:g} | reached by |" if target is not None else ""
    lines = [f"| way, {links} | ms a step | MB/s | dense steps | s in all |{column}"]
    lines.append("| --- | ---: | ---: | ---: | ---: |" + " ---: | ---: |" * bool(column))
    for way in dict.fromkeys(record["way"] for record in records):
        of = [record for record in records if record["way"] == way]
        spans = [clock(record["epochs"])[-1] for record in of]
        sent = [sum(epoch["mb_sent"] * steps for epoch, steps in with_steps(record["epochs"])) for record in of]
        rates = [mb / span for mb, span in zip(sent, spans, strict=True)]
        dense = [record["spent"]["dense"] for record in of if "spent" in record]
        cells = [
            f"{statistics.mean(record['step_seconds'] for record in of) * 1e3:.1f}",
            f"{statistics.mean(rates):.3g}",
        ]
        cells += [f"{statistics.mean(dense):.0%}" if dense else "-", str(Interval.of(spans))]
        if target is not None:
            ends = [end for record in of if (end := until(record, target)) is not None]
            cells += [str(Interval.of(ends)) if ends else "-", f"{len(ends)} of {len(of)}"]
        lines.append(f"| {' | '.join([way, *cells])} |")
    return "\n".join(lines)
