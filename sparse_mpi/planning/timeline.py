"""The seconds of a training step whose gradient is reduced as a plan says, after the backward pass.

A step computes for `Profile.before` seconds, runs the backward pass, reduces all parts and updates. A reduction is cut
into equal pieces (`PlannedPart.partitions`), which are selected, exchanged and merged, one after another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sparse_mpi.planning.base import PlannedPart, Profile


class Load(NamedTuple):
    """When a part is ready, from the beginning of the backward pass, and the seconds of each piece in each phase."""

    ready: float
    pieces: int
    select: float
    exchange: float
    merge: float


def load(profile: Profile, part: PlannedPart) -> Load:
    """Return what ``part`` costs, copies of tensors that are not neighbours included."""
    option = profile.option(part.option)
    elements = sum(profile.tensors[number].size for number in part.tensors) / part.partitions
    k = part.k / part.partitions
    neighbours = part.tensors[-1] - part.tensors[0] + 1 == len(part.tensors)
    whole = len(part.tensors) == len(profile.tensors)
    fusing = 0.0 if neighbours else profile.gather * elements
    parting = 2 * profile.gather * elements if option.dense and not whole else 0.0  # total and sent
    return Load(
        min(profile.backward, max(profile.tensors[number].ready for number in part.tensors)),
        part.partitions,
        option.select.seconds(elements, k) + fusing,
        option.exchange.seconds(elements, k),
        option.merge.seconds(elements, k) + parting,
    )


def step_seconds(profile: Profile, loads: Iterable[Load]) -> float:
    """Return the seconds of a step that reduces parts of these loads."""
    end = profile.before + profile.backward
    for _, pieces, select, exchange, merge in loads:
        for _ in range(pieces):
            end = end + select + exchange + merge
    return end + profile.update
