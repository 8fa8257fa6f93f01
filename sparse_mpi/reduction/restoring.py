"""Restore an algorithm's state from plain values, each in its range, and the same where ranks must be alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.algorithms.two_level import TwoLevelState
from sparse_mpi.kernels.base import Later
from sparse_mpi.reduction.form import EARLIER, check_list, check_mapping, checksum, equal
from sparse_mpi.sparse import Layout
from sparse_mpi.states import ANY, WHOLE, Range, bounds_of, range_of, replicated, shown

INNER = "inner"  # the field of a `TwoLevelState` that has the lane's state
LEAVES = (np.ndarray, str, (bool, int, float, np.generic, Later))  # the kinds of leaves without a range


class Surroundings(NamedTuple):
    """The place of a state: algorithm, vector, ranks, and dtype of acc or None."""

    algorithm: Algorithm
    layout: Layout
    ranks: int
    dtype: str | None
    segment: Layout | None = None  # layout of a lane's vector

    def part(self, number: int) -> Surroundings:
        if number >= len(self.algorithm.parts):  # a tuple of another algorithm
            return self
        part: Any = self.algorithm.parts[number]
        return self._replace(algorithm=part.algorithm, layout=part.cut(self.layout, 1)[0])

    def lane(self, start: int, stop: int, members: np.ndarray) -> Surroundings:
        if stop <= start:
            return self
        segment = Layout.of(stop - start)
        return self._replace(layout=segment, ranks=max(len(members), 1), segment=segment)


def restore(template: Any, saved: Any, where: str, at: Surroundings, declared: Range = ANY) -> Any:
    """Invert ``asdict``: return a state of ``template``'s type that shares no array; errors call it ``where``."""
    # Parts, for example of a hybrid algorithm, one by one
    if isinstance(template, tuple) and any(map(is_dataclass, template)):
        check_list(saved, where)
        if len(saved) != len(template):
            raise ValueError(f"{where} must have {len(template)} parts, got {len(saved)}; {WHOLE}")
        pairs = enumerate(zip(template, saved, strict=True))
        return tuple(restore(was, part, f"{where}[{n}]", at.part(n)) for n, (was, part) in pairs)
    # A leaf must be in its range; where none is declared, of the kind that it replaces
    if not is_dataclass(template) or isinstance(template, type):
        if declared is not ANY:
            return declared.checked(where, saved, template, bounds_of(at.layout.size, at.ranks, at.dtype))
        if any(isinstance(saved, kind) != isinstance(template, kind) for kind in LEAVES):
            raise TypeError(f"{where} must be like {template!r}, got {shown(saved)}; {WHOLE}")
        return saved.copy() if isinstance(saved, np.ndarray) else saved
    # A state, field by field
    saved = current(template, saved, where)
    if isinstance(template, Layout):  # kernels would write by another one
        expected = at.segment or template
        if not equal(freeze(saved["shapes"]), expected.shapes):
            raise ValueError(f"{where} must be {expected}, got {shown(saved['shapes'])}; {WHOLE}")
        return expected
    made: dict[str, Any] = {}
    for field in sorted(fields(template), key=lambda field: field.name == INNER):  # INNER is last
        if field.name == INNER and isinstance(template, TwoLevelState):
            at = at.lane(made["start"], made["stop"], made["members"])
        own = f"{where}[{field.name!r}]"
        if field.name not in saved:
            made[field.name] = getattr(template, field.name)
            continue
        made[field.name] = restore(getattr(template, field.name), saved[field.name], own, at, range_of(field))
    return type(template)(**made)


def freeze(tree: object) -> object:
    return tuple(map(freeze, tree)) if isinstance(tree, (list, tuple)) else tree


def lane_of(state: object) -> tuple[int, int]:
    """Return a checksum of what this rank's lane has in common in ``state``, and its number of members."""
    pieces: tuple[object, ...] = getattr(state, "pieces", (state,))
    inside = [part for part in pieces if isinstance(part, TwoLevelState)]
    alike = [[part.start, part.stop, part.members.tolist()] for part in inside]
    alike += [[name, fact(value)] for part in inside for name, value in replicated(part.inner, INNER)]
    return crc32(repr(alike).encode()), max((len(part.members) for part in inside), default=0)


def check_lanes(rows: np.ndarray) -> None:
    """Raise ValueError unless all members of a lane have the same row of `lane_of`, ``(P, 2)``."""
    sums, members = rows.T.tolist()
    for rank, (own, number) in enumerate(zip(sums, members, strict=True)):
        if number and sums.count(own) != number:
            raise ValueError(
                f"state['state'] must have the same start, stop, members and {INNER} on all {number} ranks of a lane, "
                f"got others on rank {rank}; load the states of one step"
            )


def facts(state: object, beside: Mapping[str, object]) -> dict[str, str]:
    """Return texts of what all ranks have alike in ``state`` and ``beside``, by name."""
    found = {f"[{name!r}]": value for name, value in beside.items()} | dict(replicated(state, "['state']", INNER))
    return {f"state{path}": fact(value) for path, value in found.items()}


def fact(value: object) -> str:
    if isinstance(value, np.ndarray):
        return checksum(value)[-8:]
    return f"{value}" if isinstance(value, (bool, int, float)) else f"{crc32(repr(value).encode()):08x}"


def current(template: Any, saved: Any, where: str) -> Mapping[str, Any]:
    """Return the fields of ``template`` in ``saved``: all, or what an earlier release had.

    Raise TypeError or ValueError for other fields.
    """
    check_mapping(saved, where)
    names = [field.name for field in fields(template)]
    for gone, new in getattr(template, "earlier", ()):
        if {*saved} == {*names, *gone} - {*new}:
            return {name: value for name, value in saved.items() if name not in gone}
    if {*saved} != {*names}:
        raise ValueError(f"{where} must have {', '.join(names)}, got {', '.join(map(str, saved))}; {WHOLE}; {EARLIER}")
    return saved
