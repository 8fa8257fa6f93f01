"""From the facts of all ranks to findings, each with what to do about it: pure functions, one a subject."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from sparse_mpi.cli.launch.find import FLAVOURS, OPEN_MPI
from sparse_mpi.comm.elastic import ulfm

Grade = Literal["fine", "advice", "broken"]
Facts = list[dict[str, Any]]  # of all ranks, in their order
PLUGINS = {flavour.name: flavour.plugin for flavour in FLAVOURS}


class Finding(NamedTuple):
    about: str
    says: str
    grade: Grade = "fine"  # "broken" only where a run fails for sure
    remedy: str = ""  # what to set or to do; empty where there is nothing to do


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
    doubts = ulfm.doubts(first["mpi"])
    if first["survives"]:
        text = "the others can go on, in programs that use sparse_mpi.fault_tolerance, as train/ with --elastic"
    elif doubts or first["mpi"].startswith(f"{OPEN_MPI.name} v5"):
        text = "ends the job; started by python -m sparse_mpi run --elastic the others could go on"
    else:
        text = "ends the job, for this MPI can do no other; training goes on from its last checkpoint (--resume)"
    limit = first["settings"].get("SPARSE_MPI_TIMEOUT", "0")
    frozen = f"named after {limit} s" if limit not in ("", "0") else "waited for, as SPARSE_MPI_TIMEOUT is not set"
    text = f"{text}{doubts and f', but {doubts}'}; a frozen one is {frozen}"
    return Finding("loss of a rank", text, *(("advice", ulfm.REMEDY) if doubts and first["survives"] else ()))


def _launcher_for(first: dict[str, Any]) -> str:
    plugin = PLUGINS.get(first["vendor"])
    slurm = "SLURM_JOB_ID" in first["settings"] and plugin
    remedy = f"srun --mpi={plugin}" if slurm else "the mpiexec that belongs to it"
    return f"the launcher is not that of {first['vendor']}: start with {remedy}"


def _thread_level(levels: list[str]) -> Finding:
    if set(levels) == {"multiple"}:
        return Finding("thread level", "multiple; start() reduces in a thread of its own, in which MPI makes progress")
    text = f"{said(levels)}; nothing is reduced in the background, start() returns when all is done"
    remedy = "mpi4py.rc.thread_level = 'multiple' before mpi4py.MPI is imported, or an MPI library that has it"
    return Finding("thread level", text, "advice", remedy)


def cores(ranks: Facts) -> list[Finding]:
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
        if len(mine) > usable and mine[0].get("vendor") == OPEN_MPI.name:
            if mine[0]["settings"].get("OMPI_MCA_mpi_yield_when_idle") != "1":
                text = f"{host}: {len(mine)} ranks on {usable} cores; a rank that waits keeps others from working"
                found.append(Finding("cores", text, "advice", "export OMPI_MCA_mpi_yield_when_idle=1"))
    return found


def devices(ranks: Facts) -> list[Finding]:
    if not any(rank["gpus"] for rank in ranks):
        return [Finding("GPU", "none")]
    text = said(["; ".join(rank["gpus"]) or "none" for rank in ranks])
    if all("cupy" in rank["versions"] for rank in ranks):
        return [Finding("GPU", text)]
    return [Finding("GPU", text, "advice", "device arrays need CuPy: install cupy-cuda13x (cupy-cuda12x with CUDA 12)")]
