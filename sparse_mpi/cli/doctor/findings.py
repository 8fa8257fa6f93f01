"""From all ranks' facts to findings, each with a remedy: pure functions, one a subject."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from sparse_mpi.cli.launch.find import FLAVOURS, OPEN_MPI

Grade = Literal["fine", "advice", "broken"]
Facts = list[dict[str, Any]]  # of all ranks, in their order
MOST_NAMED = 8  # ranks in a row


class Finding(NamedTuple):
    about: str
    says: str
    grade: Grade = "fine"  # "broken" only where a run fails for sure
    remedy: str = ""  # empty where there is nothing to do


def said(values: list[Any]) -> str:
    """Return all ranks' values in one line: one value if all agree, else each with its ranks."""
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(str(value), []).append(str(rank))
    if len(ranks) == 1:
        return str(values[0])
    shown = []
    for text, those in ranks.items():
        more = f" and {len(those) - MOST_NAMED} more" if len(those) > MOST_NAMED else ""
        shown.append(f"{text} (rank{'s' * (len(those) > 1)} {', '.join(those[:MOST_NAMED])}{more})")
    return "; ".join(shown)


def versions(ranks: Facts) -> Finding:
    names = list(dict.fromkeys(name for rank in ranks for name in rank["versions"]))
    theirs = {name: [rank["versions"].get(name, "none") for rank in ranks] for name in names}
    absent = [name for name in ("cupy", "torch", "numba") if name not in names]
    text = ", ".join(f"{name} {said(found)}" for name, found in theirs.items())
    text += f"; not installed: {', '.join(absent)}" if absent else ""
    if different := [name for name, found in theirs.items() if len(set(found)) > 1]:
        remedy = f"use one environment on all hosts: ranks differ in {', '.join(different)}"
        return Finding("versions", text, "advice", remedy)
    return Finding("versions", text)


def launch(ranks: Facts) -> list[Finding]:
    first = ranks[0]
    mpi = Finding("MPI", f"{said([rank['mpi'] for rank in ranks])}, standard {first['standard']}")
    if len({rank["mpi"] for rank in ranks}) > 1:
        mpi = mpi._replace(grade="broken", remedy="start all ranks with one and the same MPI library")
    told = ", ".join(f"{name}={value}" for name, value in first["launcher"].items()) or "none"
    hosts = said([rank["host"] for rank in ranks])
    started = Finding("ranks", f"{first['size']} rank{'s' * (first['size'] > 1)} on {hosts}; launcher: {told}")
    if first["size"] == 1 and any(value.isdigit() and int(value) > 1 for value in first["launcher"].values()):
        plugin = next((flavour.plugin for flavour in FLAVOURS if flavour.name == first["vendor"]), None)
        right = f"srun --mpi={plugin}" if plugin and "SLURM_JOB_ID" in first["settings"] else "its own mpiexec"
        remedy = f"the launcher is not that of {first['vendor']}: start with {right}"
        started = Finding("ranks", f"singletons: {started.says}", "broken", remedy)
    return [mpi, started, _thread_level([rank["thread level"] for rank in ranks]), _device_pointers(ranks)]


def _thread_level(levels: list[str]) -> Finding:
    if set(levels) == {"multiple"}:
        return Finding("thread level", "multiple; start() reduces in a thread of its own, in which MPI makes progress")
    text = f"{said(levels)}; nothing is reduced in the background, start() returns when all is done"
    remedy = "mpi4py.rc.thread_level = 'multiple' before mpi4py.MPI is imported, or an MPI library that has it"
    return Finding("thread level", text, "advice", remedy)


def _device_pointers(ranks: Facts) -> Finding:
    takes, because = ([rank[fact] for rank in ranks] for fact in ("device pointers", "device pointers because"))
    if None in takes:
        return Finding("device pointers", said(because), "broken", "export SPARSE_MPI_CUDA_AWARE=0, or leave it unset")
    answers = [("no: ", "yes: ")[yes] + why for yes, why in zip(takes, because, strict=True)]
    return Finding("device pointers", said(answers))


def cores(ranks: Facts) -> list[Finding]:
    set_to = [rank["settings"].get("OMP_NUM_THREADS", "not set") for rank in ranks]
    why = said([f"{rank['threads']} of {len(rank['cores'])} usable cores" for rank in ranks])
    found = [Finding("kernel threads", f"{why}; OMP_NUM_THREADS: {said(set_to)}")]
    for host in dict.fromkeys(rank["host"] for rank in ranks):
        mine = [rank for rank in ranks if rank["host"] == host]
        usable = len(set().union(*(rank["cores"] for rank in mine)))
        wanted, share = sum(rank["threads"] for rank in mine), max(1, usable // len(mine))
        if wanted > usable and share < max(rank["threads"] for rank in mine):
            text = f"{host}: {len(mine)} ranks want {wanted} threads on {usable} cores"
            found.append(Finding("cores", text, "advice", f"export OMP_NUM_THREADS={share}"))
        polls = mine[0].get("vendor") == OPEN_MPI.name
        if len(mine) > usable and polls and mine[0]["settings"].get("OMPI_MCA_mpi_yield_when_idle") != "1":
            text = f"{host}: {len(mine)} ranks on {usable} cores; a rank that waits keeps others from working"
            found.append(Finding("cores", text, "advice", "export OMPI_MCA_mpi_yield_when_idle=1"))
    return found


def network(ranks: Facts) -> Finding:
    hosts = len({rank["host"] for rank in ranks})
    names = said(["; ".join(rank["network"]) or "none that is up" for rank in ranks])
    told = said([" ".join(f"{name}={value}" for name, value in rank["transport"].items()) or "unset" for rank in ranks])
    way = "one host, MPI takes shared memory; for several" if hosts == 1 else f"{hosts} hosts"
    return Finding("network", f"{way}: {names}; variables of the transport: {told}")


def devices(ranks: Facts) -> Finding:
    text = said(["; ".join(rank["gpus"]) or "none" for rank in ranks])
    if text == "none" or all("cupy" in rank["versions"] for rank in ranks):
        return Finding("GPU", text)
    return Finding("GPU", text, "advice", "device arrays need CuPy: install cupy-cuda13x (cupy-cuda12x with CUDA 12)")
