"""`as_comm`: the `Comm` of an mpi4py communicator or a torch.distributed process group, by default of the whole job."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from sparse_mpi.comm.base import Comm
from sparse_mpi.comm.runtime import ranks_of_mpi, refuse_torchrun

TRANSPORTS = ("mpi", "nccl")
_KINDS: set[type] = set()  # of `Comm`, as far as they have been seen: to look at all members takes 20 us


def as_comm(comm: Any = None) -> Comm:
    """Return the `Comm` of ``comm``: itself where it is one; of an mpi4py communicator or a process group its wrapper.

    None stands for MPI's COMM_WORLD if MPI's launcher started the job, else for torch's default process group if that
    is initialised, else for COMM_WORLD, which is this process alone. It is an error where torchrun started the job and
    nobody has initialised the group. Where launchers are nested, the inner one counts: torchrun's processes under
    mpiexec or srun are torchrun's; and so are, with a group, processes that were spawned under ``mpiexec -n 1``, or
    that srun started without ``--mpi``. The choice depends on the environment alone, which is alike on all ranks.

    ``"mpi"`` is COMM_WORLD in any case, ``"nccl"`` is `nccl.NcclComm` over what None stands for. A wrapper is kept as
    long as ``comm`` lives; the first call for it is collective.

    Raises:
        TypeError: ``comm`` is none of these.
        ValueError: another name.
        RuntimeError: torchrun started this process, and torch.distributed is not initialised; MPI was not started by
            its own launcher; or see `nccl.NcclComm`.
    """
    if isinstance(comm, str):
        return _named(comm)
    if comm is None:
        return _of_the_job()
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is None or not isinstance(comm, mpi4py.Comm):  # a null communicator raises when it is looked at
        if type(comm) in _KINDS or isinstance(comm, Comm):
            _KINDS.add(type(comm))
            kept: Comm = comm
            return kept
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and isinstance(comm, torch.ProcessGroup):
        from sparse_mpi.comm import process_group

        return process_group.wrapped(comm)
    from sparse_mpi.comm.wrapped import wrapped

    return wrapped(comm)


def _of_the_job() -> Comm:
    """Return the communicator of all ranks of this job, whoever started it, see `as_comm`."""
    torch = sys.modules.get("torch.distributed")
    has_group = torch is not None and torch.is_available() and torch.is_initialized()
    if has_group and ranks_of_mpi(sure=True) < 2:
        from sparse_mpi.comm import process_group

        return process_group.wrapped()
    refuse_torchrun()
    from sparse_mpi.comm.wrapped import wrapped

    return wrapped()


def _named(name: str) -> Comm:
    """Return the communicator of all ranks over the transport of this name, see `as_comm`."""
    if name not in TRANSPORTS:
        raise ValueError(f"comm must be {' or '.join(map(repr, TRANSPORTS))} by name, got {name!r}; or give one")
    if name == "mpi":
        from sparse_mpi.comm.wrapped import wrapped

        return wrapped()
    everybody = as_comm(None)
    kept = everybody.attributes
    if name not in kept:
        kept[name] = import_module("sparse_mpi.comm.nccl").NcclComm(everybody)  # which imports this module
    made: Comm = kept[name]
    return made
