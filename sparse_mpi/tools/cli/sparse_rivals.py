"""What ``bench sparse`` compares: the algorithms of `sparse_mpi.allreduce`, and what users have without it."""

from __future__ import annotations

import fcntl
import math
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import reduce
from importlib import import_module
from operator import add
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi import collectives
from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.collectives.inputs import AUTO
from sparse_mpi.comm import Comm

GLOO = "gloo"
RIVALS = ("pickled allreduce", "pickled allgather", "dense", GLOO)
MOST_DENSE = 1 << 27  # keys of which a dense buffer is tried
PATIENCE = timedelta(seconds=60)  # until a rank that gloo waits for counts as lost
SUMMED = ("int32", "int64", "float32", "float64")  # tried; of complex numbers gloo returns no entries and no error
ADDRESS_OF = 0x8915  # SIOCGIFADDR


class Candidate(NamedTuple):
    """One way to add up."""

    work: Callable[[], Any]  # the sum: keys and values, a csr_array, or a dense buffer
    ours: bool = False  # it may refuse its input by a ValueError, on all ranks alike
    traced: bool = True  # by tracemalloc, which sees NumPy's memory and not torch's


def candidates(
    keys: np.ndarray, values: np.ndarray, n: int, comm: Comm, no_gloo: str
) -> tuple[dict[str, Candidate], dict[str, str]]:
    """Return what is compared, by name, and the reasons why others are not, the same on all ranks.

    Args:
        keys: ``(m,)`` int64, ascending and distinct, in [0, n).
        values: ``(m,)``.
        n: how many keys there are.
        comm: of all ranks of MPI.
        no_gloo: why torch's gloo was not started (see `gloo`), empty if it was.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def ours(name: str) -> Candidate:
        return Candidate(lambda: collectives.allreduce((keys, values), comm=comm, algorithm=name), ours=True)

    found = {name: ours(name) for name in (AUTO, *ALGORITHMS)}
    skipped: dict[str, str] = {}
    try:
        from scipy.sparse import csr_array
    except ImportError:
        skipped |= dict.fromkeys(RIVALS[:2], "scipy is not installed; pip install scipy")
    else:
        row = csr_array((values, keys, np.array([0, len(keys)])), shape=(1, n))
        found["pickled allreduce"] = Candidate(lambda: world.allreduce(row))
        found["pickled allgather"] = Candidate(lambda: reduce(add, world.allgather(row)))

    def dense() -> np.ndarray:
        buffer, total = np.zeros(n, values.dtype), np.empty(n, values.dtype)
        buffer[keys] = values
        world.Allreduce(buffer, total)
        return total

    if n <= MOST_DENSE:
        found["dense"] = Candidate(dense)
    else:
        skipped["dense"] = f"{n:,} keys are too many for a buffer of all"
    if no_gloo:
        skipped[GLOO] = no_gloo
    elif values.dtype.name not in SUMMED:
        skipped[GLOO] = f"gloo does not add up sparse tensors of {values.dtype}"
    else:
        found[GLOO] = Candidate(_by_gloo(keys, values, n), traced=False)
    return found, skipped


def best_of_others(rows: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the seconds of the fastest rival among the measured ``rows``, infinite if there is none."""
    return min((rows[rival]["seconds"] for rival in RIVALS if rival in rows), default=math.inf)


def _by_gloo(keys: np.ndarray, values: np.ndarray, n: int) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Return the sum of sparse COO tensors by `torch.distributed`."""
    import torch
    from torch import distributed

    indices, numbers = torch.from_numpy(keys[None]), torch.from_numpy(values)

    def work() -> tuple[np.ndarray, np.ndarray]:
        x = torch.sparse_coo_tensor(indices, numbers, (n,), is_coalesced=True, check_invariants=False)
        distributed.all_reduce(x)  # x becomes the sum
        x = x.coalesce()
        return x.indices()[0].numpy(), x.values().numpy()

    return work


@contextmanager
def gloo(comm: Comm) -> Iterator[str]:
    """Start torch's gloo among all ranks of MPI for a ``with`` block, which gets why not, or an empty text. Collective.

    Ranks meet at rank 0 by TCP. Both they and gloo use the interface that ``GLOO_SOCKET_IFNAME`` names, or else that
    of the host's name.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if reason := _first(world.allgather(_missing())):
        yield reason
        return
    distributed: Any = import_module("torch.distributed")

    def store(place: str, port: int) -> Any:
        return distributed.TCPStore(place, port, comm.size, comm.rank == 0, PATIENCE, wait_for_workers=False)

    kept, told = None, ("", 0, "")  # where rank 0 listens, or why it does not
    if comm.rank == 0:
        try:
            kept = store(_address(), 0)  # any port that is free
            told = kept.host, kept.port, ""
        except (OSError, RuntimeError) as problem:
            told = "", 0, _line(problem)
    place, port, reason = world.bcast(told)
    if not reason:
        try:
            kept = kept or store(place, port)
            distributed.init_process_group(GLOO, store=kept, rank=comm.rank, world_size=comm.size, timeout=PATIENCE)
        except (OSError, RuntimeError) as problem:
            reason = _line(problem)
    try:
        yield _first(world.allgather(reason))
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _missing() -> str:
    """Return why torch's gloo cannot be had here, or an empty text."""
    try:
        from torch import distributed
    except ImportError:
        return "torch is not installed; pip install torch"
    if not (distributed.is_available() and distributed.is_gloo_available()):
        return "this torch was built without gloo"
    return ""


def _address() -> str:
    """Return the address of this host at which gloo listens, too.

    Raises:
        OSError: there is no such interface, or nobody knows the host's name.
    """
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if not name:
        return socket.gethostbyname(socket.gethostname())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        found = fcntl.ioctl(any_socket.fileno(), ADDRESS_OF, struct.pack("256s", name.encode()[:15]))
    return socket.inet_ntoa(found[20:24])


def _line(problem: Exception) -> str:
    """Return the first line of what went wrong."""
    return f"gloo does not start: {str(problem).strip().partition(chr(10))[0]}"


def _first(reasons: list[str]) -> str:
    """Return the first reason that is not empty."""
    return next(filter(None, reasons), "")
