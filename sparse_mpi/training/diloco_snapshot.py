"""Save and restore the state of a `DiLoCo`, on the same number of ranks to the bit, and on any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.reduction.form import WHOLE, equal, sealed
from sparse_mpi.reduction.snapshot import check_ranks
from sparse_mpi.training.broadcasts import broadcast_tree, packed, unpacked
from sparse_mpi.training.fragment import Fragment
from sparse_mpi.training.named_gradients import NamedGradients


@dataclass(frozen=True)
class DiLoCoSnapshot:
    """Takes and deals out the state of local steps; a state can be loaded if it has the same ``schedule``."""

    gradients: NamedGradients
    fragments: list[Fragment]
    inner: Optimizer
    outer: Optimizer
    schedule: dict[str, Any]

    def taken(self, **progress: int) -> dict[str, Any]:
        """Return the state; ``progress`` is what `deal` returns."""
        own = {
            "parameters": [fragment.local() for fragment in self.fragments],
            "inner": self.inner.state_dict(),
            "prepared": [fragment.prepared for fragment in self.fragments],
            "taken": [fragment.taken for fragment in self.fragments],
        }
        # Rank 0 saves what is the same on all ranks
        common = {
            **progress,
            "parameters": [fragment.common for fragment in self.fragments],
            "outer": self.outer.state_dict(),
            "means": [fragment.mean() for fragment in self.fragments],  # waits for what is under way
        }
        shared = packed(common if self.gradients.comm.rank == 0 else None)
        return self.gradients.state_dict(schedule=self.schedule, own=packed(own), common=shared)

    def deal(self, states: Any, ranks: int) -> dict[str, int]:
        """Restore what ``ranks`` ranks have taken, on any number of ranks, and return the progress. Collective.

        On other ranks outer gradients that were under way are to be applied at once.

        Raises:
            TypeError, ValueError: see `DiLoCo.take_over`.
        """
        for fragment in self.fragments:  # nothing else may use the communicator while something is under way
            fragment.mean()
        comm, expected = self.gradients.comm, self.schedule
        # Check everything before anything is loaded, when all ranks can still raise together
        with same_on_all_ranks(comm) as say:
            check_ranks(ranks)
            states = self.gradients.checked(states)
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
            saved = [self._tree(state, "own") for state in states]
            first = {"common": self._tree(states[0], "common"), "own": saved[0]} if comm.rank == 0 else None
            say(call="take_over", ranks=ranks)
        # Rank 0 conveys what it alone has: the common state, and an inner optimizer for ranks that were dealt none
        same, new = ranks == comm.size, comm.size > ranks
        common, inner = broadcast_tree(first and (first["common"], first["own"]["inner"] if new else None), comm)
        # Own moves since the last outer gradient end with the old ranks, unless these owe them
        for state, own in zip(states, saved, strict=True) if not same else ():
            self._owe_moves(state, own, common)
        self.gradients.deal(states, ranks, average=True)
        self.outer.load_state_dict(common["outer"])
        self.inner.load_state_dict(saved[0]["inner"] if saved else inner)
        # On as many ranks each goes on where it was; on others all begin as if they had just been synchronised
        for number, (fragment, mean) in enumerate(zip(self.fragments, common["means"], strict=True)):
            parameters = common["parameters"][number]
            own, prepared, taken = parameters, common["steps"], None if mean is None else parameters
            if same:
                own, prepared, taken = (saved[0][name][number] for name in ("parameters", "prepared", "taken"))
            fragment.restore(parameters, own, prepared, mean, taken)
        return {name: common[name] for name in ("steps", "synchronizations")}

    def _tree(self, state: dict[str, Any], name: str) -> Any:
        """Return the tree that ``state`` has packed by that ``name``; ValueError if it is not of these fragments."""
        try:
            tree = unpacked(state[name])
            sizes = [len(tensor) for tensor in tree["parameters"]]
        except Exception as problem:  # torch.load raises whatever damaged bytes lead to
            raise ValueError(f"state[{name!r}] must be what state_dict() packed, but {problem}; {WHOLE}") from None
        expected = [len(fragment.common) for fragment in self.fragments]
        if sizes != expected:
            raise ValueError(f"state[{name!r}] must be of fragments of {expected} parameters, got {sizes}")
        return tree

    def _owe_moves(self, state: dict[str, Any], own: Any, common: Any) -> None:
        """Add to the residuals in ``state`` what its rank has moved since its last outer gradients."""
        starts = zip(own["taken"], common["parameters"], own["parameters"], state["vectors"], strict=True)
        for taken, parameters, now, vector in starts:
            moved = (parameters if taken is None else taken) - now
            # A rule that defers nothing has nowhere to put what was moved
            if "residual" in (reducer := vector["reducer"]):
                wide = moved.to(torch.promote_types(moved.dtype, torch.float32)).numpy()
                # Its residual may have another dtype then
                vector["reducer"] = sealed(reducer | {"residual": reducer["residual"] + wide})
