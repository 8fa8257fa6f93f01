"""How long ways take on emulated networks: the seconds of their steps, measured there, times the steps they train."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparse_mpi.tools.analysis.interval import Interval
from sparse_train.records import live
from sparse_train.records.duration import reached, with_steps

Records = Sequence[dict[str, Any]]


def measure(program: str, ranks: int, ways: Sequence[str], options: Sequence[str], rate: str, out: Path) -> Path:
    """Measure steps of ``ways`` on emulated hosts, as ``train/pace.py`` does, unless it is recorded already.

    Args:
        program: of train/, without .py.
        ranks: as many hosts.
        ways: as a study has them.
        options: of the program, for all ways.
        rate: of the links, as ``bench network`` takes it.
        out: folder for the record.

    Returns:
        The file of the record.

    Raises:
        SystemExit: the job fails, with its exit code; what was wrong has been said.
    """
    folder = out / f"pace-{rate}"
    if not (folder / "pace.json").exists():
        argv = [program, "--out", str(folder), "--ways", *ways, "--", *options]
        live.start("pace", ranks, ["--rate", rate], argv, out / f"pace-{rate}.log")
    return folder / "pace.json"


def step_seconds(file: Path) -> dict[str, float]:
    """Return the median seconds of a step of each way in a record."""
    return {way: statistics.median(taken) for way, taken in json.loads(file.read_text())["seconds"].items()}


def record(records: Records, paces: Mapping[str, Mapping[str, float | list[float]]]) -> dict[str, Any]:
    """Return what a figure needs: the course of each way, and its seconds on each network.

    Seconds are those of a step, or a list of those at which each epoch was over. A course is, after each epoch, the
    step, the MB that a rank has sent, and the loss on test data, means over seeds.
    """
    found = {}
    for way in dict.fromkeys(run["way"] for run in records):
        runs = [run["epochs"] for run in records if run["way"] == way]
        sent, course = 0.0, []
        for counted in zip(*map(with_steps, runs), strict=True):
            sent += statistics.mean(epoch["mb_sent"] * steps for epoch, steps in counted)
            losses = [epoch["test_loss"] for epoch, _ in counted]
            course.append((counted[0][0]["step"], sent, statistics.mean(losses)))
        found[way] = course
    first = records[0]
    about = {name: first[name] for name in ("program", "ranks", "options")}
    return {**about, "seeds": sorted({run["seed"] for run in records}), "courses": found, "seconds": paces}


def table(records: Records, rate: str, seconds: dict[str, float], free: dict[str, float], target: float | None) -> str:
    """Return a table of how fast the ways are on a network.

    Args:
        records: of a study, all of the same steps.
        rate: of the network, for the heading.
        seconds: of a step of each way there.
        free: the same where links have no limit; empty if that was not measured.
        target: a score, and how long it takes until the test of an epoch has it; None: leave that out.
    """
    until = f" s until {records[0]['headline']} {target:g} | reached by |" if target is not None else ""
    lines = [f"| way | ms a step, {rate} | of the speed without a limit | s in all |{until}"]
    lines.append("| --- | ---: | ---: | ---: |" + " ---: | ---: |" * bool(until))
    for way, taken in seconds.items():
        runs = [record for record in records if record["way"] == way]
        share = f"{free[way] / taken:.0%}" if free else "-"
        cells = [way, f"{taken * 1e3:.2f}", share, f"{runs[0]['epochs'][-1]['step'] * taken:.1f}"]
        if target is not None:
            found = [(run, index) for run in runs if (index := reached(run, target)) is not None]
            ends = [run["epochs"][index]["step"] * taken for run, index in found]
            mean = f"{Interval.of(ends).mean:.1f}" if ends else "-"
            cells += [mean, f"{len(ends)} of {len(runs)}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
