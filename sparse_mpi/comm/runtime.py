"""Questions to the MPI runtime: did its own launcher start it, and does it take device pointers?"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

SLURM = "SLURM_STEP_NUM_TASKS"  # srun starts other programs than MPI's, too
# Variables in which launchers tell the number of processes: Open MPI, PMI, PALS, Hydra, Slurm
LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_SIZE", "MPI_LOCALNRANKS", SLURM)
TORCHRUN = "TORCHELASTIC_RUN_ID"  # variable of the processes that torchrun starts
# Variables in which they tell a process its rank
MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID")
RANKS = (*MPI_RANKS, "SLURM_PROCID")
# Variables that switch CUDA support on: MVAPICH2, Intel MPI, ParaStation
CUDA_SWITCHES = ("MV2_USE_CUDA", "I_MPI_OFFLOAD", "PSP_CUDA")


def told_rank(otherwise: int = 0) -> int:
    """Return this process's rank from its launcher's variables, before MPI is started, or ``otherwise``."""
    told = (os.environ.get(name, "") for name in (("RANK",) if TORCHRUN in os.environ else (*RANKS, "RANK")))
    return next((int(rank) for rank in told if rank.isdigit()), otherwise)


def ranks_of_mpi(sure: bool = False) -> int:
    """Return the number of processes started by MPI's launcher, or by Hydra on this host; 0: none, as in torchrun.

    With ``sure`` srun counts only where it has set a rank among MPI's, as it does with ``--mpi``.
    """
    if TORCHRUN in os.environ:
        return 0
    slurm = not sure or any(name in os.environ for name in MPI_RANKS)
    counts = [os.environ.get(name, "") for name in LAUNCHERS if name != SLURM or slurm]
    return max((int(count) for count in counts if count.isdigit()), default=0)


def refuse_torchrun() -> None:
    """Raise under torchrun or a similar launcher, where each process would be alone to MPI."""
    told = {name: os.environ.get(name, "") for name in ("WORLD_SIZE", TORCHRUN)}
    several = told["WORLD_SIZE"].isdigit() and int(told["WORLD_SIZE"]) > 1
    if (several or told[TORCHRUN]) and not ranks_of_mpi():
        raise RuntimeError(
            "comm must be a process group where torchrun started this process, or None with torch.distributed "
            f"initialised, got neither ({', '.join(f'{name}={value}' for name, value in told.items() if value)}): with "
            "MPI each process would be alone; call torch.distributed.init_process_group('gloo') (or 'nccl') before, or "
            "start with mpiexec or `python -m sparse_mpi run`"
        )


def refuse_singletons(size: int) -> None:
    """Raise where a launcher started several processes but MPI's world has only this one."""
    if size == 1:
        refuse_torchrun()
    told = {name: os.environ.get(name, "") for name in LAUNCHERS}
    several = [f"{name}={count}" for name, count in told.items() if count.isdigit() and int(count) > 1]
    if size == 1 and several:
        raise RuntimeError(
            f"MPI started as singletons under a launcher that is not MPI's: {', '.join(several)}, but "
            f"MPI.COMM_WORLD.size is 1; start with the mpiexec of the MPI that "
            f"`python -m mpi4py --mpi-lib-version` names, or under Slurm with "
            "srun --mpi=pmix for Open MPI, srun --mpi=pmi2 for MPICH"
        )


def require_mpi(MPI: Any) -> None:
    """Raise where MPI takes no calls: a call would end the process."""
    if not MPI.Is_initialized():
        raise RuntimeError("MPI must be initialised before a communicator is used, and is not; call MPI.Init()")
    if MPI.Is_finalized():
        raise RuntimeError(
            "MPI must not be finalised before the last call, and is, as in a forked child; leave MPI.Finalize() out, "
            "which mpi4py calls at the end of the program, and have the parent make this call"
        )


def variable(file: str, name: str, kind: type[ctypes.c_bool | ctypes.c_int32]) -> ctypes.c_bool | ctypes.c_int32:
    """Return a variable of the MPI library that mpi4py's ``file`` is linked to, or a new one."""
    library = ctypes.CDLL(file)
    return kind.in_dll(library, name) if hasattr(library, name) else kind()


@cache
def keep_from_children(file: str) -> None:
    """Let forked children find Open MPI finalised: to finalise it would wait for all ranks."""
    state = variable(file, "ompi_mpi_state", ctypes.c_int32)
    os.register_at_fork(after_in_child=lambda: setattr(state, "value", 5))  # OMPI_MPI_STATE_FINALIZE_COMPLETED


def takes_device_pointers(MPI: Any, comm: Any) -> tuple[bool, str]:
    """Return whether MPI takes device pointers, and who says so. Not tried out: a wrong guess crashes."""
    # The user's word counts first, then the communicator (MPI 4.1), then the library, then switches.
    switch = os.environ.get("SPARSE_MPI_CUDA_AWARE")
    if switch is not None:
        if switch not in ("0", "1"):
            raise ValueError(f"SPARSE_MPI_CUDA_AWARE must be 0 or 1, got {switch!r}")
        return switch == "1", f"SPARSE_MPI_CUDA_AWARE={switch}"
    if "cuda" in (comm.Get_info().Get("mpi_memory_alloc_kinds") or ""):
        return True, "the communicator's mpi_memory_alloc_kinds"
    if _library_says_so(MPI):
        return True, "the MPI library"
    switches = [name for name in CUDA_SWITCHES if os.environ.get(name) == "1"]
    return bool(switches), f"{switches[0]}=1" if switches else "the MPI library does not say that it does"


def _library_says_so(MPI: Any) -> bool:
    # mpi4py's module is linked to the MPI library, whose symbols are reached through it.
    library = ctypes.CDLL(MPI.__file__)
    vendor, version = MPI.get_vendor()
    if vendor == "Open MPI" and hasattr(library, "MPIX_Query_cuda_support"):
        return library.MPIX_Query_cuda_support() == 1
    if vendor == "MPICH" and version >= (4,) and hasattr(library, "MPIX_GPU_query_support"):
        supported = ctypes.c_int(0)
        return library.MPIX_GPU_query_support(0, ctypes.byref(supported)) == 0 and supported.value == 1
    if os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1":  # Cray MPICH, whose GPU part must be linked in
        maps = Path("/proc/self/maps")
        return maps.exists() and "libmpi_gtl_cuda" in maps.read_text()
    return False
