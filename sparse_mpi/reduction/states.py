"""Save and restore the state of a reducer: conversion to dicts and back, identity checks, sums over old ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any

import numpy as np

from sparse_mpi import arrays
from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import Array, as_arrays, to_host
from sparse_mpi.budget import Keeper
from sparse_mpi.checks import check_choice, check_whole
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.feedback import Feedback
from sparse_mpi.reduction.forms import WHOLE, check_form, check_list, check_mapping, equal, sealed
from sparse_mpi.reduction.preparing import Preparing
from sparse_mpi.sparse import Layout

BUDGET = "budget"  # the key of what its controller needs to go on
LEAVES = (np.ndarray, str, (bool, int, float, np.generic))  # the kinds of what a state holds
DTYPE = "dtype"  # of the acc that the algorithm's state is of


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


def restore(template: Any, saved: Any, where: str) -> Any:
    """Invert ``asdict``: return a state of ``template``'s type, nested states included, that shares no array.

    A field that an earlier release did not save has its default. ``where`` names ``saved`` in errors.

    Raises:
        TypeError, ValueError: ``saved`` is not of such a state.
    """
    if isinstance(template, tuple) and any(map(is_dataclass, template)):
        check_list(saved, where)
        if len(saved) != len(template):
            raise ValueError(f"{where} must have {len(template)} parts, got {len(saved)}; {WHOLE}")
        pairs = enumerate(zip(template, saved, strict=True))
        return tuple(restore(was, part, f"{where}[{number}]") for number, (was, part) in pairs)
    if not is_dataclass(template) or isinstance(template, type):
        if any(isinstance(saved, kind) != isinstance(template, kind) for kind in LEAVES):
            raise TypeError(f"{where} must be like {template!r}, got {saved!r}; {WHOLE}")
        return saved.copy() if isinstance(saved, np.ndarray) else saved
    check_mapping(saved, where)
    made = {field.name: getattr(template, field.name) for field in fields(template)}
    for field in fields(template):
        name = field.name if field.name in saved else field.metadata.get("former")
        if name in saved:
            made[field.name] = restore(made[field.name], saved[name], f"{where}[{name!r}]")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where} must have {field.name!r}, got {sorted(saved)}; {WHOLE}")
    if isinstance(template, Layout) and Layout.of(made["shapes"]) != template:  # kernels would write by it
        raise ValueError(f"{where} must be {template}, got {made['shapes']}; {WHOLE}")
    return type(template)(**made)


def check_identity(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise ValueError unless ``state`` has every entry of ``identity``."""
    for key, expected in identity.items():
        if not equal(state.get(key), expected):
            raise ValueError(
                f"state[{key!r}] must be {expected!r}, got {state.get(key)!r}; "
                "load it into a SparseAllreduce made with the arguments it was saved from"
            )


def added(states: Sequence[Mapping[str, Any]], name: str, size: int) -> Array:
    """Return the sum of the array ``(n,)`` called ``name`` over all states, in their order.

    Without states it is zeros ``(size,)`` float32.
    """
    return sum((state[name] for state in states[1:]), states[0][name]) if states else np.zeros(size, np.float32)


def check_ranks(ranks: Any) -> None:
    """Raise TypeError or ValueError unless ``ranks`` can be the number of ranks that saved a state."""
    check_whole("ranks", ranks, 1, remedy="give Checkpoint.ranks")


def _widest(arrays: Mapping[str, Array]) -> int:
    """Return the bytes of a number in those of ``arrays`` that have the most, 4 if there are none."""
    return max((array.dtype.itemsize for array in arrays.values()), default=np.dtype(np.float32).itemsize)


