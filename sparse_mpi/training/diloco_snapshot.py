"""Save and restore the state of a `DiLoCo`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.reduction.form import WHOLE, equal, sealed
from sparse_mpi.reduction.snapshot import STEPS
from sparse_mpi.states import shown
from sparse_mpi.training.broadcasts import broadcast_tree, packed, unpacked
from sparse_mpi.training.fragment import Fragment
from sparse_mpi.training.named_gradients import NamedGradients, names_in


@dataclass(frozen=True)
class DiLoCoSnapshot:
    """Takes and deals out the state of local steps, always of one ``schedule``."""

    gradients: NamedGradients
    fragments: list[Fragment]
    inner: Optimizer
    outer: Optimizer
    schedule: dict[str, Any]

    def taken(self, steps: int, synchronizations: int) -> dict[str, Any]:
        own = {
            "parameters": [fragment.local() for fragment in self.fragments],
            "inner": self.inner.state_dict(),
            "prepared": [fragment.prepared for fragment in self.fragments],
            "taken": [fragment.taken for fragment in self.fragments],
        }
        # Rank 0 saves the values equal on all ranks
        common = {
            "steps": steps,
            "synchronizations": synchronizations,
            "parameters": [fragment.common for fragment in self.fragments],
            "outer": self.outer.state_dict(),
            "means": [fragment.mean() for fragment in self.fragments],  # waits for sums under way
        }
        shared = packed(common if self.gradients.comm.rank == 0 else None)
        return self.gradients.state_dict(**{STEPS: steps}, schedule=self.schedule, own=packed(own), common=shared)

    def deal(self, states: Any, ranks: int) -> tuple[int, int]:
        """Restore the states of ``ranks`` ranks, see `DiLoCo.take_over`; return steps and synchronizations.

        On another number of ranks outer gradients under way are applied at once.
        """
        for fragment in self.fragments:  # nothing else may use the communicator while something is under way
            fragment.mean()
        comm, expected = self.gradients.comm, self.schedule
        # Check everything before anything is loaded, when all ranks can still raise together
        with same_on_all_ranks(comm) as say:
            states = self.gradients.checked(states, ranks)
            names = [list(fragment.vector.names) for fragment in self.fragments]
            for state in states:
                if not equal(state.get("schedule"), expected):
                    raise ValueError(
                        f"state['schedule'] must be {expected}, got {state.get('schedule')}; load it into a DiLoCo "
                        "made with the arguments it was saved from"
                    )
                if names_in(state) != names:
                    raise ValueError(
                        f"state['vectors'] must be of the fragments {names}, got {names_in(state)}; load it into a "
                        "DiLoCo of a model whose modules are in the same order on rank 0"
                    )
            saved = [_tree(state, "own") for state in states]
            shared = _tree(states[0], "common") if comm.rank == 0 else None
            say(call="take_over", ranks=ranks)
        # Rank 0 sends the common state, which it alone has, and an inner optimizer for ranks that were dealt none
        same, new = ranks == comm.size, ranks < comm.size
        common, inner = broadcast_tree((shared, saved[0]["inner"] if saved and new else None), comm)
        with same_on_all_ranks(comm):
            for state in states:
                if not equal(found := state.get(STEPS, common[STEPS]), common[STEPS]):  # those of 0.4 have none
                    raise ValueError(f"state['steps'] must be rank 0's, {common[STEPS]}, got {shown(found)}; {WHOLE}")
        # Own moves since the last outer gradient end with the old ranks, unless these owe them
        for state, own in zip(states, saved, strict=True) if not same else ():
            _owe_moves(state, own, common)
        self.gradients.deal(states, ranks, average=True)
        self.outer.load_state_dict(common["outer"])
        self.inner.load_state_dict(saved[0]["inner"] if saved else inner)
        # On the same number of ranks each continues; on others all begin as if they had just been synchronised
        for number, (fragment, mean) in enumerate(zip(self.fragments, common["means"], strict=True)):
            parameters = common["parameters"][number]
            own, prepared, taken = parameters, common["steps"], None if mean is None else parameters
            if same:
                own, prepared, taken = (saved[0][name][number] for name in ("parameters", "prepared", "taken"))
            fragment.restore(parameters, own, prepared, mean, taken)
        return common["steps"], common["synchronizations"]


def _tree(state: dict[str, Any], name: str) -> dict[str, Any]:
    try:
        return dict(unpacked(state[name]))
    except Exception as problem:  # torch.load raises whatever damaged bytes lead to
        raise ValueError(f"state[{name!r}] must be packed by state_dict(), but {problem}; {WHOLE}") from None


def _owe_moves(state: dict[str, Any], own: dict[str, Any], common: dict[str, Any]) -> None:
    starts = zip(own["taken"], common["parameters"], own["parameters"], state["vectors"], strict=True)
    for taken, parameters, now, vector in starts:
        moved = (parameters if taken is None else taken) - now
        # A rule without residuals has no place for the movement
        if "residual" in (reducer := vector["reducer"]):
            wide = moved.to(torch.promote_types(moved.dtype, torch.float32)).numpy()
            vector["reducer"] = sealed(reducer | {"residual": reducer["residual"] + wide})
