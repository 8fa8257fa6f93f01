"""Work with files that succeeds on all ranks or fails on all, with one message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sparse_mpi.comm import Comm

QUOTED = 3  # ranks whose problems are quoted


class CheckpointError(RuntimeError):
    """Raised on every rank, with one message, when a checkpoint could not be written or read."""


@contextmanager
def together(comm: Comm, failure: str, advice: str) -> Iterator[None]:
    """Run the body, which must not communicate; if it fails on any rank, raise the same CheckpointError on all.

    It says ``failure``, the first ranks' problems, and ``advice``.
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
    kind = "" if isinstance(problem, (OSError, ValueError)) else f"{type(problem).__name__}: "
    said = "" if problem is None else f"rank {comm.rank}: {kind}{problem}"
    problems = [text for text in texts_of(comm, said) if text]
    more = f" and {len(problems) - QUOTED} more ranks" if len(problems) > QUOTED else ""
    raise CheckpointError(f"{failure}: {'; '.join(problems[:QUOTED])}{more}; {advice}") from problem


def texts_of(comm: Comm, text: str) -> list[str]:
    """Return the texts of all ranks. Collective."""
    rows, counts = comm.allgatherv(np.frombuffer(text.encode(errors="backslashreplace"), np.uint8))
    return [part.tobytes().decode() for part in np.split(np.asarray(rows), np.cumsum(counts)[:-1])]
