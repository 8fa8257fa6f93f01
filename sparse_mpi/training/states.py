"""Save and restore the state of a `GradientReduction`, bucket by bucket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from torch import Tensor

from sparse_mpi.arrays import as_arrays, as_tensors
from sparse_mpi.budget import Keeper
from sparse_mpi.checks import check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import Handle
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.fault_tolerance.team import Team
from sparse_mpi.reduction.forms import WHOLE, check_form, check_list, sealed
from sparse_mpi.reduction.states import BUDGET
from sparse_mpi.training.bucket import Bucket
from sparse_mpi.training.rows import SparseGradients


class ResumableReduction(ABC):
    """The part of `GradientReduction` that saves and restores its state."""

    comm: Comm
    buckets: list[Bucket]
    team: Team | None
    _home: dict[Tensor, Bucket | SparseGradients]
    _average: bool

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's reducers need to continue, in tensors and plain values; between steps.

        See `SparseAllreduce.state_dict`. `torch.save` writes it, and `torch.load` reads it.
        """
        with self._while_sparse() as keeper:
            buckets = [bucket.reducer.state_dict() for bucket in self.buckets]
            kinds = [home.kind(parameter) for parameter, home in self._home.items()]
            kept = {} if keeper is None else {BUDGET: keeper.state(), **self._picked()}
            return dict(as_tensors(sealed({"buckets": buckets, "kinds": kinds, **kept})))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on the same rank of as many ranks, for the same parameters. Collective.

        Raises:
            ValueError: it is of other buckets, or as for `SparseAllreduce.load_state_dict`; raised on every rank.
        """
        self._begin(lambda comm: None).wait()  # nothing else may use the communicator while something is under way
        state = as_arrays(state)
        self._load_kinds([state])
        with self._while_sparse() as keeper:
            self._follow([state], self._ranks_now)
            for bucket, (saved,) in zip(self.buckets, self._by_bucket([state]), strict=True):
                bucket.reducer.load_state_dict(saved)
                bucket.remembers = True
            if keeper is not None and BUDGET in state:
                keeper.load(state[BUDGET])

    @abstractmethod
    def know_kinds(self, kinds: Sequence[Sequence[int]]) -> None:
        """Take the parameters whose gradients are sparse tensors out of their buckets."""

    @abstractmethod
    def _while_sparse(self) -> AbstractContextManager[Keeper | None]:
        """Reduce sparsely within this context, and give what keeps to a budget."""

    @abstractmethod
    def _picked(self) -> dict[str, Any]:
        """Return what `_follow` needs in a state."""

    @abstractmethod
    def _check_spending(self, state: dict[str, Any]) -> None:
        """Raise TypeError or ValueError unless ``state`` has a budget's state that can be loaded, or none."""

    @abstractmethod
    def _follow(self, states: Sequence[dict[str, Any]], comm: Comm) -> None:
        """Reduce by the algorithms that a budget had picked when ``states`` were saved."""

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
        self._begin(lambda comm: None).wait()  # nothing else may use the communicator while something is under way
        states = as_arrays(states)
        self._load_kinds(states)
        divisor, ranks_now = ranks if self._average else 1, self._ranks_now
        with self._while_sparse() as keeper:
            self._follow(states, self._ranks_now)
            for bucket, saved in zip(self.buckets, self._by_bucket(states), strict=True):
                bucket.reducer.take_over(saved, ranks)
                bucket.remembers = True
                rule = bucket.reducer.feedback
                for array in [*rule.state().values(), *rule.common().values()]:
                    array *= (ranks_now.size if self._average else 1) / divisor
            if keeper is not None and ranks == ranks_now.size and BUDGET in states[0]:
                keeper.load(states[0][BUDGET])
            elif keeper is not None:
                keeper.take_over([state[BUDGET] for state in states if BUDGET in state], ranks_now)

    @abstractmethod
    def _begin(self, question: Any) -> Handle[Any]:
        """Begin with ``question(comm)`` of the ranks that are there, behind what is under way."""

    def _load_kinds(self, states: Sequence[dict[str, Any]]) -> None:
        """Take the parameters out of their buckets whose gradients were sparse tensors when ``states`` were saved.

        Collective: on more ranks than before some have no state.
        """
        known = np.zeros(len(self._home), np.uint8)
        with same_on_all_ranks(self._ranks_now) as say:
            check_list(states, "states")
            for state in states:
                self._check_state(state)
                kinds = state.get("kinds", known.tolist())  # earlier versions did not save them
                if len(kinds) != len(known):
                    raise ValueError(
                        f"state['kinds'] must be of {len(known)} parameters, got {len(kinds)}; load it into a "
                        "reduction of the same parameters"
                    )
                known = np.maximum(known, np.asarray(kinds, np.uint8))
            say(call="load_state_dict")
        agreed = self._ranks_now.allreduce(known, "max", control=True)
        kind = dict(zip(self._home, np.asarray(agreed).tolist(), strict=True))
        self.know_kinds([[kind[parameter] for parameter in bucket.parameters] for bucket in self.buckets])

    def _check_state(self, state: Any) -> None:
        """Raise TypeError or ValueError unless ``state`` is whole; buckets and what their reducers saved come later."""
        check_form(state)
        check_list(state.get("buckets"), "state['buckets']")
        check_list(state.get("kinds", []), "state['kinds']")
        for number, kind in enumerate(state.get("kinds", [])):
            check_whole(f"state['kinds'][{number}]", kind, 0, remedy=WHOLE, most=255)
        self._check_spending(state)

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
        check_list(state.get("buckets", ()), "state['buckets']")
        count = len(state.get("buckets", ()))
        if count != buckets:
            raise ValueError(
                f"state['buckets'] must hold {buckets} buckets, got {count}; load it into a reduction of the same "
                "parameters with the same bucket_cap_mb"
            )
    return [[state["buckets"][number] for state in states] for number in range(buckets)]
