"""A view of a communicator through which host arrays travel as device arrays."""

from __future__ import annotations

import sys

from sparse_mpi.arrays import to_host
from sparse_mpi.comm.forwarding import ForwardingComm


class OnDevice(ForwardingComm):
    """Give ``comm`` copies on the device of host arrays, and return copies on the host of what comes."""

    def _move(self, name: str, send, *others):
        results = getattr(self._comm, name)(sys.modules["cupy"].asarray(send), *others)
        return tuple(map(to_host, results)) if isinstance(results, tuple) else to_host(results)

    def sendrecv(self, send, dest, source):
        return self._move("sendrecv", send, dest, source)

    def allgather(self, send, control=False):
        return self._move("allgather", send, control)

    def allgatherv(self, send, counts=None):
        return self._move("allgatherv", send, counts)

    def alltoallv(self, send, counts, expected=None):
        return self._move("alltoallv", send, counts, expected)

    def allreduce(self, send, op="sum", control=False):
        return self._move("allreduce", send, op, control)

    def bcast(self, send, root=0, control=False):
        return self._move("bcast", send, root, control)

    def duplicate(self, yield_cpu=False):
        return OnDevice(self._comm.duplicate(yield_cpu))

    def split(self, color):
        return OnDevice(self._comm.split(color))
