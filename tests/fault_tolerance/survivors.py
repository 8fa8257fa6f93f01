"""Training in a `World` that loses ranks: what those that are left have reduced."""

from __future__ import annotations

import numpy as np

from sparse_mpi.comm.world import World
from sparse_mpi.fault_tolerance import ElasticAllreduce, Team
from sparse_mpi.testing.steps import dense_of

RANKS, SIZE, STEPS = 5, 300, 8


def gradient(rank, step):
    return np.random.default_rng([rank, step]).integers(-64, 64, SIZE).astype(np.float32)


def train(leave, algorithm="oktopk", steps=STEPS, ranks=RANKS, **options):
    return World(ranks, leave=leave).run(lambda comm: trained(comm, algorithm, steps, **options))


def trained(comm, algorithm="oktopk", steps=STEPS, **options):
    rank = comm.rank
    reducer = ElasticAllreduce(SIZE, density=0.05, comm=comm, algorithm=algorithm, **options)
    totals = []
    for step in range(steps):
        totals.append((dense_of(reducer.step(gradient(rank, step))), reducer.ranks))
    return totals, reducer.residual.copy(), reducer.departures, reducer.inherited


def relieved(comm, spares, steps=STEPS, algorithm="oktopk", min_ranks=1):
    """What a rank has seen whose team has spares: its first step, totals by step, residual, members, departures."""
    team = Team(comm, spares=spares, min_ranks=min_ranks)
    reducer = ElasticAllreduce(SIZE, density=0.05, team=team, algorithm=algorithm, copy_every=1, copy="exact")
    state = team.stand_by()
    if team.waits:
        team.close()
        return "never called"
    first, totals = int(state or 0), {}
    for step in range(first, steps):
        if step > first or state is None:
            team.recruit(lambda step=step: str(step).encode())
        totals[step] = dense_of(reducer.step(gradient(team.number, step)))
    team.close()
    return first, totals, reducer.residual.copy(), team.members, team.departures


def facts(result):
    totals, residual, lost, heirs = result
    return ([(total.tobytes(), ranks) for total, ranks in totals], residual.tobytes(), [d[:3] for d in lost], heirs)
