"""Arrays on a device over the NCCL of a torch.distributed group: `ProcessGroupComm` calls it.

There is no second communicator: torch launches these calls and its own in one order, and its watchdog sees both. A call
is queued on CuPy's current stream and returns: the host does not wait. Memory freed afterwards and reused on that
stream is thus reused after the call. Rows are bytes to NCCL; CuPy's arrays enter by DLPack, not copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import numpy as np
import torch
import torch.distributed as dist

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm.base import Counts
from sparse_mpi.comm.buffers import empty_rows, row_bytes

BACKEND = "cuda:nccl"  # in the configuration of a group
_OPS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
# Substitutes for types that torch's NCCL cannot reduce: sums agree modulo 2^bits, 16-bit maxima because every value
# fits
_CARRIERS = {"int16": "int32", "uint16": "int32", "uint32": "int32", "uint64": "int64"}


def has_nccl(group: Any) -> bool:
    """Return whether a process group (None: the default one) has NCCL for arrays on this process's GPUs."""
    return BACKEND in dist.get_backend_config(group).split(",") and torch.cuda.is_available()


class DeviceGroup:
    """The NCCL of ``group`` (None: the default one), whose ranks are ``ranks`` of the default group.

    Calls are collective, but for `exchange`.

    Raises:
        RuntimeError: from calls, once the group has been destroyed.
    """

    def __init__(self, group: Any, ranks: Sequence[int]) -> None:
        # Weak, for wrappers live as long as their groups
        self._kept = ref(dist.group.WORLD if group is None else group)
        self._ranks = list(ranks)
        self._met = False
        self._parts: dict[
            tuple[int, ...], DeviceGroup
        ] = {}  # of communicators that are split off, shared by their like

    @property
    def _group(self) -> Any:
        group = self._kept()
        if group is None:  # which torch would take for the default group
            raise RuntimeError("the process group of comm must last while comm is used, it has been destroyed")
        return group

    def part(self, ranks: Sequence[int]) -> DeviceGroup | None:
        """Return the group of some of the ranks, made by torch if they are fewer; collective among these.

        None where the ranks do not ascend, because torch would sort them, or where the default group is bound to a
        device (``device_id``) and has more ranks than this one: torch then splits the default group's communicator, in
        which all its ranks must take part.
        """
        if list(ranks) == self._ranks:
            return self
        everybody: Any = dist.group.WORLD
        bound = everybody.bound_device_id is not None and len(self._ranks) < dist.get_world_size()
        if bound or list(ranks) != sorted(ranks):
            return None
        if tuple(ranks) not in self._parts:
            made = dist.new_group(list(ranks), backend="nccl", use_local_synchronization=True)
            self._parts[tuple(ranks)] = DeviceGroup(made, ranks)
        return self._parts[tuple(ranks)]

    def meet(self, send: Array) -> None:
        """Let all ranks make their communicator at the first array: torch needs all of them in its first call."""
        if not self._met:
            with _queued(send):
                dist.all_reduce(_tensor(namespace(send).zeros(1, np.int32)), group=self._group)
            self._met = True

    def allgather(self, send: Array) -> Array:
        out = namespace(send).empty((len(self._ranks), *send.shape), send.dtype)
        if out.nbytes:
            with _queued(send):
                dist.all_gather_into_tensor(_bytes(out), _bytes(send), group=self._group)
        return out

    def allgatherv(self, send: Array, counts: Counts) -> Array:
        if (counts == counts[0]).all():
            return self.allgather(send).reshape(-1, *send.shape[1:])
        # One group of broadcasts into the parts of the result: nothing is padded, nothing copied.
        out = empty_rows(send, int(counts.sum()))
        with _queued(send):
            arriving = _bytes(out).split((counts * row_bytes(send)).tolist())
            dist.all_gather(list(arriving), _bytes(send), group=self._group)
        return out

    def alltoallv(self, send: Array, counts: Counts, came: Counts) -> Array:
        out, size = empty_rows(send, int(came.sum())), row_bytes(send)
        with _queued(send):
            lengths = (came * size).tolist(), (counts * size).tolist()
            dist.all_to_all_single(_bytes(out), _bytes(send), *lengths, group=self._group)
        return out

    def allreduce(self, send: Array, op: str) -> Array:
        """Return the sum or the maximum of nonempty arrays, of any type that the library reduces."""
        carrier = np.dtype(_CARRIERS.get(send.dtype.name, send.dtype))
        if carrier.itemsize > send.itemsize:
            carried = send.astype(carrier)
            self._reduce(carried, op)
            return carried.astype(send.dtype)
        if carrier == send.dtype or op == "sum":
            total = send.copy()
            self._reduce(total.view(carrier), op)
            return total
        top = send.dtype.type(1 << (8 * send.itemsize - 1))  # flipped, signed order is unsigned order
        carried = send ^ top
        self._reduce(carried.view(carrier), op)
        return carried ^ top

    def _reduce(self, carried: Array, op: str) -> None:
        with _queued(carried):
            dist.all_reduce(_tensor(carried), op=_OPS[op], group=self._group)

    def broadcast(self, rows: Array, root: int) -> None:
        """Fill ``rows`` with those of ``root``, of the same number."""
        with _queued(rows):
            dist.broadcast(_bytes(rows), self._ranks[root], group=self._group)

    def exchange(self, send: Array, dest: int | None, came: Array | None, source: int | None) -> None:
        """Send rows to ``dest`` and fill ``came`` from ``source``; empty messages do not go."""
        with _queued(send):
            moves = []
            if source is not None and came is not None and came.nbytes:
                moves.append(dist.P2POp(dist.irecv, _bytes(came), self._ranks[source], self._group))
            if dest is not None and send.nbytes:
                moves.append(dist.P2POp(dist.isend, _bytes(send), self._ranks[dest], self._group))
            for work in dist.batch_isend_irecv(moves) if moves else ():
                work.wait()


@contextmanager
def _queued(x: Any) -> Iterator[None]:
    """Have torch work on CuPy's current stream, on which arrays are computed and read."""
    device, stream = torch.device("cuda", x.device.id), namespace(x).cuda.get_current_stream().ptr
    if torch.cuda.current_stream(device).cuda_stream == stream:
        yield
    else:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device)):
            yield


def _tensor(x: Array) -> torch.Tensor:
    library: Any = torch
    made: torch.Tensor = library.from_dlpack(x.reshape(-1))
    return made


def _bytes(rows: Array) -> torch.Tensor:
    return _tensor(rows.reshape(-1).view(np.uint8))
