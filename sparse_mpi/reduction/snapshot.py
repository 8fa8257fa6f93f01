"""Save an engine, and restore it on the same number of ranks, to the bit, or on another: `Snapshot`.

A snapshot is a dict of a versioned schema: origin, plain numbers and named arrays; `sealed` adds its form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any

import numpy as np

from sparse_mpi import arrays
from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import Array, as_arrays, to_host
from sparse_mpi.checks import check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.feedback.base import check_sizes, whole_state
from sparse_mpi.reduction.engine import Engine
from sparse_mpi.reduction.form import EARLIER, WHOLE, check_form, check_list, equal, sealed
from sparse_mpi.reduction.restoring import Surroundings, check_lanes, current, facts, lane_of, restore
from sparse_mpi.reduction.second_moment import LISTS
from sparse_mpi.states import shown

VERSION = 3  # number of the schema, since release 0.3
STEPS = "steps"  # steps since the state of the algorithm began
MOST = 2**62  # steps
PLACED = "placed"  # two-level placement of the algorithm on the ranks, if any
DTYPE = "dtype"  # dtype of the acc of the algorithm's state


class Snapshot:
    """The state of an engine, taken, restored and dealt out.

    Arrays of the feedback rule are *owed*, and added up over ranks, or replicated. The algorithm's state belongs to a
    rank, and begins afresh on others.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def taken(self) -> dict[str, Any]:
        engine = self._engine
        # Work queued on a device may still change these arrays
        synchronize((engine.feedback.residual, engine.exchange.state))
        # Owed and replicated arrays of the feedback rule lie side by side, by name
        owed = {name: to_host(array).copy() for name, array in whole_state(engine.feedback).items()}
        exchange = {"state": asdict(engine.exchange.state, dict_factory=on_host)}
        if self._placed != described(engine.exchange.algorithm):
            exchange[PLACED] = self._placed
        dtype = {DTYPE: engine.exchange.dtype and engine.exchange.dtype.name}
        moment = {} if engine.second_moment is None else engine.second_moment.state()
        return sealed({"version": VERSION, STEPS: engine.steps} | self._identity() | exchange | dtype | owed | moment)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a `taken` state, on the same rank of the same number of ranks. Collective."""
        engine = self._engine
        # Each rank tells how many bytes the numbers have that it is about to load, and of which lane its state is
        agreement = same_on_all_ranks(engine.comm, 3)
        with agreement as say:
            state = as_arrays(state)
            # Check everything before anything is loaded, for afterwards no rank may fail alone
            check_form(state)
            self._check(state)
            # Ranks that were placed otherwise had the same residuals, and another state, which begins anew
            there = self._is_there(state)
            empty = engine.exchange.instrumented.init(engine.layout, engine.settings.k, engine.comm.size)
            at = Surroundings(engine.exchange.placed, engine.layout, engine.comm.size, state.get(DTYPE))
            restored = restore(empty, state.get("state"), "state['state']", at) if there else None
            remembered = {name: state[name] for name in whole_state(engine.feedback)}
            agreement.words[:] = _widest(remembered), *lane_of(restored)
            say(call="load_state_dict", dtype=state.get(DTYPE), placed=there, steps=state.get(STEPS))
            alike = [*engine.feedback.state(replicated=True), *(LISTS if engine.second_moment is not None else ())]
            say(**facts(restored, {name: state[name] for name in alike}))
        check_lanes(agreement.rows[:, 1:])
        # All ranks take the widest type that any has, because acc must be of one type
        dtype = np.dtype(f"f{agreement.rows[:, 0].max()}")
        # Where a state does not tell the type of acc, it is that of the feedback rule's arrays
        engine.exchange.dtype = np.dtype(state.get(DTYPE) or dtype)
        if there:
            engine.exchange.state = restored
        else:
            engine.start_anew()
        self._load({name: array.astype(dtype, copy=False) for name, array in remembered.items()})
        if engine.second_moment is not None:
            engine.second_moment.load(state)
        engine.steps = state.get(STEPS, 0)

    def deal(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Restore the snapshots of ``ranks`` ranks, on any number of ranks. Collective."""
        engine, comm = self._engine, self._engine.comm
        agreement = same_on_all_ranks(comm, 3)
        with agreement as say:
            states = self._dealt(states, ranks)
            # Add up what the ranks r, r + P, ... owed: this rank's residual from now on
            owed = {name: added(states, name, engine.layout.size) for name in engine.feedback.state()}
            agreement.words[:] = _widest(owed), *steps_in(states)
            say(call="take_over", ranks=ranks)
        _check_steps(agreement.rows[:, 1:])
        # The same number of ranks: each has its own state back, to the bit
        if ranks == comm.size:
            return self.restore(states[0])
        dtype = np.dtype(f"f{agreement.rows[:, 0].max()}")  # the same on ranks that get nothing
        owed = {name: array.astype(dtype, copy=False) for name, array in owed.items()}
        # Other ranks: the algorithm's state was for the old ones, and begins afresh
        engine.start_anew()
        engine.exchange.dtype = None
        replicated, size = engine.feedback.state(replicated=True), engine.layout.size
        self._load(owed | {name: _from_first(states, name, size, comm) for name in replicated})
        if engine.second_moment is not None:
            engine.second_moment.deal(states, ranks, comm)

    def _dealt(self, states: Any, ranks: Any) -> list[dict[str, Any]]:
        check_ranks(ranks)
        check_list(states, "states")
        states = as_arrays(states)
        for number, state in enumerate(states):
            check_form(state, f"states[{number}]")
        comm = self._engine.comm
        expected = list(range(comm.rank, ranks, comm.size))
        if not equal([state.get("rank") for state in states], expected):
            raise ValueError(
                f"states must be those of ranks {expected} of {ranks}, got those of "
                f"{shown([state.get('rank') for state in states])}; deal them out as sparse_mpi.checkpoint.load does"
            )
        for state in states:
            self._check(state, rank=state["rank"], ranks=ranks)
        return states

    def _check(self, state: dict[str, Any], **where: Any) -> None:
        """Raise unless a saved ``state`` fits this engine."""
        if not equal(version := state.get("version"), VERSION):
            raise ValueError(
                f"state['version'] must be {VERSION}, got {shown(version)}; load it with the release it is of"
            )
        for key, expected in (self._identity() | where).items():
            if not equal(saved := state.get(key), expected):
                raise ValueError(
                    f"state[{key!r}] must be {expected!r}, got {shown(saved)}; load it into a reducer made with the "
                    f"arguments it was saved from; {EARLIER}"
                )
        steps_in([state])
        check_sizes(state, whole_state(self._engine.feedback), self._engine.layout.size)
        if self._engine.second_moment is not None:
            self._engine.second_moment.check_state(state)
        if self._is_there(state):
            current(self._engine.exchange.state, state.get("state"), "state['state']")
        if not any(equal(dtype := state.get(DTYPE), known) for known in (None, "float32", "float64")):
            raise ValueError(f"state[{DTYPE!r}] must be float32, float64 or None, got {shown(dtype)}; {WHOLE}")

    def _load(self, owed: dict[str, Any]) -> None:
        """Restore the feedback rule's arrays, after earlier work on them and before later work."""
        feedback = self._engine.feedback
        synchronize(feedback.residual)
        feedback.load(owed, self._engine.ranks)
        synchronize(feedback.residual)

    def _is_there(self, state: Mapping[str, Any]) -> bool:
        """Tell if the algorithm ran on the ranks of ``state`` as it does on these."""
        return equal(state.get(PLACED, state.get("algorithm")), self._placed)

    @property
    def _placed(self) -> Any:
        return described(self._engine.exchange.placed)

    def _identity(self) -> dict[str, Any]:
        engine = self._engine
        return {
            "algorithm": described(engine.exchange.algorithm),
            "memory": described(engine.settings.feedback),
            "shapes": engine.layout.shapes,
            "k": engine.settings.k,
            "rank": engine.comm.rank,
            "ranks": engine.comm.size,
        }


