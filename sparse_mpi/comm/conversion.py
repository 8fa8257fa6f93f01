"""`as_comm`: the `Comm` of an mpi4py communicator or a torch.distributed process group."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from sparse_mpi.comm.base import Comm

TRANSPORTS = ("mpi", "nccl")
_KINDS: set[type] = set()  # of `Comm`, as far as they have been seen: to look at all members takes 20 us


def as_comm(comm: Any = None) -> Comm:
    """Return the `Comm` of ``comm``: itself where it is one, and that of MPI's COMM_WORLD for None and ``"mpi"``.

    An mpi4py communicator or a torch.distributed process group is wrapped. ``"nccl"`` is `nccl.NcclComm` over
    COMM_WORLD. The wrapper is kept as long as ``comm`` lives; the first call for it is collective.

    Raises:
        TypeError: neither of these.
        ValueError: another name.
        RuntimeError: MPI was not started by its own launcher, or see `nccl.NcclComm`.
    """
    if isinstance(comm, str):
        return _named(comm)
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is None or not isinstance(comm, mpi4py.Comm):  # a null communicator raises when it is looked at
        if type(comm) in _KINDS or (comm is not None and isinstance(comm, Comm)):
            _KINDS.add(type(comm))
            kept: Comm = comm
            return kept
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and isinstance(comm, torch.ProcessGroup):
        from sparse_mpi.comm import process_group

        return process_group.wrapped(comm)
    from sparse_mpi.comm.wrapped import wrapped

    return wrapped(comm)


def _named(name: str) -> Comm:
    """Return the communicator of all ranks over the transport of this name."""
    if name not in TRANSPORTS:
        raise ValueError(f"comm must be {' or '.join(map(repr, TRANSPORTS))} by name, got {name!r}; or give one")
    everybody = as_comm(None)
    if name == "mpi":
        return everybody
    kept = everybody.attributes
    if name not in kept:
        kept[name] = import_module("sparse_mpi.comm.nccl").NcclComm(everybody)  # which imports this module
    made: Comm = kept[name]
    return made
