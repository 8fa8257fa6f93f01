"""`as_comm`: the `Comm` of an mpi4py communicator, a process group or a mesh, by default of the whole job."""

from __future__ import annotations

import os
from importlib import import_module

from sparse_mpi.comm.base import Comm
from sparse_mpi.comm.host_comm import host_comm
from sparse_mpi.comm.runtime import TORCHRUN

TRANSPORTS = ("mpi", "nccl")


def as_comm(comm: object = None) -> Comm:
    """Return the `Comm` of ``comm``: itself where it is one; of others its wrapper.

    Others are an mpi4py communicator, a process group of torch.distributed, and a ``DeviceMesh`` of one dimension, for
    its group: ``mesh["replicate"]`` of a mesh of two.

    None stands for MPI's COMM_WORLD if MPI's launcher started the job, else for torch's default process group if that
    is initialised, else for COMM_WORLD, which is this process alone. It is an error where torchrun started the job and
    nobody has initialised the group. Where launchers are nested, the inner one counts: torchrun's processes under
    mpiexec or srun are torchrun's; and so are, with a group, processes that were spawned under ``mpiexec -n 1``, or
    that srun started without ``--mpi``. The choice depends on the environment alone, which is alike on all ranks.

    ``"mpi"`` is COMM_WORLD in any case, ``"nccl"`` is `nccl.NcclComm` over what None stands for. A wrapper is kept as
    long as ``comm`` lives; the first call for it is collective.

    Raises:
        TypeError: ``comm`` is none of these; of a transport that lacks members of `Comm`, it names them.
        ValueError: another name, or a mesh of several dimensions.
        RuntimeError: torchrun started this process, and torch.distributed is not initialised; MPI was not started by
            its own launcher; or see `nccl.NcclComm`.
    """
    if not isinstance(comm, str) or comm == "mpi":
        return host_comm(comm)
    if comm not in TRANSPORTS:
        raise ValueError(f"comm must be {' or '.join(map(repr, TRANSPORTS))} by name, got {comm!r}; or give one")
    # "nccl": made over the communicator of the whole job, and kept with it for the next call.
    everybody = host_comm()
    if comm not in everybody.attributes:
        everybody.attributes[comm] = import_module("sparse_mpi.comm.nccl").NcclComm(everybody)
    made: Comm = everybody.attributes[comm]
    return made


def comm_of_job() -> Comm:
    """Return the `Comm` of all ranks of this job as `as_comm` does, for a program that is to run by any launcher.

    Where torchrun started this process and nobody has initialised torch.distributed, that is done here, over gloo.
    """
    if TORCHRUN in os.environ:
        import_module("sparse_mpi.comm.process_group").start_job()
    return as_comm()


def watch(comm: object = None, timeout: float | None = None) -> None:
    """Have a watchdog watch over all ranks of ``comm``, see `as_comm`, and what is made of it from now on. Collective.

    A thread in each process polls four times a second. Where a rank waits for one that has ended its program, it says
    so, and the job ends. So it does where a call takes longer than ``timeout`` seconds (0: any time; None: as the
    variable SPARSE_MPI_TIMEOUT has it); before that each rank says for whom it waits.

    `python -m sparse_mpi run`, the programs in train/ and teams of `fault_tolerance` ask for it, and so do the
    variables SPARSE_MPI_WATCH=1 and SPARSE_MPI_TIMEOUT. Where MPI does not allow calls from several threads there is
    none.

    Raises:
        ValueError: ``timeout`` or SPARSE_MPI_TIMEOUT is no number of seconds.
    """
    as_comm(comm).job.watch(timeout)
