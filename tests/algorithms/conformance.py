"""Steps that tests look into: `sparse_mpi.testing` has the laws that hold for each of them."""

from __future__ import annotations

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.testing.cases import Case
from sparse_mpi.testing.steps import Step, same_bytes, taken


def train(comm, algorithm, case: Case, dtype, steps: int, **options) -> list[Step]:
    """Steps with error feedback on fresh gradients, which obey both laws."""
    reducer = SparseAllreduce(case.layout, k=case.k, comm=comm, algorithm=algorithm, **options)
    return taken(reducer, case, dtype, range(steps))


def assert_same_as_in_world(ranks, *jobs) -> None:
    """On MPI each of the ``jobs(comm)``, which return steps, gives the bytes of a World, and counts as much traffic."""
    for job in jobs:
        for here, simulated in zip(ranks.run(job), World(ranks.size).run(job), strict=True):
            for one, other in zip(here, simulated, strict=True):
                assert same_bytes(one.total, other.total) and one.given.tobytes() == other.given.tobytes()
                assert counted(one.report.traffic) == counted(other.report.traffic)


def counted(traffic) -> list[int]:
    return [getattr(traffic, each) for each in ("sent", "received", "messages", "control")]
