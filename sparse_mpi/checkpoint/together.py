"""Work with files that succeeds on all ranks or fails on all, with one message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sparse_mpi.comm import Comm

QUOTED = 3  # ranks whose problems are told


class CheckpointError(RuntimeError):
    """Raised on every rank, with the same message, when a checkpoint could not be written or read."""


@contextmanager
def together(comm: Comm, failure: str, advice: str) -> Iterator[None]:
    """Run the body, and raise on all ranks if it failed on any; the body itself must not communicate.

    Args:
        comm: between the ranks.
        failure: begins the error; the same on all ranks.
        advice: ends the error; the same on all ranks.

    Raises:
        CheckpointError: the body raised an exception on any rank; it quotes the first ones.
    """
    problem: Exception | None = None
    try:
        yield
    except Exception as error:
        problem = error
    # In the usual case one small allreduce shows that all went well
    if not comm.allreduce(np.array([problem is not None], np.int32), "max", control=True)[0]:
        return
    # Otherwise gather the errors of all ranks, so that all raise the same
    said = "" if problem is None else f"rank {comm.rank}: {_described(problem)}"
    rows, counts = comm.allgatherv(np.frombuffer(said.encode(), np.uint8))
    parts = np.split(np.asarray(rows), np.cumsum(counts)[:-1])
    problems = [part.tobytes().decode() for part in parts if len(part)]
    more = f" and {len(problems) - QUOTED} more ranks" if len(problems) > QUOTED else ""
    raise CheckpointError(f"{failure}: {'; '.join(problems[:QUOTED])}{more}; {advice}") from problem


def _described(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.strerror}: {problem.filename}"
    return f"{problem}" if isinstance(problem, ValueError) else f"{type(problem).__name__}: {problem}"
