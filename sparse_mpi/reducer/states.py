"""Save and restore the state of a reducer: conversion to dicts and back, identity checks, sums over old ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import numpy as np

from sparse_mpi import arrays
from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import Array, to_host
from sparse_mpi.budget import Keeper
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.feedback import Feedback
from sparse_mpi.reducer.preparing import Preparing
from sparse_mpi.sparse import Layout

BUDGET = "budget"  # the key of what its controller needs to go on


def synchronize(state: Any) -> None:
    """Wait for all work on the devices that hold arrays of ``state``: an array, a state, or a tuple of them."""
    if is_dataclass(state):
        state = tuple(getattr(state, field.name) for field in fields(state))
    if isinstance(state, tuple):
        for part in state:
            synchronize(part)
    else:
        arrays.synchronize_device(state)


def on_host(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a state as a dict with all arrays on the host: a ``dict_factory`` for ``asdict``."""
    return {name: to_host(value) for name, value in items}


def restore(template: Any, saved: Any) -> Any:
    """Invert ``asdict``: return a state of ``template``'s type, nested states included, that shares no array.

    A field that an earlier release did not save has its default.
    """
    if isinstance(template, tuple) and any(map(is_dataclass, template)):
        return tuple(restore(was, part) for was, part in zip(template, saved, strict=True))
    if not is_dataclass(template) or isinstance(template, type):
        return saved.copy() if isinstance(saved, np.ndarray) else saved
    known = [field.name for field in fields(template) if field.name in saved]
    return type(template)(**{name: restore(getattr(template, name), saved[name]) for name in known})


def check_identity(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise ValueError unless ``state`` has every entry of ``identity``."""
    for key, expected in identity.items():
        if state.get(key) != expected:
            raise ValueError(
                f"state[{key!r}] must be {expected!r}, got {state.get(key)!r}; "
                "load it into a SparseAllreduce made with the arguments it was saved from"
            )


def added(states: Sequence[Mapping[str, Any]], name: str, size: int) -> Array:
    """Return the sum of the array ``(n,)`` called ``name`` over all states, in their order.

    Without states it is zeros ``(size,)`` float32.
    """
    return sum((state[name] for state in states[1:]), states[0][name]) if states else np.zeros(size, np.float32)


class Resumable(Preparing):
    """The part of `SparseAllreduce` that saves and restores its state, once the next step is prepared."""

    layout: Layout
    k: int
    algorithm: Algorithm
    _rule: Feedback  # holds the hyperparameters of `feedback`, without arrays
    _keeper: Keeper | None  # of a budget

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs to continue bit for bit: numbers, strings and NumPy arrays."""
        self._finish_preparing()
        synchronize((self.feedback.residual, self._state))
        remembered = self.feedback.state() | self.feedback.common()
        owed = {name: to_host(array).copy() for name, array in remembered.items()}
        kept = {} if self._keeper is None else {BUDGET: self._keeper.state()}
        return self._identity() | {"state": asdict(self._state, dict_factory=on_host)} | owed | kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on the same rank of as many ranks. Collective.

        `take_over` restores on another number of ranks.

        Raises:
            ValueError: it was saved by another algorithm, feedback, layout, k or rank; raised on every rank.
        """
        self._finish_preparing()
        with same_on_all_ranks(self.comm) as say:
            check_identity(state, self._identity())
            if "state" not in state:
                raise ValueError(
                    f"state must have a 'state', got {sorted(state)}; load what state_dict() returned, whole"
                )
            self.feedback.check_state(state)
            say(call="load_state_dict")
        self._state = restore(self._state, state["state"])
        self._load(state)
        if self._keeper is not None and BUDGET in state:
            self._keeper.load(state[BUDGET])

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Restore what ``ranks`` ranks saved, on any number P of ranks, as `checkpoint.load` deals it out. Collective.

        On as many ranks as before this is `load_state_dict`. On another number the residuals of the old ranks are
        added up, so that the new ranks together owe what the old ones did, to rounding; the states of algorithm and
        selector start afresh.

        Args:
            states: those of the old ranks r, r + P, r + 2 P, ... on rank r; empty if there is no such rank.
            ranks: the number of old ranks.

        Raises:
            ValueError: a state is missing, or was saved by another algorithm, feedback, layout or k; raised on every
                rank.
        """
        self._finish_preparing()
        with same_on_all_ranks(self.comm) as say:
            expected = list(range(self.comm.rank, ranks, self.comm.size))
            if [state.get("rank") for state in states] != expected:
                raise ValueError(
                    f"states must be those of ranks {expected} of {ranks}, got those of "
                    f"{[state.get('rank') for state in states]}; deal them out as sparse_mpi.checkpoint.load does"
                )
            for state in states:
                check_identity(state, self._identity() | {"rank": state["rank"], "ranks": ranks})
                self.feedback.check_state(state)
            owed = {name: added(states, name, self.layout.size) for name in self.feedback.state()}
            say(call="take_over", ranks=ranks)
        if ranks == self.comm.size:
            return self.load_state_dict(states[0])
        self._state = self._instrumented.init(self.layout, self.k, self.comm.size)
        self._load(owed | {name: self._from_first(states, name) for name in self.feedback.common()})
        if self._keeper is not None:
            self._keeper.take_over([state[BUDGET] for state in states if BUDGET in state], self.comm)

    def _from_first(self, states: Sequence[Mapping[str, Any]], name: str) -> Array:
        """Return the array ``(n,)`` called ``name`` of the first of rank 0's states, on all ranks. Collective."""
        missing = np.zeros(self.layout.size, np.float32)  # earlier versions did not save all
        array = states[0].get(name, missing) if self.comm.rank == 0 else missing[:0]
        own = np.ascontiguousarray(array).view(np.uint8)
        received = self.comm.bcast(own, control=True)
        return received.view(f"f{len(received) // self.layout.size}")

    def _load(self, owed: dict[str, Any]) -> None:
        """Restore the arrays of `feedback`, ordered after all work on them and before all that follows."""
        synchronize(self.feedback.residual)
        self.feedback.load(owed)
        synchronize(self.feedback.residual)

    def _identity(self) -> dict[str, Any]:
        """Return what a state must share with this reducer to be loaded into it.

        The key "memory" keeps the former name of feedback, so that checkpoints of earlier releases load.
        """
        return {
            "algorithm": repr(self.algorithm),
            "memory": repr(self._rule),
            "shapes": self.layout.shapes,
            "k": self.k,
            "rank": self.comm.rank,
            "ranks": self.comm.size,
        }
