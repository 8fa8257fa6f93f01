"""`ProcessGroupComm`: the transport over torch.distributed, for jobs of torchrun without MPI.

Arrays in host memory go to its own gloo group, as tensors of bytes, not copied. Arrays on a device go over the given
group's NCCL, see `device_group`, or through host memory where some rank's group has none. A message of unknown length
begins with a head of its rows and bytes a row, always over gloo.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import count
from socket import gethostname
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from sparse_mpi.arrays import Array
from sparse_mpi.comm.base import Counts, Job, hashed
from sparse_mpi.comm.buffers import announced_rows, cut, empty_rows, header, peers
from sparse_mpi.comm.counting import CountingComm
from sparse_mpi.comm.device_group import BACKEND, OPS, DeviceGroup, has_nccl
from sparse_mpi.comm.job.call_log import DUPLICATE
from sparse_mpi.comm.job.store_watchdog import StoreWatchdog
from sparse_mpi.comm.job.uncaught import Abort
from sparse_mpi.comm.job.watchdog import time_limit, wants_watchdog
from sparse_mpi.comm.reducible import reduced

_HEAD, _ROWS = 1, 2  # tags
HEAD = 16  # bytes of a head
FEW = 1 << 14  # bytes of rows that travel behind their head in one message: another one costs 340 bytes more
GATHERED = 1 << 10  # bytes of integers that are gathered and reduced by every rank: gloo's messages would cost more
_ALL = -1  # the number under which groups are made that are parts of none of ours
_WATCHDOGS: WeakKeyDictionary[Any, StoreWatchdog] = WeakKeyDictionary()  # default group -> its watchdog


class ProcessGroupComm(CountingComm):
    """A communicator of a torch.distributed process group's ranks (None: the default one).

    Its gloo group is unknown to torch. Making one is collective over these ranks. Floating-point sums are in gloo's
    order, the same on all ranks. With a ``parent`` the ranks are the parent's, or ``some``, by ascending numbers there.
    For its watchdog see `sparse_mpi.watch`.

    If the group has NCCL on all ranks, NCCL carries device arrays (``staged`` is False): on the current stream, without
    a wait, in the group's communicator. NCCL needs one order of all calls on all ranks, so reductions do not run beside
    the backward pass (``concurrent`` is False), and in a call all ranks or none have their array on a device. A
    duplicate shares the group. A part has one made by torch; but its arrays pass through host memory if
    ``init_process_group`` was given a ``device_id`` and ``group`` is not all of the job.

    Raises:
        RuntimeError: torch.distributed was not initialised.
        ValueError: SPARSE_MPI_TIMEOUT or SPARSE_MPI_WATCH has an invalid value.
        TypeError: ``group`` is no process group, or this process is not in it.
    """

    device: DeviceGroup | None

    def __init__(
        self, group: object = None, some: Sequence[int] | None = None, parent: ProcessGroupComm | None = None
    ) -> None:
        members = _members(group) if parent is None else parent._ranks
        # By their numbers in the default group.
        self._ranks: list[int] = members if some is None else [members[rank] for rank in some]
        # The calls that have made communicators of these ranks, in their order, tell them apart.
        above = _name_of(group) if parent is None else f"{parent._name}/{next(parent._made)}"
        self._name: str = f"{above}/{self._ranks[0]}"
        self._made: Iterator[int] = count()
        self._number: int = hashed(self._name)  # name for the watchdog
        limit = time_limit(None)
        watchdog = _watchdog(limit) if wants_watchdog(limit) else _WATCHDOGS.get(dist.group.WORLD)
        # A rank that does not come leaves the others waiting: the watchdog learns of that call, too.
        watched = parent.watched if parent is not None else None
        if watchdog is not None and watched is None:
            watched = watchdog.log.over(_ALL, self._ranks)
        with nullcontext() if watched is None else watched.log.during(DUPLICATE, watched.family):
            # torch's new_group takes names from how many groups a process is in, by which its ranks may differ.
            torch_dist: Any = dist
            store = torch_dist.PrefixStore(self._name, torch_dist.distributed_c10d._get_default_store())
            rank = self._ranks.index(dist.get_rank())
            self._group: Any = torch_dist.ProcessGroupGloo(store, rank, len(self._ranks), dist.default_pg_timeout)
            _living.add(self)
            self._barrier()  # gloo fails on a rank that still connects to one which has let its group go
        super().__init__(rank, len(self._ranks))
        if parent is None:
            lacking = np.flatnonzero(self._allgather(np.array(not has_nccl(group))))
            self._lacking: tuple[int, ...] = tuple(lacking.tolist())
            self.device = None if self._lacking else DeviceGroup(group, self._ranks)
        else:
            self._lacking = parent._lacking
            self.device = None if parent.device is None else parent.device.part(self._ranks)
        # Threads of ranks would launch in orders of their own, which NCCL does not allow.
        self.staged = self.concurrent = self.device is None
        if watchdog is not None:
            self.watched = watchdog.log.over(self._number, self._ranks)

    def _require_running(self) -> None:  # guarded in a forked child only
        raise RuntimeError("comm must be used by the process that made it, got a call in a forked child of that")

    def duplicate(self, yield_cpu: bool = False) -> ProcessGroupComm:
        return ProcessGroupComm(parent=self)

    @property
    def job(self) -> Job:
        """Return the processes of this job; if one ends, torchrun ends the others."""
        abort = Abort(self.rank, self.size, lambda: os._exit(1))
        return super().job._replace(hosts=self._hosts, abort=abort, guard=abort.guard, watch=self._watch)

    def _hosts(self) -> Counts:
        return np.asarray(self._allgather(np.array(hashed(gethostname()))))

    def _watch(self, timeout: float | None) -> None:
        watchdog = _watchdog(time_limit(timeout))
        if watchdog is not None:
            if timeout is not None:
                watchdog.timeout = time_limit(timeout)
            if self.watched is None:
                self.watched = watchdog.log.over(self._number, self._ranks)

    def _split(self, color: int) -> ProcessGroupComm:
        colors = self._allgather(np.array(color))
        return ProcessGroupComm(None, np.flatnonzero(colors == color).tolist(), self)

    def _download(self, send: Array) -> np.ndarray:
        if self.rank == 0 and self.size > 1:
            _warn_of_staging(self._lacking, self.size)
        return super()._download(send)

    def _sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        if source == self.rank:
            return send.copy()
        leaving = {} if dest is None or dest == self.rank else {dest: send}
        came, _ = self._traded(leaving, [] if source is None else [source], send)
        return None if source is None else came

    def _allgather(self, send: Array) -> Array:
        out = np.empty((self.size, *send.shape), send.dtype)
        if out.size:
            out[self.rank] = send
            # A message to each rank; gloo's ring takes twice as many, one after the other.
            self._exchange([send] * self.size, list(out.reshape(self.size, -1)))
        return out

    def _allgatherv(self, send: Array, counts: Counts | None) -> tuple[Array, Counts]:
        if counts is None:
            return self._traded(dict.fromkeys(range(self.size), send), self._others(), send)
        # Messages from rank to rank, since gloo's all_gather takes arrays of one length only.
        out = empty_rows(send, int(counts.sum()))
        arriving = cut(out, counts)
        arriving[self.rank][...] = send
        self._exchange([send] * self.size, arriving)
        return out, counts.copy()

    def _alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]:
        leaving, sources = dict(enumerate(cut(send, counts))), self._others()
        if expected is None:
            return self._traded(leaving, sources, send)
        # Empty messages are not sent.
        leaving = {dest: rows for dest, rows in leaving.items() if len(rows)}
        return self._traded(leaving, [source for source in sources if expected[source]], send, expected)

    def _others(self) -> list[int]:
        return [source for _, source in peers(self.rank, self.size)]

    def _traded(
        self, leaving: dict[int, Array], sources: Sequence[int], send: Array, expected: Counts | None = None
    ) -> tuple[Array, Counts]:
        """Return the rows of ``sources`` and their counts (P,); ``leaving`` are the rows for each rank."""
        # A message begins with its head. Few rows are in it, for which receivers have room; many follow by themselves.
        rooms = {source: np.empty(HEAD + FEW, np.uint8) for source in sources}
        heads = [work for source, room in rooms.items() for work in self._irecv(room, source, _HEAD)]
        # Announce: heads are on their way before this rank waits for one, so that no two ranks wait for each other.
        announced, works = [], []
        for dest, rows in leaving.items():
            if dest != self.rank:
                head, many = header(send, len(rows)).view(np.uint8), rows.nbytes > FEW
                message = head if many else np.concatenate([head, rows.reshape(-1).view(np.uint8)])
                announced += self._isend(message, dest, _HEAD)
                works += self._isend(rows, dest) if many else []
        _wait(heads)
        came = np.zeros(self.size, np.int64)
        came[self.rank] = len(leaving.get(self.rank, ()))
        try:
            # Check the announced lengths before more rows are received.
            for source, room in rooms.items():
                came[source] = announced_rows(room[:HEAD].view(np.int64), send, source)
            if expected is not None and (came != expected).any():
                source = int(np.flatnonzero(came != expected)[0])
                raise ValueError(f"expected[{source}] must be what rank {source} sends, got {expected[source]}")
        except (TypeError, ValueError):
            _wait(announced)  # gloo drops a message without a reference: the other rank would wait
            raise
        out = empty_rows(send, int(came.sum()))
        arriving = cut(out, came)
        if self.rank in leaving:
            arriving[self.rank][...] = leaving[self.rank]
        for source, room in rooms.items():
            rows = arriving[source]
            if rows.nbytes > FEW:
                works += self._irecv(rows, source)
            else:
                rows.reshape(-1).view(np.uint8)[...] = room[HEAD : HEAD + rows.nbytes]
        _wait(announced + works)
        return out, came

    def _allreduce(self, send: Array, op: str) -> Array:
        if send.dtype.kind in "iu" and send.nbytes <= GATHERED:  # exact in any order
            everything = self._allgather(send)
            return np.asarray(everything.max(axis=0) if op == "max" else everything.sum(axis=0, dtype=send.dtype))
        options = dist.AllreduceOptions()
        options.reduceOp = OPS[op]
        return reduced(send, op, lambda x: self._group.allreduce([torch.from_numpy(x.reshape(-1))], options).wait())

    def _bcast(self, send: Array, root: int) -> Array:
        rows = self._rows_of_root(send, root)  # others must make room
        out = send.copy() if self.rank == root else empty_rows(send, rows)
        return self._broadcast(out, root) if out.size else out

    def _rows_of_root(self, send: Array, root: int) -> int:
        return int(self._broadcast(np.array([len(send)], np.int64), root)[0])

    def _broadcast(self, rows: Array, root: int) -> Array:
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._group.broadcast([_bytes(rows)], options).wait()
        return rows

    def _barrier(self) -> None:
        self._group.barrier().wait()

    def _exchange(self, leaving: Sequence[Array], arriving: Sequence[Array]) -> None:
        works = [work for source in self._others() for work in self._irecv(arriving[source], source)]
        for dest, _ in peers(self.rank, self.size):
            works += self._isend(leaving[dest], dest)
        _wait(works)

    def _isend(self, rows: Array, dest: int, tag: int = _ROWS) -> list[Any]:
        return [self._group.send([_bytes(rows)], dest, tag)] if rows.size else []

    def _irecv(self, rows: Array, source: int, tag: int = _ROWS) -> list[Any]:
        return [self._group.recv([_bytes(rows)], source, tag)] if rows.size else []


@cache
def _warn_of_staging(lacking: tuple[int, ...], ranks: int) -> None:
    """Warn, once a process, that device arrays are copied to the host, and how to avoid it."""
    if lacking:
        who = "" if len(lacking) == ranks else f" on rank{'s' * (len(lacking) > 1)} {', '.join(map(str, lacking))}"
        why = f"the process group has no NCCL for them{who}; initialise torch.distributed with "
        why += "init_process_group('cpu:gloo,cuda:nccl') or init_process_group('nccl') on all ranks"
    else:
        why = "torch makes no group of a part of these ranks; leave device_id out of init_process_group"
    warnings.warn(f"gloo carries arrays on GPUs through host memory, since {why}", RuntimeWarning, stacklevel=2)


def _watchdog(limit: float) -> StoreWatchdog | None:
    group = dist.group.WORLD
    if group is not None and group not in _WATCHDOGS and dist.get_world_size() > 1:
        store, rank, size = ref(group), dist.get_rank(), dist.get_world_size()
        _WATCHDOGS[group] = StoreWatchdog(rank, size, lambda: _store_of(store), limit, lambda: os._exit(1))
    return _WATCHDOGS.get(group)


def _store_of(group: ref[Any]) -> object:
    """Return the store of the default group if ``group`` is it; a reference would hold its port."""
    try:
        return dist.distributed_c10d._get_default_store() if dist.group.WORLD is group() else None
    except ValueError:  # the group is being destroyed
        return None


_living: WeakSet[ProcessGroupComm] = WeakSet()


def _keep_for_parent() -> None:
    """Let no group go in a forked child, which lacks its threads."""
    kept = [dict(dist.distributed_c10d._world.pg_map), [comm._group for comm in _living]]
    for comm in _living:
        comm.guarded = True
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


os.register_at_fork(after_in_child=_keep_for_parent)


@atexit.register
def _let_go() -> None:
    """Free the gloo groups while their threads can be joined; later torch would abort the process."""
    for comm in _living:
        del comm._group


# torch forbids attributes of a process group
_wrappers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # numbers of communicators made of each
_kept: WeakKeyDictionary[Any, ProcessGroupComm] = WeakKeyDictionary()


def wrapped(group: object = None) -> ProcessGroupComm:
    """Return the `ProcessGroupComm` of a process group, or of a mesh's (None: the default one)."""
    if isinstance(group, DeviceMesh):
        group = _group_of(group)
    _members(group)
    key = dist.group.WORLD if group is None else group
    if key not in _kept:
        _kept[key] = ProcessGroupComm(group)
    return _kept[key]


