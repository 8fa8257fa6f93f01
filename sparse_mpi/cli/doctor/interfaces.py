"""The network of a job: MPI's transport, the interface towards other hosts, and its rate. Nothing is sent."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

from sparse_mpi.cli.doctor.findings import Facts, Finding, said

INFINIBAND = Path("/sys/class/infiniband")
ELSEWHERE = "192.0.2.1"  # an address of no host, which the default route leads to
# With them an MPI says at its start what it selects: Open MPI, MPICH, Intel MPI
VERBOSE = {
    **{f"OMPI_MCA_{part}_base_verbose": "10" for part in ("pml", "mtl", "btl")},
    **{"MPIR_CVAR_DEBUG_SUMMARY": "1", "I_MPI_DEBUG": "5"},
}


def route(host: str = ELSEWHERE) -> dict[str, Any]:
    """Return the interface on the way to a host, its rate in Mbit/s (0: unknown), and the ports for RDMA."""
    import psutil

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect((host, 9))  # looks up the route
            own = asking.getsockname()[0]
    except OSError:
        own = None
    addresses = psutil.net_if_addrs().items()
    name = next((name for name, known in addresses if own in [one.address for one in known]), None)
    found = psutil.net_if_stats().get(name) if name else None
    return {"interface": name, "rate": found.speed if found else 0, "ports": ports(INFINIBAND)}


def ports(folder: Path) -> list[str]:
    states = sorted(folder.glob("*/ports/*/state"))
    up = [file.parent for file in states if "ACTIVE" in file.read_text()]
    return [f"{port.parents[1].name} port {port.name}, {(port / 'rate').read_text().strip()}" for port in up]


def transport(log: str, library: str) -> str | None:
    """Return what an MPI selects, of what it says at its start and of its version; None: it does not tell."""
    if layer := re.search(r"select: component (\w+) selected", log):
        parts = re.findall(r"Selected component \[(\w+)\]", log) if layer[1] == "cm" else []
        if layer[1] == "ob1":
            parts = re.findall(
                r"initializing btl component (\w+)\n(?:.*\n)*?.*init of component \1 returned success", log
            )
            interfaces = dict.fromkeys(re.findall(r"btl:tcp: \S+ if (\S+)", log))
            parts = [f"tcp ({', '.join(interfaces)})" if part == "tcp" and interfaces else part for part in parts]
        return f"{layer[1]} with {', '.join(parts)}" if parts else layer[1]
    device = re.search(r"MPICH Device:\s*(\S+)", library)
    provider = re.search(r"libfabric provider:\s*(\S+)", log)
    known = [found[1] for found in (device, provider) if found]
    return ", provider ".join(known) or None


def network(ranks: Facts, chosen: str | None) -> Finding:
    hosts = {rank["host"] for rank in ranks}
    rates = [f"{rank['rate'] / 1000:g} Gbit/s" if rank["rate"] else "rate unknown" for rank in ranks]
    links = [f"{rank['interface'] or 'unknown'}, {rate}" for rank, rate in zip(ranks, rates, strict=True)]
    where = "one host, messages stay in memory; towards others " if len(hosts) == 1 else ""
    text = f"transport {chosen or 'unknown'}; {where}interface {said(links)}"
    return Finding("network", text + "".join(f"; {said([port])}" for port in ranks[0]["ports"]))
