"""Arrays on a device over the NCCL of a torch.distributed group: the `Device` of a `ProcessGroupComm`.

There is no second communicator: torch launches these calls and its own in one order, and its watchdog sees both. Calls
are queued on CuPy's current stream, without a wait of the host: memory freed afterwards is reused on that stream only
after the call. Rows are bytes to NCCL; CuPy's arrays enter by DLPack, not copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import numpy as np
import torch
import torch.distributed as dist

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm.base import Counts
from sparse_mpi.comm.buffers import row_bytes

BACKEND = "cuda:nccl"  # NCCL's entry in the configuration of a group
OPS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


def has_nccl(group: Any) -> bool:
    """Tell if a process group (None: the default) has NCCL for arrays on this process's GPUs."""
    return BACKEND in dist.get_backend_config(group).split(",") and torch.cuda.is_available()


class DeviceGroup:
    """The NCCL of ``group`` (None: the default one), with ``ranks`` of the default group, as a `Device`.

    Raises:
        RuntimeError: from calls, once the group has been destroyed.
    """

    def __init__(self, group: Any, ranks: Sequence[int]) -> None:
        # Weak, for wrappers live as long as their groups
        self._kept = ref(dist.group.WORLD if group is None else group)
        self._ranks = list(ranks)
        self._met: set[int] = set()  # numbers of the devices for which torch has a communicator
        # By the ranks of communicators that are split off, which share it with their like
        self._parts: dict[tuple[int, ...], DeviceGroup] = {}

    @property
    def _group(self) -> Any:
        group = self._kept()
        if group is None:  # torch would take None for the default group
            raise RuntimeError("the process group of comm must last while comm is used, it has been destroyed")
        return group

    def part(self, ranks: Sequence[int]) -> DeviceGroup | None:
        """Return the group of some ranks, made by torch if not all; collective among these.

        None if ranks do not ascend, because torch would sort them, or if the default group is bound to a device
        (``device_id``) and has more ranks than this one: torch then splits its communicator, in which all its ranks
        must take part.
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

    def meet(self, x: Any) -> None:
        if x.device.id not in self._met:  # torch has a communicator of each, whose first call must be one of all ranks
            self.allreduce(namespace(x).zeros(1, np.int32), "sum")
            self._met.add(x.device.id)

    def allgather(self, send: Array, out: Array) -> None:
        with _queued(send):
            dist.all_gather_into_tensor(_bytes(out), _bytes(send), group=self._group)

    def allgatherv(self, send: Array, out: Array, counts: Counts) -> None:
        # One group of broadcasts into the parts of the result: nothing is padded, nothing copied.
        with _queued(send):
            arriving = _bytes(out).split((counts * row_bytes(send)).tolist())
            dist.all_gather(list(arriving), _bytes(send), group=self._group)

    def alltoallv(self, send: Array, counts: Counts, out: Array, came: Counts) -> None:
        size = row_bytes(send)
        with _queued(send):
            lengths = (came * size).tolist(), (counts * size).tolist()
            dist.all_to_all_single(_bytes(out), _bytes(send), *lengths, group=self._group)

    def allreduce(self, x: Array, op: str) -> None:
        with _queued(x):
            dist.all_reduce(_tensor(x), op=OPS[op], group=self._group)

    def broadcast(self, x: Array, root: int) -> None:
        with _queued(x):
            dist.broadcast(_bytes(x), self._ranks[root], group=self._group)

    def exchange(self, leaving: Mapping[int, Array], arriving: Mapping[int, Array]) -> None:
        ways: tuple[tuple[Any, Mapping[int, Array]], ...] = (dist.irecv, arriving), (dist.isend, leaving)
        moves = [(move, rows, peer) for move, messages in ways for peer, rows in messages.items() if rows.nbytes]
        if moves:
            with _queued(moves[0][1]):
                batch = [dist.P2POp(move, _bytes(rows), self._ranks[peer], self._group) for move, rows, peer in moves]
                for work in dist.batch_isend_irecv(batch):
                    work.wait()


@contextmanager
def _queued(x: Any) -> Iterator[None]:
    """Have torch work on CuPy's current stream."""
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