def start_job() -> None:
    """Initialise the default process group, unless done: with NCCL beside gloo if each process here can have a GPU."""
    if not dist.is_initialized():
        # There are the addresses of processes that have ended, for which torch would look, and might wait.
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if restarts != "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            raise RuntimeError(
                f"torchrun must give each attempt a store of its own, got one that is shared in restart {restarts}; "
                "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun, and start that with --standalone or "
                "--rdzv-backend c10d"
            )
        gpus = torch.cuda.device_count() if dist.is_nccl_available() else 0
        if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > gpus:
            return dist.init_process_group("gloo")
        dist.init_process_group(f"cpu:gloo,{BACKEND}")
        # Or torch warns of it
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())


def _group_of(mesh: DeviceMesh) -> object:
    if mesh.ndim != 1:
        pick = f"mesh[{mesh.mesh_dim_names[0]!r}]" if mesh.mesh_dim_names else "mesh.get_group(0)"
        raise ValueError(f"comm must be a mesh of one dimension, got {mesh}; pick one, for example {pick}")
    return mesh.get_group() if mesh.get_coordinate() is not None else dist.GroupMember.NON_GROUP_MEMBER


def _name_of(group: Any) -> str:
    """Return a name for a communicator of ``group``, alike on all its ranks and unique there."""
    group = dist.group.WORLD if group is None else group
    return f"sparse_mpi/{group.group_name}/{next(_wrappers.setdefault(group, count()))}"


def _members(group: object) -> list[int]:
    if not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed must be initialised before a process group is used, it is not; "
            "call torch.distributed.init_process_group('gloo'), which under torchrun needs no more arguments"
        )
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group must be a torch.distributed process group that this process is in, got {group!r}")
    return dist.get_process_group_ranks(group)


def _bytes(rows: Array) -> torch.Tensor:
    """Return contiguous ``rows`` as a tensor ``(nbytes,)`` uint8, copied only if read-only."""
    flat = rows.reshape(-1).view(np.uint8)
    return torch.from_numpy(flat if flat.flags.writeable else flat.copy())


def _wait(works: list[Any]) -> None:
    for work in works:
        work.wait()
