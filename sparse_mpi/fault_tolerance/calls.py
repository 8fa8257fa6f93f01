"""A communicator of the ranks that are left, for what a program does besides reducing gradients: `TeamComm`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import Counts, Take
from sparse_mpi.comm.passing import Passing
from sparse_mpi.comm.traffic import Traffic
from sparse_mpi.fault_tolerance.team import Team

T = TypeVar("T")


class TeamComm(Passing):
    """A `Comm` whose every call is a transaction of a team: all ranks that are left have its result, or make it again.

    ``rank`` and ``size`` change where ranks are lost, on some ranks a call later than on others. So divide sums by a
    count that was summed with them, not by ``size``, and do in one `together` what must be done by the same ranks.
    No gradients may be under way in a call.

    Args:
        team: the ranks.
    """

    def __init__(self, team: Team) -> None:
        self.team = team
        self._inside = False  # a transaction

    @property
    def _comm(self) -> Comm:  # type: ignore[override]
        """Return the ranks that are left."""
        return self.team.comm

    @property
    def rank(self) -> int:
        """Return this rank's place among those that are left."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """Return how many ranks are left."""
        return self._comm.size

    @property
    def traffic(self) -> Traffic:
        """Return what this rank has sent."""
        return self._comm.traffic

    @property
    def concurrent(self) -> bool:
        """Return whether one thread may call it while others compute."""
        return self._comm.concurrent

    @property
    def calls(self) -> list[tuple[float, float]] | None:
        """Return the list of when calls began and ended, if there is one."""
        return self._comm.calls

    @property
    def attributes(self) -> dict[object, Any]:
        """Return what is kept with the ranks that are left."""
        return self._comm.attributes

    @property
    def elastic(self) -> bool:
        """Return False: a loss raises nothing here, and the team sees to it."""
        return False

    def together(self, work: Callable[[], T]) -> T:
        """Return ``work()``, whose calls here all ranks that are left make, or make again from the first."""
        if self._inside:
            return work()

        def attempt() -> T:
            self._inside = True
            try:
                return work()
            finally:
                self._inside = False

        return self.team.transaction(attempt)

    def sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        return self.together(lambda: self._comm.sendrecv(send, dest, source))

    def allgather(self, send: Array, control: bool = False) -> Array:
        return self.together(lambda: self._comm.allgather(send, control))

    def allgatherv(self, send: Array, counts: Sequence[int] | Counts | None = None) -> tuple[Array, Counts]:
        return self.together(lambda: self._comm.allgatherv(send, counts))

    def alltoallv(
        self, send: Array, counts: Sequence[int] | Counts, expected: Sequence[int] | Counts | None = None
    ) -> tuple[Array, Counts]:
        return self.together(lambda: self._comm.alltoallv(send, counts, expected))

    def streamed_alltoallv(self, send: Array, counts: Sequence[int] | Counts, take: Take) -> None:
        take(0, *self.alltoallv(send, counts))  # nothing of an attempt that may fail

    def allreduce(self, send: Array, op: str = "sum", control: bool = False) -> Array:
        return self.together(lambda: self._comm.allreduce(send, op, control))

    def bcast(self, send: Array, root: int = 0, control: bool = False) -> Array:
        return self.together(lambda: self._comm.bcast(send, root, control))

    def barrier(self) -> None:
        self.together(lambda: self._comm.barrier())

    def duplicate(self, patient: bool = False) -> Comm:
        raise self._refusal("duplicate")

    def split(self, color: int) -> Comm:
        raise self._refusal("split")

    def renumbered(self, first: int) -> Comm:
        raise self._refusal("renumbered")

    def node(self) -> int:
        return self.together(lambda: self._comm.node())

    def _refusal(self, name: str) -> RuntimeError:
        return RuntimeError(f"a TeamComm has no {name}: ranks may be lost; use team.comm within a transaction")


def comm_of(team: Team) -> Comm:
    """Return the `TeamComm` of these ranks."""
    return cast(Comm, TeamComm(team))


def together(comm: Comm, work: Callable[[], T]) -> T:
    """Return ``work()``, see `TeamComm.together`; of any other communicator the ranks do it once."""
    return comm.together(work) if isinstance(comm, TeamComm) else work()


def team_of(comm: Comm) -> Team | None:
    """Return the team of these ranks, if there is one."""
    team = comm.attributes.get(Team)
    assert team is None or isinstance(team, Team), "nobody else keeps anything under this key"
    return team
