"""What a training run does when it has lost ranks: `Survivors`."""

from __future__ import annotations

from data.share import Share
from records.metrics import Metrics
from sparse_mpi.comm import Comm
from sparse_mpi.elastic import team_of


class Survivors:
    """The ranks that a run has left, and what they train on.

    Args:
        comm: between the replicas; only with a team some can be lost.
        share: which samples are this rank's.
        least: the fewest ranks with which to go on.
        metrics: where a record of each loss goes.
    """

    def __init__(self, comm: Comm, share: Share, least: int, metrics: Metrics) -> None:
        self._team, self._share, self._least, self._metrics = team_of(comm), share, least, metrics
        self._ranks = list(range(share.ranks))  # that samples are dealt to, by their numbers at the start
        self._epoch = 0
        self._began: dict[int, int] = {}  # steps of this epoch, and how many transactions were complete before each

    def regroup(self, epoch: int, step: int) -> bool:
        """Deal samples to the ranks that are left, from this step on; return False if there is nobody new to miss.

        Call it before every step: that tells in which one a rank was lost.
        """
        if self._team is None:
            return False
        if epoch != self._epoch:
            self._epoch, self._began = epoch, {}
        lost = self._lost()
        if lost:
            missed = [(before, rank) for rank, at in lost.items() for before, when in self._began.items() if when >= at]
            self._ranks = [rank for rank in self._ranks if rank not in lost]
            self._share.deal(epoch, step, self._ranks, sorted(missed))
            self._note(epoch, step, lost)
        self._began[step] = self._team.completed
        return bool(lost)

    def too_few(self) -> str:
        """Return what is wrong if the run must end because too few ranks are left; the same on all of them."""
        left = len(self._ranks) - len(self._lost())
        return f"{left} ranks are left, fewer than --min-ranks {self._least}" if left < self._least else ""

    def _lost(self) -> dict[int, int]:
        """Return the ranks that were lost since samples were dealt, and the first transaction that each was not in."""
        if self._team is None:
            return {}
        departures = self._team.settled
        return {rank: d.step for d in departures for rank in d.ranks if rank in self._ranks}

    def _note(self, epoch: int, step: int, lost: dict[int, int]) -> None:
        """Write a record of the ranks ``lost`` before a step."""
        assert self._team is not None
        spent = sum(departure.seconds for departure in self._team.settled if {*departure.ranks} & {*lost})
        left = len(self._ranks)
        self._metrics.write("loss", epoch=epoch + 1, lost=sorted(lost), ranks=left, seconds=spent)