class Resumable(Preparing):
    """The part of `SparseAllreduce` that saves and restores its state, once the next step is prepared."""

    algorithm: Algorithm
    _rule: Feedback  # holds the hyperparameters of `feedback`, without arrays
    _keeper: Keeper | None  # of a budget

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs to continue bit for bit: numbers, strings and NumPy arrays.

        `load_state_dict` takes tensors as well: ``torch.save(as_tensors(state), file)`` of `sparse_mpi.arrays` makes
        what `torch.load` reads.
        """
        self._finish_preparing()
        synchronize((self.feedback.residual, self._state))
        remembered = self.feedback.state() | self.feedback.common()
        owed = {name: to_host(array).copy() for name, array in remembered.items()}
        kept = {} if self._keeper is None else {BUDGET: self._keeper.state()}
        state = {"state": asdict(self._state, dict_factory=on_host), DTYPE: self._dtype and self._dtype.name}
        return sealed(self._identity() | state | owed | kept)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on the same rank of as many ranks. Collective.

        `take_over` restores on another number of ranks.

        Raises:
            TypeError, ValueError: it was saved by another algorithm, feedback, layout, k or rank, or is not as it was
                saved; raised on every rank.
        """
        self._finish_preparing()
        agreement = same_on_all_ranks(self.comm, 1)
        with agreement as say:
            state = as_arrays(state)
            self._check_state(state, self._identity())
            restored = restore(self._state, state.get("state"), "state['state']")
            names = [*self.feedback.state(), *self.feedback.common()]
            remembered = {name: state[name] for name in names if name in state}  # earlier versions lack some
            agreement.words[0] = _widest(remembered)
            say(call="load_state_dict", dtype=state.get(DTYPE))
        dtype = np.dtype(f"f{agreement.rows.max()}")
        self._state, self._dtype = restored, np.dtype(state.get(DTYPE) or dtype)
        self._load({name: array.astype(dtype, copy=False) for name, array in remembered.items()})
        if self._keeper is not None and BUDGET in state:
            self._keeper.load(state[BUDGET])

    def _check_state(self, state: Any, identity: dict[str, Any]) -> None:
        """Raise TypeError or ValueError unless ``state`` is whole, and of a reducer of that ``identity``."""
        check_form(state)
        check_identity(state, identity)
        self.feedback.check_state(state)
        if state.get(DTYPE) is not None:
            check_choice(f"state[{DTYPE!r}]", state[DTYPE], ("float32", "float64"))
        if self._keeper is not None and BUDGET in state:
            self._keeper.check_state(state[BUDGET], f"state[{BUDGET!r}]")

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Restore what ``ranks`` ranks saved, on any number P of ranks, as `checkpoint.load` deals it out. Collective.

        On as many ranks as before this is `load_state_dict`. On another number the residuals of the old ranks are
        added up, so that the new ranks together owe what the old ones did, to rounding; the states of algorithm and
        selector start afresh.

        Args:
            states: those of the old ranks r, r + P, r + 2 P, ... on rank r; empty if there is no such rank.
            ranks: the number of old ranks.

        Raises:
            TypeError, ValueError: a state is missing, was saved by another algorithm, feedback, layout or k, or is not
                as it was saved; raised on every rank.
        """
        self._finish_preparing()
        agreement = same_on_all_ranks(self.comm, 1)
        with agreement as say:
            check_ranks(ranks)
            check_list(states, "states")
            states = as_arrays(states)
            for number, state in enumerate(states):
                check_form(state, f"states[{number}]")
            expected = list(range(self.comm.rank, ranks, self.comm.size))
            if not equal([state.get("rank") for state in states], expected):
                raise ValueError(
                    f"states must be those of ranks {expected} of {ranks}, got those of "
                    f"{[state.get('rank') for state in states]}; deal them out as sparse_mpi.checkpoint.load does"
                )
            for state in states:
                self._check_state(state, self._identity() | {"rank": state["rank"], "ranks": ranks})
            owed = {name: added(states, name, self.layout.size) for name in self.feedback.state()}
            agreement.words[0] = _widest(owed)
            say(call="take_over", ranks=ranks)
        if ranks == self.comm.size:
            return self.load_state_dict(states[0])
        dtype = np.dtype(f"f{agreement.rows.max()}")  # the same on ranks that get nothing
        owed = {name: array.astype(dtype, copy=False) for name, array in owed.items()}
        self._state, self._dtype = self._instrumented.init(self.layout, self.k, self.comm.size), None
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
