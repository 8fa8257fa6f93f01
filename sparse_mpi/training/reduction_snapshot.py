"""Save and restore the state of a `GradientReduction`, bucket by bucket: `ReductionSnapshot`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sparse_mpi.arrays import as_tensors
from sparse_mpi.checks import check_whole
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.reduction.form import WHOLE, check_form, check_list, sealed
from sparse_mpi.training.bucket import Bucket
from sparse_mpi.training.buckets import Buckets
from sparse_mpi.training.live_ranks import LiveRanks
from sparse_mpi.training.parameters import keep_mean


class ReductionSnapshot:
    def __init__(self, buckets: Buckets, ranks: LiveRanks) -> None:
        self._buckets, self._ranks = buckets, ranks

    def taken(self) -> dict[str, Any]:
        buckets = [bucket.reducer.state_dict() for bucket in self._buckets]
        # By parameter, in the order in which they came: buckets change when tables leave them
        kinds = [home.kind(parameter) for parameter, home in self._buckets.home.items()]
        return dict(as_tensors(sealed({"buckets": buckets, "kinds": kinds})))

    def restore(self, state: Any) -> None:
        """Restore what `taken` returned, on the same rank of as many ranks. Collective."""
        for bucket, (saved,) in self._begin([state]):
            bucket.reducer.load_state_dict(saved)
            bucket.remembers = True

    def deal(self, states: Any, ranks: int, average: bool) -> None:
        """Restore what ``ranks`` ranks have taken, of which this one has ``states``. Collective."""
        comm = self._ranks.comm
        for bucket, saved in self._begin(states):
            bucket.reducer.take_over(saved, ranks)
            bucket.remembers = True
            if average:
                keep_mean(bucket.reducer.feedback, ranks, comm.size)

    def _begin(self, states: Any) -> Iterator[tuple[Bucket, list[dict[str, Any]]]]:
        """Return every bucket with its states, once kinds, which decide on buckets, are known. Collective."""
        self._load_kinds(states)
        return zip(self._buckets, self._by_bucket(states), strict=True)

    def _load_kinds(self, states: Any) -> None:
        """Take parameters out of their buckets whose gradients were sparse tensors in ``states``. Collective."""
        known = np.zeros(len(self._buckets.home), np.uint8)
        with same_on_all_ranks(self._ranks.comm) as say:
            check_list(states, "states")
            for state in states:
                self._check(state)
                kinds = state["kinds"]
                if len(kinds) != len(known):
                    raise ValueError(
                        f"state['kinds'] must be of {len(known)} parameters, got {len(kinds)}; load it into a "
                        "reduction of the same parameters"
                    )
                known = np.maximum(known, np.asarray(kinds, np.uint8))
            say(call="load_state_dict")
        # Ranks that were dealt no state learn the kinds from the others
        agreed = self._ranks.comm.allreduce(known, "max", control=True)
        kind = dict(zip(self._buckets.home, np.asarray(agreed).tolist(), strict=True))
        self._buckets.know_kinds([[kind[parameter] for parameter in bucket.parameters] for bucket in self._buckets])

    def _check(self, state: Any) -> None:
        check_form(state)
        check_list(state.get("buckets"), "state['buckets']")
        check_list(state.get("kinds"), "state['kinds']")
        for number, kind in enumerate(state["kinds"]):
            check_whole(f"state['kinds'][{number}]", kind, 0, remedy=WHOLE, most=255)

    def _by_bucket(self, states: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
        expected = len(self._buckets.list)
        with same_on_all_ranks(self._ranks.comm) as say:
            say(call="load_state_dict")
            for state in states:
                if len(state["buckets"]) != expected:
                    raise ValueError(
                        f"state['buckets'] must hold {expected} buckets, got {len(state['buckets'])}; load it into a "
                        "reduction of the same parameters with the same bucket_cap_mb"
                    )
            return [[state["buckets"][number] for state in states] for number in range(expected)]
