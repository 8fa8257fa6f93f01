"""Which ranks share a node, and with it what it has, such as GPUs."""

from __future__ import annotations

import numpy as np

from sparse_mpi.comm.base import Comm


def place_on_node(comm: Comm) -> tuple[int, int]:
    """Return the place of this rank among those of its node, from 0, and how many they are. Collective."""
    nodes = comm.allgather(np.array([comm.node()], np.int64), control=True)[:, 0]
    here = nodes == nodes[comm.rank]
    return int(here[: comm.rank].sum()), int(here.sum())
