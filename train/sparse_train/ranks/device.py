"""The device that a rank computes on."""

from __future__ import annotations

import os
import sys
import zlib
from importlib import import_module

import numpy as np
import torch

from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import host_leader, local_rank
from sparse_mpi.fault_tolerance import team_of
from sparse_train.ranks.job import JobError, agreed

CPU = torch.device("cpu")


def choose(wanted: str, comm: Comm) -> torch.device:
    """Return the device of this rank, torch's current one; "auto" is "cuda" where all ranks can. Collective.

    Raises JobError: on all ranks, where ``"cuda"`` is wanted and some rank cannot; it names the missing part.
    """
    if wanted == "cpu":
        return CPU
    reason = missing()
    if wanted == "cuda":
        agreed(comm, lambda: _refuse(reason, "--device cuda", "--device cpu"))
    elif comm.allreduce(np.array([bool(reason)], np.int32), "max", control=True)[0]:
        return CPU
    # The ranks of a node take its GPUs in turn; a scheduler that binds ranks has left each of them one visible.
    place, places = local_rank(comm)
    visible = torch.cuda.device_count()
    if places > visible > 1 and place == 0:
        print(f"WARNING: {places} ranks of a node share {visible} GPUs", file=sys.stderr, flush=True)
    device = torch.device("cuda", place % visible)
    torch.cuda.set_device(device)
    check_transport(comm)
    return device


def transport(wanted: str, device: torch.device, comm: Comm) -> Comm:
    """Return the communicator for gradients: ``comm``, or NCCL between the same ranks. Collective.

    ``"auto"`` is NCCL between ranks that can, where MPI takes no device pointers.

    Raises JobError: on all ranks, where ``"nccl"`` is wanted and some rank cannot; it says why.
    """
    direct = device.type == "cpu" or comm.size == 1 or not comm.job.staged
    if wanted == "mpi" or (wanted == "auto" and direct):
        return comm
    reason = _without_nccl(device, comm)
    if wanted == "nccl":
        agreed(comm, lambda: _refuse(reason, "--transport nccl", "--transport mpi"))
    elif comm.allreduce(np.array([bool(reason)], np.int32), "max", control=True)[0]:
        return comm
    made: Comm = import_module("sparse_mpi.comm.nccl").NcclComm(comm)
    return made


def _without_nccl(device: torch.device, comm: Comm) -> str:
    """Return why this rank cannot use NCCL; "" if it can. Collective."""
    gpu = "" if device.type != "cuda" else import_module("cupy").cuda.runtime.deviceGetPCIBusId(device.index)
    used = zlib.crc32(gpu.encode())
    everybody = comm.allgather(np.array([host_leader(comm), used], np.int64), control=True)
    if device.type != "cuda":
        return "gradients are not on a GPU; take --device cuda"
    if team_of(comm):
        return "NCCL does not survive the loss of a rank; leave out --elastic"
    if (everybody == everybody[comm.rank]).all(axis=1).sum() > 1:
        return "another rank has the same GPU, which NCCL refuses; start one rank a GPU"
    if not import_module("cupy.cuda.nccl").available:
        return "CuPy finds no NCCL; pip install nvidia-nccl-cu13 (nvidia-nccl-cu12 with CUDA 12)"
    return ""


def compute_deterministically() -> None:
    """Have torch choose kernels that give the same bits each time, for the rest of the process, and warn of others.

    To be called before anything is computed: cuBLAS looks at its variable once.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.use_deterministic_algorithms(True, warn_only=True)


def finish(device: torch.device) -> None:
    """Wait until the device has done all queued work, so that a clock shows how long it took."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def missing() -> str:
    """Return the missing part that this process needs to compute on a GPU, and the remedy; "" if nothing is missing."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA; install a build for it, see pytorch.org"
    if not torch.cuda.is_available() or not torch.cuda.device_count():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        seen = "" if visible is None else f", and CUDA_VISIBLE_DEVICES is {visible!r}"
        return f"torch sees no GPU{seen}; ask the scheduler for one (--gpus-per-node), or look at nvidia-smi"
    major = torch.version.cuda.partition(".")[0]
    try:
        cupy = import_module("cupy")
        cupy.zeros(1).sum().item()
    except ImportError as error:
        return f"CuPy cannot be imported ({error}); pip install cupy-cuda{major}x"
    except Exception as error:  # errors of CuPy's own kinds: built for another CUDA, or for other GPUs
        return f"CuPy does not work here ({error}); torch has CUDA {torch.version.cuda}: pip install cupy-cuda{major}x"
    return ""


def _refuse(reason: str, wanted: str, instead: str) -> None:
    if reason:
        raise ValueError(f"{wanted}: {reason}; or take {instead}")


def check_transport(comm: Comm) -> None:
    """Raise unless arrays on the device arrive as they were sent. Collective.

    Raises JobError: on all ranks; an MPI that claims to take device pointers does not.
    """
    cupy = import_module("cupy")
    total = comm.allreduce(cupy.full(1000, comm.rank + 1, np.float32))
    right = bool((total == comm.size * (comm.size + 1) // 2).all())
    if not comm.allreduce(np.array([not right], np.int32), "max", control=True)[0]:
        return
    raise JobError(
        "--device cuda: what is sent from a GPU does not arrive, for MPI claims to take device pointers and does not; "
        "export SPARSE_MPI_CUDA_AWARE=0 sends through host memory"
    )
