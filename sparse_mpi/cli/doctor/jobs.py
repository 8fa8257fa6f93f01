"""From the output of a job to findings: who waited for whom in vain, and what that means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sparse_mpi.cli.doctor.findings import Finding

LINE = re.compile(r"sparse_mpi: rank (?P<rank>\d+) of (?P<size>\d+) (?P<says>.*); the job ends$")
TIMED = re.compile(r"has been in (?P<call>\w+).*longer than \S+ s, and waits for others: (?P<others>.*)$")
ENDED = re.compile(r"waits for rank (?P<rank>\d+), which has ended its program: it has been in (?P<call>\w+)")
OTHER = re.compile(r"rank (?P<rank>\d+) (?P<where>[^;]*)")
KILLED = re.compile(r"sparse_mpi: rank (?P<rank>\d+) of \d+ does not come to a call, for it is stopped: it is killed")
LOST = re.compile(r"sparse_mpi: (?P<says>ranks? [\d, ]+ lost before step \d+; .*)$")
SILENT = "does not answer"


class Report(NamedTuple):
    rank: int
    size: int
    call: str  # in which it waited
    awaited: dict[int, str]  # rank -> where it was, as that rank or nobody said


def reports(lines: Iterable[str]) -> list[Report]:
    found = []
    for line in lines:
        said = LINE.search(line.strip())
        if said is None:
            continue
        rank, size = int(said["rank"]), int(said["size"])
        if timed := TIMED.search(said["says"]):
            others = {int(other["rank"]): other["where"].strip() for other in OTHER.finditer(timed["others"])}
            found.append(Report(rank, size, timed["call"], others))
        elif ended := ENDED.search(said["says"]):
            found.append(Report(rank, size, ended["call"], {int(ended["rank"]): "has ended its program"}))
    return found


def explain(lines: Iterable[str]) -> list[Finding]:
    """Return what became of the ranks of a job, from its output: one finding for each rank that was waited for."""
    lines = list(lines)
    said, findings = reports(lines), []
    for match in filter(None, map(KILLED.search, lines)):
        text = "was stopped, and another rank killed it; the others went on"
        findings.append(Finding(f"rank {match['rank']}", text, "advice", "look at its host: memory, disk, a debugger"))
    findings += [Finding("loss", match["says"]) for match in filter(None, map(LOST.search, lines))]
    where = {rank: place for report in said for rank, place in report.awaited.items()}
    for rank, place in sorted(where.items()):
        waiting = sorted({report.rank for report in said if rank in report.awaited})
        text = f"{place}; waited for by rank{'s' if len(waiting) > 1 else ''} {', '.join(map(str, waiting))}"
        findings.append(Finding(f"rank {rank}", text, "broken", _remedy(rank, place, said)))
    if not findings:
        text = "there is no line of a rank that waited in vain"
        remedy = "give the job's whole output, and set SPARSE_MPI_TIMEOUT to some seconds if it hangs"
        return [Finding("job", text, "advice", remedy)]
    return findings


def _remedy(rank: int, place: str, said: list[Report]) -> str:
    calls = sorted({report.call for report in said if rank in report.awaited})
    if place == SILENT:
        return "it was frozen or gone, or its host unreachable: look at that host, and at what the launcher says of it"
    if place.startswith("has ended"):
        return f"it left its program before the others' {', '.join(calls)}: see that all ranks take as many steps"
    if place.startswith("has been in"):
        theirs = place.removeprefix("has been in ").split()[0]
        if theirs not in calls:
            return f"it was in {theirs}, the others in {', '.join(calls)}: ranks must make the same calls in one order"
        return "it waited itself: look first at the ranks that no other one names, and at those that do not answer"
    return "it was busy, or waited for something else, as a disk: time its work between steps, or raise the limit"
