"""Stripes: an owner adds up every P-th entry; who owns which changes from step to step."""

from dataclasses import dataclass

import numpy as np

from sparse_mpi.algorithms import Algorithm, Bound, Reduction
from sparse_mpi.select import Exact, Selector
from sparse_mpi.sparse import NoState, merge, take
from sparse_mpi.wire import decode, encode

ARRIVED = []  # ranks, as they come: what the order of a sum must not go by


@dataclass(frozen=True)
class Turn:
    step: int = 0


@dataclass(frozen=True)
class Stripes(Algorithm):
    selector: Selector = Exact()

    def init(self, layout, k, ranks):
        return Turn()

    def reduce(self, acc, k, comm, state, layout, add=None):
        chosen, _ = self.selector.select(acc, k, NoState())
        # Send every entry to its owner
        owners = (chosen.indices + state.step) % comm.size
        ordered = take(chosen, np.argsort(owners, kind="stable"))
        ARRIVED.append(comm.rank)
        rows, came = comm.alltoallv(encode(ordered), np.bincount(owners, minlength=comm.size))
        # Add up in rank order
        parts, order = np.split(rows, np.cumsum(came)[:-1]), range(comm.size)
        owned = merge(decode(np.concatenate([parts[rank] for rank in order]), len(acc), acc.dtype))
        # Pass the sums on
        rows, _ = comm.allgatherv(encode(owned))
        total = merge(decode(rows, len(acc), acc.dtype))
        return Reduction(total, chosen), Turn(state.step + 1)

    def bound(self, layout, k, ranks):
        pairs = min(k, layout.size) + min(k * ranks, layout.size) * (ranks - 1)
        return Bound(pairs, 0, 2 * ranks + 8, 8 * ranks)


def remembered(algorithm):
    """How often an instance was asked: what it must not go by."""
    object.__setattr__(algorithm, "asked", getattr(algorithm, "asked", -1) + 1)
    return algorithm.asked
