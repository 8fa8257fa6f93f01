"""A view of a communicator through which host arrays travel as device arrays."""

from __future__ import annotations

import sys

from sparse_mpi.arrays import to_host
from sparse_mpi.comm.forwarding import ForwardingComm


class OnDevice(ForwardingComm):
    """Give ``comm`` copies on the device of host arrays, and return copies on the host of what comes."""

    def duplicate(self, yield_cpu=False):
        return OnDevice(self._comm.duplicate(yield_cpu))

    def split(self, color):
        return OnDevice(self._comm.split(color))


def _moved(name: str):
    def call(self, send, *others, **options):
        results = getattr(self._comm, name)(sys.modules["cupy"].asarray(send), *others, **options)
        return tuple(map(to_host, results)) if isinstance(results, tuple) else to_host(results)

    return call


for _name in ("sendrecv", "allgather", "allgatherv", "alltoallv", "allreduce", "bcast"):
    setattr(OnDevice, _name, _moved(_name))
