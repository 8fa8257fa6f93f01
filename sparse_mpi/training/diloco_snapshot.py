"""Save and restore the state of a `DiLoCo`, on the same number of ranks to the bit, and on any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.reduction.form import WHOLE, check_bytes, equal, sealed
from sparse_mpi.reduction.snapshot import check_ranks
from sparse_mpi.training.broadcasts import packed, unpacked
from sparse_mpi.training.fragment import Arrived, Fragment
from sparse_mpi.training.named_gradients import NamedGradients


@dataclass
class Progress:
    steps: int = 0  # inner ones
    synchronizations: int = 0  # of fragments


class DiLoCoSnapshot:
    """Takes and deals out the state of local steps; a state can be loaded if it has the same ``schedule``."""

    def __init__(
        self,
        gradients: NamedGradients,
        fragments: list[Fragment],
        inner: Optimizer,
        outer: Optimizer,
        progress: Progress,
        schedule: dict[str, Any],
    ) -> None:
        self.fragments, self.inner, self.outer = fragments, inner, outer
        self._gradients, self._progress, self._schedule = gradients, progress, schedule

    def taken(self) -> dict[str, Any]:
        own = {
            "parameters": [fragment.local() for fragment in self.fragments],
            "inner": self.inner.state_dict(),
            "prepared": [fragment.prepared for fragment in self.fragments],
            "taken": [f.exchange and f.exchange.taken for f in self.fragments],
        }
        # What is the same on all ranks, which rank 0 saves
        common = {
            "steps": self._progress.steps,
            "synchronizations": self._progress.synchronizations,
            "parameters": [fragment.common for fragment in self.fragments],
            "outer": self.outer.state_dict(),
            "means": [fragment.arrive() for fragment in self.fragments],  # waits for what is under way
        }
        shared = packed(common if self._gradients.comm.rank == 0 else None)
        return self._gradients.state_dict(schedule=self._schedule, own=packed(own), common=shared)

    def deal(self, states: Any, ranks: int) -> list[Fragment]:
        """Restore what ``ranks`` ranks have taken, on any number of ranks. Collective.

        Returns:
            The fragments whose outer gradients, which were under way on other ranks, are to be applied at once.

        Raises:
            TypeError, ValueError: see `DiLoCo.take_over`.
        """
        for fragment in self.fragments:  # nothing else may use the communicator while something is under way
            fragment.arrive()
        comm, expected = self._gradients.comm, self._schedule
        # Check everything before anything is loaded, when all ranks can still raise together
        with same_on_all_ranks(comm) as say:
            check_ranks(ranks)
            states = self._gradients.checked(states)
            if len(states) != len(range(comm.rank, ranks, comm.size)):
                raise ValueError(
                    f"states must be those of ranks {comm.rank}, {comm.rank + comm.size}, ... of {ranks}, got "
                    f"{len(states)}; deal them out as sparse_mpi.checkpoint.load does"
                )
            for state in states:
                if not equal(state.get("schedule"), expected):
                    raise ValueError(
                        f"state['schedule'] must be {expected}, got {state.get('schedule')}; load it into a DiLoCo "
                        "made with the arguments it was saved from"
                    )
            own = [self._checked(state, "own") for state in states]
            if comm.rank == 0:
                self._checked(states[0], "common")
            say(call="take_over", ranks=ranks)
        # Convey: other ranks have not saved what all have in common
        common = unpacked(self._from_first(states, "common"))
        # Own moves since the last outer gradient end with the old ranks, unless these owe them
        if ranks != comm.size:
            self._owe_moves(states, own, common)
        self._gradients.deal(states, ranks, average=True)
        # What is the same on all ranks
        self._progress.steps, self._progress.synchronizations = common["steps"], common["synchronizations"]
        self.outer.load_state_dict(common["outer"])
        for fragment, parameters in zip(self.fragments, common["parameters"], strict=True):
            fragment.common.copy_(parameters)
        late: list[Fragment] = []
        # Ranks that were dealt no state take the inner optimizer of rank 0
        if comm.size > ranks:
            first = unpacked(self._from_first(states, "own"))
        self.inner.load_state_dict(own[0]["inner"] if own else first["inner"])
        for number, fragment in enumerate(self.fragments):
            # Begin as if all had just been synchronised; on as many ranks go on where each was
            fragment.prepared, fragment.exchange = self._progress.steps, None
            fragment.adopt(fragment.common)
            if ranks == comm.size:
                fragment.prepared = own[0]["prepared"][number]
                fragment.adopt(own[0]["parameters"][number])
            # An outer gradient that was under way is applied in its time; on other ranks at once.
            mean = common["means"][number]
            if mean is not None:
                taken = own[0]["taken"][number] if ranks == comm.size else fragment.common
                fragment.exchange = Arrived(mean.to(fragment.common), taken.to(fragment.common))
                if ranks != comm.size:
                    late.append(fragment)
        return late

    def _checked(self, state: dict[str, Any], name: str) -> Any:
        """Return the tree that ``state`` has packed by that ``name``; ValueError if it is not of these fragments."""
        check_bytes(state.get(name), f"state[{name!r}]")
        try:
            tree = unpacked(state[name])
            sizes = [len(tensor) for tensor in tree["parameters"]]
        # torch.load raises any of these for bytes that were damaged
        except (EOFError, KeyError, LookupError, RuntimeError, TypeError, ValueError, UnpicklingError) as problem:
            raise ValueError(f"state[{name!r}] must be what state_dict() packed, but {problem}; {WHOLE}") from None
        expected = [len(fragment.common) for fragment in self.fragments]
        if sizes != expected:
            raise ValueError(f"state[{name!r}] must be of fragments of {expected} parameters, got {sizes}")
        return tree

    def _owe_moves(self, states: list[dict[str, Any]], own: list[Any], common: Any) -> None:
        """Add to the residuals in ``states`` what these ranks, which have ``own``, have moved since."""
        for state, mine in zip(states, own, strict=True):
            for number, saved in enumerate(state["vectors"]):
                reducer, taken = saved["reducer"], mine["taken"][number]
                # Of what was taken an outer gradient under way has the rest
                moved = (common["parameters"][number] if taken is None else taken) - mine["parameters"][number]
                # A rule that defers nothing has nowhere to put what was moved
                if "residual" in reducer:
                    wide = moved.to(torch.promote_types(moved.dtype, torch.float32)).numpy()
                    # Its residual may have another dtype then
                    saved["reducer"] = sealed(reducer | {"residual": reducer["residual"] + wide})

    def _from_first(self, states: Sequence[dict[str, Any]], name: str) -> np.ndarray:
        comm = self._gradients.comm
        own = states[0][name] if comm.rank == 0 else np.zeros(0, np.uint8)
        return np.asarray(comm.bcast(own))
