"""Check a transport: each call returns and counts the same as in a `World`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.comm.world import World
from sparse_mpi.testing.steps import same_bytes
from sparse_mpi.testing.trials import Trial, Trials, demand

TALKS = Trials(cases=("random",), dtypes=("float32", "float64", "int64", "uint8", "int32"), seeds=range(5))
COUNTERS = ("sent", "received", "messages", "control")


def check_transport(make: Callable[[int], Any], trials: Trials = TALKS) -> None:
    """Raise `ConformanceError` unless each call of `Comm` returns and counts the same as in a `World`.

    ``make(P)`` returns P ranks, with ``size`` and ``run(fn)``, which returns each rank's ``fn(comm)``, as a `World`.
    """
    trials.hold("check_transport", make, _obey, make)


def _obey(trial: Trial) -> None:
    ours, theirs = (ranks.run(lambda comm: _talk(comm, trial)) for ranks in (World(trial.ranks.size), trial.ranks))
    for rank, (expected, found) in enumerate(zip(ours, theirs, strict=True)):
        for call, one in expected.items():
            demand(same_bytes(one, found[call]), call, f"{one} on rank {rank}", found[call])


def _talk(comm: Comm, trial: Trial) -> dict[str, Any]:
    """Make all calls, also on derived communicators; return results and counts."""
    found: dict[str, Any] = {}
    before = comm.traffic.copy()
    for name, group in (("", comm), (" after split", comm.split(comm.rank % 2)), (" of a duplicate", comm.duplicate())):
        found |= {f"{call}{name}": result for call, result in _calls(group, trial).items()}
    # A sum whose bits depend on the order of its numbers: they need only be the same on every rank
    total = comm.allreduce(np.random.default_rng(comm.rank).standard_normal(99))
    found["an allreduce with the bytes of rank 0"] = total.tobytes() == comm.bcast(total).tobytes()
    traffic = comm.traffic - before
    return found | {f"traffic.{name}": getattr(traffic, name) for name in COUNTERS}


def _calls(comm: Comm, trial: Trial) -> dict[str, Any]:
    rng, P, me = np.random.default_rng(trial.seed), comm.size, comm.rank
    # Rank i has an array for each rank j: of uneven lengths, a third of them empty
    counts, shape = rng.integers(0, 3, (P, P)) * rng.integers(1, 9, (P, P)), ((), (3,), (2, 2))[trial.seed % 3]
    have = [[rng.integers(0, 99, (rows, *shape)).astype(trial.dtype) for rows in row] for row in counts]
    small = 1 + 127 // P  # sums fit into a byte: MPI libraries may wrap around, or saturate
    alike = rng.integers(0, small, (P, 4, *shape)).astype(trial.dtype)[me]
    send = np.repeat(np.concatenate(have[me]), 2, axis=0)[::2]  # array with strides
    lengths = counts.sum(axis=1)
    comm.barrier()
    return {
        "allgather": comm.allgather(alike),
        "allgatherv": comm.allgatherv(send),
        "allgatherv of counts": comm.allgatherv(send, lengths),
        "alltoallv": comm.alltoallv(send, counts[me]),
        "alltoallv of expected": comm.alltoallv(send, counts[me], counts[:, me]),
        "alltoallv of equal parts": comm.alltoallv(np.repeat(alike[:1], 2 * P, axis=0)),
        "sendrecv around": comm.sendrecv(have[me][(me + 1) % P], (me + 1) % P, (me - 1) % P),
        "sendrecv to rank 0": [
            comm.sendrecv(have[me][0], 0 if me == source else None, source if me == 0 else None) for source in range(P)
        ],
        "allreduce": [comm.allreduce(alike, op) for op in ("sum", "max")],
        "bcast": [comm.bcast(have[me][root] if me == root else send[:0], root) for root in range(P)],
        "new arrays": [np.shares_memory(alike, made) for made in (comm.allreduce(alike), comm.bcast(alike))],
    }
