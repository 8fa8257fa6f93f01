"""Members of `Comm` in release 0.2, which go on working for one more."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from sparse_mpi.comm.base import elastic_of
from sparse_mpi.comm.forwarding import Renumbered
from sparse_mpi.comm.local_rank import host_leader

# Name -> what to write, and what returns that
FORMER: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "calls": ("comm.traffic.calls", lambda comm: comm.traffic.calls),
    "elastic": ("comm.job.elastic is not None", lambda comm: comm.job.elastic is not None),
    "node": ("sparse_mpi.comm.local_rank.host_leader(comm)", lambda comm: partial(host_leader, comm)),
    "renumbered": ("sparse_mpi.comm.forwarding.Renumbered(comm, first)", lambda comm: partial(Renumbered, comm)),
}


def _of_job(name: str, comm: Any) -> Any:
    return getattr(comm.job, name)


def _of_elastic(name: str, comm: Any) -> Any:
    return getattr(elastic_of(comm), name)


FORMER |= {name: (f"comm.job.{name}", partial(_of_job, name)) for name in ("abort", "guard", "begin_reduction")}
FORMER |= {
    name: (f"comm.job.elastic.{new}", partial(_of_elastic, new))
    for name, new in {
        **{same: same for same in ("broken", "revoke", "shrink", "wait_for_end")},
        **{"fail_alone": "exit_without_abort", "within": "deadline", "patient": "yielding"},
    }.items()
}


def former_member(comm: Any, name: str) -> Any:
    """Return, with a warning, what a former member of ``comm`` is now.

    Raises:
        AttributeError: there was none of this name.
    """
    if name not in FORMER:
        raise AttributeError(f"{type(comm).__name__} has no attribute {name!r}")
    new, value = FORMER[name]
    # Level 1 is this function, 2 the `__getattr__` that calls it, 3 the user's line.
    warnings.warn(f"comm.{name} is deprecated: write {new}", DeprecationWarning, stacklevel=3)
    return value(comm)
