"""``cupy.cuda.nccl`` pretended: what its communicators move goes over the `Comm` of the rank that made them.

As strict as NCCL and CuPy's calls of it: arrays must be as long as what comes, a group is moved as one and must be
ended, a stream must be the current one, identifiers have the type of CuPy 14 or the one before, and communicators that
are gone are of no use.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from types import SimpleNamespace

import numpy as np

from sparse_mpi.comm.job import nccl_watchdog

from .fake_device import CUDA, DEVICE

TYPES = "INT8 UINT8 INT32 UINT32 INT64 UINT64 FLOAT32 FLOAT64".split()
UNIQUE_ID_BYTES = 128


class NcclError(RuntimeError):
    """``cupy.cuda.nccl.NcclError``."""


class Nccl:
    NCCL_SUM, NCCL_MAX = 0, 2

    def __init__(self) -> None:
        self.names = dict(enumerate(TYPES))
        for number, name in self.names.items():
            setattr(self, f"NCCL_{name}", number)
        self.calls: list[str] = []  # of all ranks of this process
        self.id_type: type = bytes  # of CuPy 14; before it a tuple of signed bytes
        self.failed = False  # the network, say
        self._numbers = itertools.count(1)
        self._rank = threading.local()

    def over(self, comm) -> None:
        """Have communicators that this rank makes use ``comm``, of which all ranks make theirs at the same time."""
        self._rank.comm, self._rank.group = comm, None
        self.hide(False)

    def hide(self, hidden: bool) -> None:
        """Have this rank's CuPy find no library."""
        self._rank.hidden = hidden

    @property
    def available(self) -> bool:
        return not self._rank.hidden

    def get_version(self) -> int:
        return 22700

    def get_unique_id(self) -> bytes | tuple[int, ...]:
        if self.failed:
            raise NcclError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")
        number = (next(self._numbers) + 100_000 * self._rank.comm.rank) * 251  # with bytes beyond 127
        made = number.to_bytes(UNIQUE_ID_BYTES, "little")
        return made if self.id_type is bytes else tuple(np.frombuffer(made, np.int8).tolist())

    def groupStart(self) -> None:
        assert self._rank.group is None, "a group within a group"
        self._rank.group = []

    def groupEnd(self) -> None:
        """Move everything: what goes to the next rank, to the one after it, and so on."""
        moves, self._rank.group = self._rank.group, None
        assert moves is not None, "no group was started"
        if self.failed:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: invalid usage")
        if not moves:
            return
        self.calls.append("group")
        (comm,) = {communicator.comm for communicator, *_ in moves}
        if moves[0][1] == "broadcast":
            for _, _, root, (given, room) in moves:
                room[:] = filling(comm.bcast(given, root), room)
            return
        leaving = {peer: rows for _, outward, peer, rows in moves if outward}
        arriving = {peer: rows for _, outward, peer, rows in moves if not outward}
        assert len(leaving) + len(arriving) == len(moves), "a message to one rank a group"
        for step in range(comm.size):
            dest, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
            if dest in leaving or source in arriving:
                send = leaving.get(dest, np.empty(0, np.uint8))
                came = comm.sendrecv(send, dest if dest in leaving else None, source if source in arriving else None)
                if came is not None:
                    arriving[source][:] = filling(came, arriving[source])

    def NcclCommunicator(self, size: int, unique_id: bytes | tuple[int, ...], rank: int) -> Communicator:
        if type(unique_id) is not self.id_type:
            raise TypeError(f"Argument 'commId' has incorrect type (expected {self.id_type}, got {type(unique_id)})")
        made = unique_id if isinstance(unique_id, bytes) else np.array(unique_id, np.int8).tobytes()
        assert len(made) == UNIQUE_ID_BYTES
        comm = self._rank.comm.split(int.from_bytes(made, "little"))
        assert (comm.rank, comm.size) == (rank, size)
        return Communicator(self, comm)

    def memory(self, address: int, count: int, kind: int, stream: int) -> np.ndarray:
        """The device memory that is meant, as it is when all that was queued on the stream is done."""
        assert stream == DEVICE.stack[-1].ptr, "another stream than the current one"
        DEVICE.stack[-1].flush("device")
        DEVICE.stack[-1].work.finish()
        dtype = np.dtype(self.names[kind].lower())
        return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)


class Communicator:
    """``NcclCommunicator``."""

    def __init__(self, nccl: Nccl, comm) -> None:
        self.nccl, self.comm = nccl, comm
        self.gone = ""  # how it was given up

    def __getattribute__(self, name: str):
        """A communicator that is gone is a null pointer to NCCL."""
        found = super().__getattribute__(name)
        if callable(found) and name not in ("destroy", "abort") and super().__getattribute__("gone"):
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: invalid argument")
        return found

    def check_async_error(self) -> None:
        if self.nccl.failed:
            raise NcclError("NCCL_ERROR_UNHANDLED_CUDA_ERROR: remote process exited or there was a network error")

    def abort(self) -> None:
        self.gone = self.gone or "aborted"

    def destroy(self) -> None:
        self.gone = self.gone or "destroyed"

    def send(self, address, count, kind, peer, stream):
        if self.nccl.failed:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: invalid argument")
        self.nccl._rank.group.append((self, True, peer, self.nccl.memory(address, count, kind, stream)))

    def recv(self, address, count, kind, peer, stream):
        self.nccl._rank.group.append((self, False, peer, self.nccl.memory(address, count, kind, stream)))

    def allGather(self, send, out, count, kind, stream):
        self.nccl.calls.append("allGather")
        gathered = self.comm.allgather(self.nccl.memory(send, count, kind, stream))
        self.nccl.memory(out, count * self.comm.size, kind, stream)[:] = gathered.reshape(-1)

    def allReduce(self, send, out, count, kind, op, stream):
        self.nccl.calls.append("allReduce")
        name = {self.nccl.NCCL_SUM: "sum", self.nccl.NCCL_MAX: "max"}[op]
        self.nccl.memory(out, count, kind, stream)[:] = self.comm.allreduce(
            self.nccl.memory(send, count, kind, stream), name
        )

    def broadcast(self, send, out, count, kind, root, stream):
        given, room = (self.nccl.memory(address, count, kind, stream) for address in (send, out))
        if self.nccl._rank.group is not None:
            self.nccl._rank.group.append((self, "broadcast", root, (given, room)))
            return
        self.nccl.calls.append("broadcast")
        room[:] = filling(self.comm.bcast(given, root), room)


def filling(came: np.ndarray, room: np.ndarray) -> np.ndarray:
    assert len(came) == len(room), f"{len(came)} bytes came where {len(room)} were expected"
    return came


def install(monkeypatch) -> Nccl:
    """On top of `fake_array.install`."""
    nccl = Nccl()
    # Tests poll by themselves
    monkeypatch.setattr(nccl_watchdog, "WATCHDOG_THREAD", SimpleNamespace(add=lambda _: None))
    monkeypatch.setattr(CUDA, "nccl", nccl, raising=False)
    monkeypatch.setitem(sys.modules, "cupy.cuda", CUDA)
    return nccl
