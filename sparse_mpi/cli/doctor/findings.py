"""What the doctor says: findings, each with what to do about it.

From the facts of all ranks to findings: pure functions, one a subject.

What a job has said when ranks of it waited in vain: who waited for whom, and what that means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from sparse_mpi.comm.elastic import ulfm

Grade = Literal["fine", "advice", "broken"]


class Finding(NamedTuple):
    """One thing that was looked at."""

    about: str
    says: str
    grade: Grade = "fine"  # "broken" only where a run fails for sure
    remedy: str = ""  # what to set or to do; empty where there is nothing to do


Facts = list[dict[str, Any]]  # of all ranks, in their order
OPEN_MPI, MPICH = "Open MPI", "MPICH"
SLURM_PLUGINS = {OPEN_MPI: "pmix", MPICH: "pmi2"}


def said(values: list[Any]) -> str:
    """Return the values of all ranks in one line: itself where all agree, else which ranks have which."""
    texts = [str(value) for value in values]
    if len(set(texts)) == 1:
        return texts[0]
    shown = []
    for text in dict.fromkeys(texts):
        ranks = [str(rank) for rank, other in enumerate(texts) if other == text]
        more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
        shown.append(f"{text} (rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks[:8])}{more})")
    return "; ".join(shown)


def versions(ranks: Facts) -> list[Finding]:
    """Of Python and the packages, and where ranks differ in them."""
    names = list(dict.fromkeys(name for rank in ranks for name in rank["versions"]))
    found, different = [], []
    for name in names:
        theirs = [rank["versions"].get(name, "none") for rank in ranks]
        found.append(f"{name} {said(theirs)}")
        different += [name] if len(set(theirs)) > 1 else []
    absent = [name for name in ("cupy", "torch", "numba") if name not in names]
    text = ", ".join(found) + (f"; not installed: {', '.join(absent)}" if absent else "")
    if different:
        remedy = f"use one environment on all hosts: ranks differ in {', '.join(different)}"
        return [Finding("versions", text, "advice", remedy)]
    return [Finding("versions", text)]


def launch(ranks: Facts) -> list[Finding]:
    """MPI, how it was started, on which hosts, with how many threads allowed."""
    first = ranks[0]
    mpi = Finding("MPI", f"{said([rank['mpi'] for rank in ranks])}, standard {first['standard']}")
    if len({rank["mpi"] for rank in ranks}) > 1:
        mpi = mpi._replace(grade="broken", remedy="start all ranks with one and the same MPI library")
    hosts = said([rank["host"] for rank in ranks])
    told = ", ".join(f"{name}={value}" for name, value in first["launcher"].items()) or "none"
    text = f"{first['size']} rank{'s' if first['size'] > 1 else ''} on {hosts}; launcher: {told}"
    alone = [value for value in first["launcher"].values() if value.isdigit() and int(value) > 1]
    if first["size"] == 1 and alone:
        started = Finding("ranks", f"singletons: {text}", "broken", _launcher_for(first))
    else:
        started = Finding("ranks", text)
    return [mpi, started, _thread_level([rank["thread level"] for rank in ranks]), _loss(first)]


def _loss(first: dict[str, Any]) -> Finding:
    """Return what becomes of the job when a rank is lost, or frozen."""
    doubts = ulfm.doubts(first["mpi"])
    if first["survives"]:
        text = "the others can go on, in programs that use sparse_mpi.fault_tolerance, as train/ with --elastic"
    elif doubts or first["mpi"].startswith(f"{OPEN_MPI} v5"):
        text = "ends the job; started by python -m sparse_mpi run --elastic the others could go on"
    else:
        text = "ends the job, for this MPI can do no other; training goes on from its last checkpoint (--resume)"
    limit = first["settings"].get("SPARSE_MPI_TIMEOUT", "0")
    frozen = f"named after {limit} s" if limit not in ("", "0") else "waited for, as SPARSE_MPI_TIMEOUT is not set"
    text = f"{text}{doubts and f', but {doubts}'}; a frozen one is {frozen}"
    return Finding("loss of a rank", text, *(("advice", ulfm.REMEDY) if doubts and first["survives"] else ()))


def _launcher_for(first: dict[str, Any]) -> str:
    plugin = SLURM_PLUGINS.get(first["vendor"])
    if "SLURM_JOB_ID" in first["settings"] and plugin:
        return f"the launcher is not that of {first['vendor']}: start with srun --mpi={plugin}"
    return f"the launcher is not that of {first['vendor']}: start with the mpiexec that belongs to it"


def _thread_level(levels: list[str]) -> Finding:
    if set(levels) == {"multiple"}:
        return Finding("thread level", "multiple; start() reduces in a thread of its own, in which MPI makes progress")
    text = f"{said(levels)}; nothing is reduced in the background, start() returns when all is done"
    remedy = "mpi4py.rc.thread_level = 'multiple' before mpi4py.MPI is imported, or an MPI library that has it"
    return Finding("thread level", text, "advice", remedy)


def cores(ranks: Facts) -> list[Finding]:
    """Threads of the kernels and why as many; ranks and threads against cores, host by host."""
    why = [
        f"{rank['threads']} of {len(rank['cores'])} usable cores"
        + (f", OMP_NUM_THREADS={rank['settings']['OMP_NUM_THREADS']}" if "OMP_NUM_THREADS" in rank["settings"] else "")
        for rank in ranks
    ]
    found = [Finding("kernel threads", f"{said(why)}; the machine has {said([rank['all cores'] for rank in ranks])}")]
    for host in dict.fromkeys(rank["host"] for rank in ranks):
        mine = [rank for rank in ranks if rank["host"] == host]
        usable = len(set().union(*(rank["cores"] for rank in mine)))
        wanted = sum(rank["threads"] for rank in mine)
        if wanted > usable:
            share = max(1, usable // len(mine))
            text = f"{host}: {len(mine)} ranks want {wanted} threads on {usable} cores"
            if share < max(rank["threads"] for rank in mine):
                found.append(Finding("cores", text, "advice", f"export OMP_NUM_THREADS={share}"))
        if len(mine) > usable and mine[0].get("vendor") == OPEN_MPI:
            if mine[0]["settings"].get("OMPI_MCA_mpi_yield_when_idle") != "1":
                text = f"{host}: {len(mine)} ranks on {usable} cores; a rank that waits keeps others from working"
                found.append(Finding("cores", text, "advice", "export OMPI_MCA_mpi_yield_when_idle=1"))
    return found


def devices(ranks: Facts) -> list[Finding]:
    """GPUs, and what is missing to use them."""
    if not any(rank["gpus"] for rank in ranks):
        return [Finding("GPU", "none")]
    text = said(["; ".join(rank["gpus"]) or "none" for rank in ranks])
    if all("cupy" in rank["versions"] for rank in ranks):
        return [Finding("GPU", text)]
    return [Finding("GPU", text, "advice", "device arrays need CuPy: install cupy-cuda13x (cupy-cuda12x with CUDA 12)")]


LINE = re.compile(r"sparse_mpi: rank (?P<rank>\d+) of (?P<size>\d+) (?P<says>.*); the job ends$")
TIMED = re.compile(r"has been in (?P<call>\w+).*longer than \S+ s, and waits for others: (?P<others>.*)$")
ENDED = re.compile(r"waits for rank (?P<rank>\d+), which has ended its program: it has been in (?P<call>\w+)")
OTHER = re.compile(r"rank (?P<rank>\d+) (?P<where>[^;]*)")
KILLED = re.compile(r"sparse_mpi: rank (?P<rank>\d+) of \d+ does not come to a call, for it is stopped: it is killed")
LOST = re.compile(r"sparse_mpi: (?P<says>ranks? [\d, ]+ lost before step \d+; .*)$")
SILENT = "does not answer"


class Report(NamedTuple):
    """What a rank said."""

    rank: int
    size: int
    call: str  # in which it waited
    awaited: dict[int, str]  # rank -> where it was, as that rank or nobody said


def reports(lines: Iterable[str]) -> list[Report]:
    """Return what ranks have said in the output of a job."""
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
    """Return what to do about a rank that others have waited for."""
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
