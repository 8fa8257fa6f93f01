"""Save and restore the state of a `GradientReduction`, bucket by bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparse_mpi.buckets.bucket import Bucket
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.elastic.team import Team


class ResumableReduction:
    """The part of `GradientReduction` that saves and restores its state."""

    comm: Comm
    buckets: list[Bucket]
    team: Team | None
    _average: bool

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's reducers need to continue, see `SparseAllreduce.state_dict`; between steps."""
        return {"buckets": [bucket.reducer.state_dict() for bucket in self.buckets]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on the same rank of as many ranks, for the same parameters. Collective.

        Raises:
            ValueError: it is of other buckets, or as for `SparseAllreduce.load_state_dict`; raised on every rank.
        """
        for bucket, (saved,) in zip(self.buckets, self._by_bucket([state]), strict=True):
            bucket.reducer.load_state_dict(saved)

    @property
    def _ranks_now(self) -> Comm:
        """Return the ranks that are there."""
        return self.comm if self.team is None else self.team.comm

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Restore what ``ranks`` ranks saved, on any number of ranks, see `SparseAllreduce.take_over`. Collective.

        What the old ranks owed together changes ``.grad`` as much as it would have changed theirs: if ``.grad`` is a
        mean, residuals are scaled by the ratio of the numbers of ranks.

        Raises:
            ValueError: a state is of other buckets, or as for `SparseAllreduce.take_over`; raised on every rank.
        """
        divisor, ranks_now = ranks if self._average else 1, self._ranks_now
        for bucket, saved in zip(self.buckets, self._by_bucket(states), strict=True):
            bucket.reducer.take_over(saved, ranks)
            rule = bucket.reducer.feedback
            for array in [*rule.state().values(), *rule.common().values()]:
                array *= (ranks_now.size if self._average else 1) / divisor

    def _by_bucket(self, states: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Return, for every bucket, the list of its states in ``states``."""
        with same_on_all_ranks(self._ranks_now) as say:
            say(call="load_state_dict")
            return cut_states(states, len(self.buckets))


def cut_states(states: Sequence[Mapping[str, Any]], buckets: int) -> list[list[dict[str, Any]]]:
    """Regroup the states of reductions by bucket: return a list of all reductions' states for each of ``buckets``.

    Raises:
        ValueError: a state has another number of buckets.
    """
    for state in states:
        count = len(state.get("buckets", ()))
        if count != buckets:
            raise ValueError(
                f"state['buckets'] must hold {buckets} buckets, got {count}; load it into a reduction of the same "
                "parameters with the same bucket_cap_mb"
            )
    return [[state["buckets"][number] for state in states] for number in range(buckets)]
