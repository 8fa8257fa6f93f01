"""Reducers of parameters that have names, whatever buckets they come in, for hooks of torch: `NamedReducers`."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import numpy as np
import torch

from sparse_mpi.arrays import check
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import in_turn
from sparse_mpi.feedback.base import check_sizes, whole_state
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.form import WHOLE, check_list, check_mapping
from sparse_mpi.reduction.second_moment import SecondMoment
from sparse_mpi.reduction.settings import Settings
from sparse_mpi.sparse import Layout
from sparse_mpi.training.parameters import cut_by_tensor, joined

Names = tuple[str, ...]


def names_of(named_parameters: Iterable[tuple[str, torch.Tensor]]) -> dict[torch.Tensor, str]:
    """Return the name of each parameter, or raise TypeError or ValueError if one cannot be reduced."""
    try:
        names = {parameter: name for name, parameter in named_parameters}
    except (TypeError, ValueError):
        names = {}
    if not names or not all(isinstance(x, torch.Tensor) and isinstance(name, str) for x, name in names.items()):
        raise TypeError("named_parameters must be pairs of name and tensor, and some; pass model.named_parameters()")
    for parameter, name in names.items():
        if parameter.requires_grad:
            check(parameter, f"named_parameters: {name}")
    return names


class NamedReducers:
    """The buckets of a model, by the names of their parameters; no parameter is in two of them.

    ``settings`` are those of every bucket but for layout and k; ``comm`` is None until `connect` gives it.
    """

    def __init__(
        self, shapes: dict[str, tuple[int, ...]], settings: Settings, density: float, comm: Comm | None = None
    ) -> None:
        self.known: dict[Names, SparseAllreduce] = {}
        self.shapes, self.settings, self.density = shapes, settings, density
        self._comm = comm
        # What error feedback remembers of parameters that are in no bucket, and the second moments of their gradients
        self._owed: dict[str, dict[str, np.ndarray]] = {}
        self._moments: dict[str, dict[str, Any]] = {}

    @property
    def comm(self) -> Comm:
        """Return the ranks, or raise RuntimeError as long as they are not known."""
        if self._comm is None:
            raise RuntimeError(
                "comm must be known, but the state was made before the process group, and ranks meet in its first "
                "step; call torch.distributed.init_process_group before you make it, or look later"
            )
        return self._comm

    def connect(self, comm: Comm) -> None:
        self._comm = comm

    def adopt(self, names: Names) -> SparseAllreduce:
        """Make a bucket of the parameters ``names`` and return it. Collective.

        Other buckets that hold any of these parameters are dissolved; the new one takes over what they remember of
        its parameters.
        """
        # Dissolve: what other buckets with these parameters remember is cut by parameter, and kept
        for other in [other for other in self.known if set(other) & set(names)]:
            dissolved = self.known.pop(other)
            self._owed |= _by_name(other, dissolved)
            if dissolved.second_moment is not None:
                self._moments |= dict(zip(other, dissolved.second_moment.by_tensor(), strict=True))
        settings = self.settings.part([self.shapes[name] for name in names], self.density)

        def make() -> SparseAllreduce:
            return SparseAllreduce(settings=settings, comm=self.comm)

        reducer = self.known[names] = in_turn(self.comm, make)  # after work under way
        # Take over: what is remembered of these parameters moves into the new bucket
        owed = [self._owed.pop(name, {}) for name in names]
        if any(owed):
            reducer.feedback.load(joined(owed, reducer.layout.sizes))
        if (moment := reducer.second_moment) is not None and not self._moments.keys().isdisjoint(names):
            pairs = zip(names, moment.by_tensor(), strict=True)
            moment.load(moment.joined([self._moments.pop(name, unknown) for name, unknown in pairs]))
        return reducer

    def parts(self, names: Names, flat: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        sizes = Layout.of([self.shapes[name] for name in names]).sizes
        return list(zip(names, flat.split(sizes), strict=True))

    def residuals(self, without: Set[str] = frozenset()) -> dict[str, np.ndarray]:
        """Return what this rank has not sent yet of each parameter but some, ``(n,)`` in host memory."""
        shapes = {name: shape for name, shape in self.shapes.items() if name not in without}
        # Nothing, what was kept of parameters in no bucket, and what buckets owe: the later ones prevail
        nothing = {name: np.zeros(Layout.of([shape]).size, np.float32) for name, shape in shapes.items()}
        owed = {name: remembered.get("residual", nothing[name]) for name, remembered in self._owed.items()}
        for names, reducer in self.known.items():
            tensors = cut_by_tensor({"residual": reducer.residual}, reducer.layout.sizes)
            owed |= {name: tensor["residual"] for name, tensor in zip(names, tensors, strict=True)}
        return nothing | owed

    def adopt_rest(self) -> None:
        if self._owed:
            self.adopt(tuple(self._owed))

    def state_dict(self) -> dict[str, Any]:
        buckets = [{"names": list(names), "reducer": r.state_dict()} for names, r in self.known.items()]
        return {"buckets": buckets, "owed": dict(self._owed), "moments": dict(self._moments)}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise TypeError or ValueError unless ``state`` is whole, of this model's parameters; change nothing."""
        check_list(state.get("buckets"), "state['buckets']")
        check_mapping(state.get("owed"), "state['owed']")
        names = [*state["owed"]]
        for number, saved in enumerate(state["buckets"]):
            check_mapping(saved, f"state['buckets'][{number}]")
            check_list(saved.get("names"), f"state['buckets'][{number}]['names']")
            check_mapping(saved.get("reducer"), f"state['buckets'][{number}]['reducer']")
            names += saved["names"]
        for name in names:
            if name not in self.shapes or names.count(name) > 1:
                raise ValueError(f"state must have each of this model's parameters at most once, got {name!r}; {WHOLE}")
        for name, arrays in state["owed"].items():
            check_mapping(arrays, f"state['owed'][{name!r}]")
            check_sizes(arrays, arrays, Layout.of([self.shapes[name]]).size)
        beta = self.settings.second_moment
        check_mapping(state.get("moments"), "state['moments']")
        for name, moment in state["moments"].items():
            check_mapping(moment, f"state['moments'][{name!r}]")
            SecondMoment(beta or 0.0, Layout.of([self.shapes[name]])).check_state(moment)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, in place of all buckets there are. Collective."""
        self.known.clear()
        self._owed, self._moments = dict(state["owed"]), dict(state["moments"])
        for saved in state["buckets"]:
            self.adopt(tuple(saved["names"])).load_state_dict(saved["reducer"])


def _by_name(names: Names, reducer: SparseAllreduce) -> dict[str, dict[str, np.ndarray]]:
    return dict(zip(names, cut_by_tensor(whole_state(reducer.feedback), reducer.layout.sizes), strict=True))
