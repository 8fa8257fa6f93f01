"""Sum up records of `chaos`, in a table and a figure: faults, what became of them, and how long training paused.

python -m tests.fault_tolerance.pauses runs/chaos-*.json --plot runs/chaos.svg
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from functools import partial
from typing import Any

from sparse_mpi.cli import values
from sparse_mpi.cli.values import Parser
from sparse_mpi_bench.benchmark import save
from sparse_mpi_bench.figures.style import COLOURS, panels

ENDS = ("kill", "exit", "raise")  # faults after which a process ends by itself
GROUPS = ("ended", "frozen for good", "frozen or cut off for half a second")


def group_of(job: dict[str, Any]) -> str:
    """Return which kind of fault a job paused for longest."""
    faults = set(job["faults"])
    return GROUPS[1] if "stop" in faults else GROUPS[2] if faults & {"pause", "link"} else GROUPS[0]


def longest_steps(jobs: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return by group the longest step of each job that lost ranks; whole programs do not time their steps."""
    steps: dict[str, list[float]] = {group: [] for group in GROUPS}
    for job in jobs:
        if job["kind"] != "program" and not job["problem"] and (job["departures"] or group_of(job) == GROUPS[2]):
            steps[group_of(job)].append(job["longest"])
    return steps


def table(jobs: list[dict[str, Any]]) -> str:
    """Return what is to be read."""
    faults = Counter(fault for job in jobs for fault in job["faults"])
    lost = sum(len(ranks) for job in jobs for _, ranks, _ in job.get("departures", []))
    wrong = [job["problem"] for job in jobs if job["problem"]]
    more = sum(len(job.get("more", [])) for job in jobs)
    lines = [
        f"{len(jobs)} jobs, {faults.total()} faults: {', '.join(f'{count} {name}' for name, count in faults.items())}",
        f"{lost} ranks lost while they trained, {more} of them not by a fault of ours",
        f"{len(wrong)} jobs not as promised" + "".join(f"; {text}" for text in wrong),
    ]
    pauses = [seconds for job in jobs for seconds in job.get("pauses", [])]
    shown = {"from the failed call until the others go on": pauses}
    shown |= {f"longest step, ranks {group}": steps for group, steps in longest_steps(jobs).items()}
    lines += ["", "| seconds | number | median | 95 % | most |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, steps in shown.items():
        if steps:
            ordered = sorted(steps)
            late = ordered[int(0.95 * (len(ordered) - 1))]
            numbers = statistics.median(ordered), late, ordered[-1]
            lines.append(f"| {name} | {len(ordered)} | {' | '.join(f'{number:.3f}' for number in numbers)} |")
    return "\n".join(lines)


def figure(jobs: list[dict[str, Any]]) -> Any:
    """Draw the share of jobs whose longest step took at most so long, a panel a group."""
    groups = {group: sorted(steps) for group, steps in longest_steps(jobs).items() if steps}
    heading = "share of jobs whose longest step took at most so long; ranks were"
    shown, axes = panels(1, max(1, len(groups)), 2.4, heading, sharex=True, sharey=True)
    for panel, (group, steps) in zip(axes[0], groups.items(), strict=False):
        share = [(place + 1) / len(steps) for place in range(len(steps))]
        panel.step(steps, share, where="post", color=COLOURS[0])
        panel.set(xscale="log", xlabel="longest step, seconds", ylim=(0, 1.02), title=f"{group}: {len(steps)} jobs")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
    return shown


def main() -> int:
    parser = Parser(description=__doc__)
    parser.add_argument(
        "records", nargs="+", type=values.file("chaos.json"), help="that tests.fault_tolerance.chaos wrote"
    )
    parser.add_argument("--plot", type=values.figure, metavar="FILE", help="draw the longest step of each job")
    args = parser.parse_args()
    jobs = [job for file in args.records for job in json.loads(file.read_text())["cases"]]
    print(table(jobs))
    if args.plot:
        save(partial(figure, jobs), args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
