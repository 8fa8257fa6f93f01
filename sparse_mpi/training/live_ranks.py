"""Questions to the surviving ranks, in order behind the reductions under way: `LiveRanks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import Handle, progress_thread_of
from sparse_mpi.comm.consistency import check_consistency
from sparse_mpi.fault_tolerance.team import Team
from sparse_mpi.reduction.clipping import norm_of_mean, sketched

T = TypeVar("T")
SURVIVAL = ("copy_every", "copy", "min_ranks")  # options of `ElasticAllreduce`


def ranks_given(comm: object, options: dict[str, T]) -> tuple[Comm, Team | None, dict[str, T]]:
    """Return the ranks of ``comm``, the team if it is one, and options of survival, taken out of ``options``."""
    if isinstance(comm, Team):
        return comm.comm, comm, {name: options.pop(name) for name in SURVIVAL if name in options}
    transport = as_comm(comm)
    transport.job.guard()  # a rank ended by an exception would keep the others waiting
    return transport, None, {}


def refuse_copy(x: object, protocol: Any) -> Any:
    """Raise TypeError: the ``__reduce_ex__`` of what works with other ranks."""
    raise TypeError(
        f"{type(x).__name__} must not be copied or pickled, for it takes part in the messages of its ranks; "
        "save its state, and load that into another one"
    )


class LiveRanks:
    """The ranks of ``comm``, or the survivors of ``team``."""

    def __init__(self, comm: Comm, team: Team | None) -> None:
        self._comm, self.team = comm, team

    @property
    def comm(self) -> Comm:
        return self._comm if self.team is None else self.team.comm

    def begin(self, question: Callable[[Comm], T]) -> Handle[T]:
        # After a loss the surviving ranks ask again, on their new communicator
        def work() -> T:
            return question(self._comm) if self.team is None else self.team.transaction(lambda: question(self.comm))

        # The first communicator's thread works for all later ones, in one order
        return progress_thread_of(self._comm).start(work)

    def ask(self, question: Callable[[Comm], T]) -> T:
        return self.begin(question).wait()

    def any(self, mine: np.ndarray) -> np.ndarray:
        return self.ask(lambda comm: np.asarray(comm.allreduce(mine, "max", control=True)))

    def norm_of_mean(self, gradients: Sequence[Tensor], limit: float) -> float:
        """Return the norm of the mean over the ranks, precise around ``limit``, see `clipping`. Collective.

        The first message names the call: other ranks may be in another one.
        """

        def norm(comm: Comm) -> float:
            check_consistency(comm, "call=step clip_norm")
            return norm_of_mean(sketched(gradients, comm.size), limit, comm)

        return self.ask(norm)
