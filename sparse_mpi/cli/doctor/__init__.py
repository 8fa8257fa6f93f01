"""What this installation can do here, and what to set.

Facts of all ranks are gathered; what may crash is tried out in child processes of rank 0.
"""

from __future__ import annotations

from typing import Any

from sparse_mpi.cli.doctor import findings, probes
from sparse_mpi.cli.doctor.facts import facts
from sparse_mpi.cli.doctor.findings import Finding
from sparse_mpi.cli.doctor.interfaces import network
from sparse_mpi.comm.runtime import LAUNCHERS

__all__ = ["Finding", "examine"]


def examine() -> tuple[list[dict[str, Any]], list[Finding]] | None:
    """Return the facts of all ranks and what they mean, on rank 0; None on the others. Starts MPI."""
    alone = facts()
    launched = any(name in alone["launcher"] for name in LAUNCHERS)
    failure = None if launched else probes.start_mpi()
    if failure is not None:
        return [alone], [*findings.versions([alone]), failure, *_here([alone])]
    from mpi4py import MPI

    gathered = MPI.COMM_WORLD.gather(facts(MPI))
    if gathered is None:
        return None
    found = findings.versions(gathered) + findings.launch(gathered)
    found.append(network(gathered, probes.transport(gathered[0]["library"])))
    return gathered, [*found, *_here(gathered), probes.device_message(gathered[0])]


def _here(ranks: list[dict[str, Any]]) -> list[Finding]:
    return [*findings.cores(ranks), probes.first_step(ranks[0]), *findings.devices(ranks)]
