"""A communicator of the survivors, for a program's other calls: `TeamComm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import Job, hosts_of
from sparse_mpi.comm.forwarding import ForwardingComm
from sparse_mpi.fault_tolerance.team import Team

T = TypeVar("T")


class TeamComm(ForwardingComm):
    """A `Comm` with calls that are transactions of a team: all survivors have the result, or retry.

    ``rank`` and ``size`` change where ranks are lost, on some ranks a call later. So divide sums by a count summed with
    them, not by ``size``, and put calls that need the same ranks into one `together`. No gradients may be under way in
    a call.
    """

    def __init__(self, team: Team) -> None:
        super().__init__(team.comm)
        self.team = team
        self._inside = False  # a transaction

    @property
    def _comm(self) -> Comm:
        return self.team.comm

    @property
    def attributes(self) -> dict[object, Any]:
        return self._comm.attributes

    @property
    def job(self) -> Job:
        """Return the survivors' job. A loss raises nothing here: the team handles it."""
        return self._comm.job._replace(elastic=None, hosts=lambda: self.together(lambda: hosts_of(self._comm)))

    def together(self, work: Callable[[], T]) -> T:
        """Return ``work()``; all survivors make its calls here, or retry from the first."""
        if self._inside:
            return work()

        def attempt() -> T:
            self._inside = True
            try:
                return work()
            finally:
                self._inside = False

        return self.team.transaction(attempt)

    def _around(self, call: Callable[[], T]) -> T:
        return self.together(call)

    def duplicate(self, yield_cpu: bool = False) -> Comm:
        raise RuntimeError("a TeamComm has no duplicate: ranks may be lost; use team.comm within a transaction")

    def split(self, color: int) -> Comm:
        raise RuntimeError("a TeamComm has no split: ranks may be lost; use team.comm within a transaction")


def together(comm: Comm, work: Callable[[], T]) -> T:
    """Return ``work()``, see `TeamComm.together`; ranks of any other communicator do it once."""
    return comm.together(work) if isinstance(comm, TeamComm) else work()


def team_of(comm: Comm) -> Team | None:
    """Return the team of these ranks, or None."""
    team: Team | None = comm.attributes.get(Team)
    return team
