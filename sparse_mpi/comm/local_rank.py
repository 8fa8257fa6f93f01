"""Which ranks share a host, and with it what it has, such as memory and GPUs."""

from __future__ import annotations

import numpy as np

from sparse_mpi.comm.base import Comm, Counts


def host_leader(comm: Comm) -> int:
    """Return the lowest of the ranks on the host of this one, itself included. Collective; not counted as traffic."""
    hosts = hosts_of(comm)
    return int((hosts == hosts[comm.rank]).argmax())  # argmax: the first True


def local_rank(comm: Comm) -> tuple[int, int]:
    """Return the number of this rank among those of its host, from 0, and how many they are. Collective."""
    hosts = hosts_of(comm)
    comm.barrier()  # no rank goes on alone, also where a transport knows the hosts without asking
    here = hosts == hosts[comm.rank]
    return int(here[: comm.rank].sum()), int(here.sum())


def hosts_of(comm: Comm) -> Counts:
    """Return a number of the host of each rank (P,). Collective."""
    hosts = comm.job.hosts
    return np.zeros(comm.size, np.int64) if hosts is None else hosts()