def described(value: object) -> Any:
    """Return an algorithm, rule or option in plain values: kind, and fields that differ from the default."""
    if isinstance(value, (list, tuple)):
        return [described(part) for part in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)
    found = {"kind": type(value).__name__}
    for field in fields(value):
        own = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        # Options of a feedback rule that its repr hides are none that a state must share, as `GlobalMomentum.late`. Nor
        # are the ranks of a node: a state may be dealt out to other ranks
        shared = (field.repr or isinstance(value, Algorithm)) and "of_ranks" not in field.metadata
        if field.init and shared and own != default:
            found[field.name] = described(own)
    return found


def synchronize(state: object) -> None:
    """Wait for all work on devices with arrays of ``state``: an array, a state, or a tuple."""
    if is_dataclass(state):
        state = tuple(getattr(state, field.name) for field in fields(state))
    if isinstance(state, tuple):
        for part in state:
            synchronize(part)
    else:
        arrays.synchronize_device(state)


def on_host(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the items with arrays on the host: a ``dict_factory`` of ``asdict``."""
    return {name: to_host(value) for name, value in items}


def added(states: Sequence[Mapping[str, Any]], name: str, size: int) -> Array:
    return sum((state[name] for state in states[1:]), states[0][name]) if states else np.zeros(size, np.float32)


def _from_first(states: Sequence[Mapping[str, object]], name: str, size: int, comm: Comm) -> Array:
    """Return the array ``name`` ``(n,)`` of rank 0's first state, on all ranks. Collective."""
    array = states[0][name] if comm.rank == 0 else np.zeros(0, np.uint8)
    # As bytes, because only rank 0 may know the type; their number tells it
    received = comm.bcast(np.ascontiguousarray(array).view(np.uint8), control=True)
    return received.view(f"f{len(received) // size}")


def steps_in(states: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the least and most steps of ``states``; TypeError or ValueError for a bad number."""
    steps = [state.get(STEPS, 0) for state in states]  # those of 0.4 have none
    for number in steps:
        check_whole(f"state[{STEPS!r}]", number, 0, "steps", WHOLE, most=MOST)
    return min(steps, default=MOST), max(steps, default=0)


def _check_steps(rows: np.ndarray) -> None:
    """Raise ValueError unless all ranks' states have as many steps, by rows of `steps_in`."""
    least, most = int(rows[:, 0].min()), int(rows[:, 1].max())
    if least < most:
        raise ValueError(
            f"states must be of the same number of steps, got those of {least} and {most}; load those that all ranks "
            "have saved together"
        )


def check_ranks(ranks: object) -> None:
    check_whole("ranks", ranks, 1, remedy="give Checkpoint.ranks", most=2**20)  # a list fits in memory


def _widest(arrays: Mapping[str, Array]) -> int:
    return max((array.dtype.itemsize for array in arrays.values()), default=np.dtype(np.float32).itemsize)
