"""What planning is about: a profile of the job and the machine goes in, a plan comes out. Plain values, all in seconds.

A plan shares the tensors of a gradient out among *parts*. The tensors of a part are fused into one vector, and that is
reduced by one algorithm: `sparse_mpi.algorithms.hybrid` does it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from sparse_mpi.costs.model import Network


class Tensor(NamedTuple):
    """One tensor of the gradient."""

    name: str
    shape: tuple[int, ...]
    ready: float = 0.0  # seconds from the beginning of the backward pass until its gradient is final

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Cost:
    """What a phase of a reduction takes: ``fixed + per_element * elements + per_entry * entries`` seconds."""

    fixed: float = 0.0
    per_element: float = 0.0
    per_entry: float = 0.0

    def seconds(self, elements: float, entries: float) -> float:
        """For a vector of that many elements, of which a rank sends that many entries."""
        return self.fixed + self.per_element * elements + self.per_entry * entries


@dataclass(frozen=True)
class Option:
    """A way of reducing a part, and what it costs here."""

    name: str  # in ALGORITHMS
    dense: bool  # whether all elements are sent, whatever the density
    select: Cost  # what a rank computes before it can send
    exchange: Cost  # communication
    merge: Cost  # what a rank computes afterwards, error feedback included


@dataclass(frozen=True)
class Profile:
    """A training job and the machine it runs on, as measured there."""

    tensors: tuple[Tensor, ...]  # in the order of the flat gradient
    ranks: int
    density: float  # share of the gradient's elements that sparse reductions send
    before: float  # seconds of a step before the backward pass: making the batch, forward pass
    backward: float  # seconds of the backward pass
    update: float  # seconds of the optimizer's step
    network: Network  # fitted to allreduces
    options: tuple[Option, ...]
    gather: float = 0.0  # seconds an element to copy tensors that are not neighbours into one vector

    @property
    def size(self) -> int:
        """n, elements of the gradient."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def k(self) -> int:
        """Entries of the gradient that a rank sends where everything is sparse."""
        return max(1, round(self.density * self.size))

    def option(self, name: str) -> Option:
        """The option of that name."""
        return next(option for option in self.options if option.name == name)


@dataclass(frozen=True)
class Part:
    """Tensors that are reduced together."""

    option: str  # name of the algorithm
    tensors: tuple[int, ...]  # their numbers, ascending
    k: int  # entries a rank sends; all elements where the option is dense
    partitions: int = 1  # into how many pieces of equal length the fused vector is cut, one reduction each


@dataclass(frozen=True)
class Plan:
    """Which tensors go together, and how."""

    planner: str  # who made it
    tensors: tuple[tuple[str, tuple[int, ...]], ...]  # name and shape of each
    ranks: int
    density: float
    parts: tuple[Part, ...]  # in the order in which they are reduced; every tensor is in exactly one
    predicted: float  # seconds of a training step, by the profile
    overlap: bool = False  # whether that counts on reductions beginning during the backward pass
    cpu_lane: bool = False  # and on selection and merging beside the training's own computing
