"""The values of planning: a profile of the job and the machine goes in, a plan comes out. All times are seconds.

A plan divides the tensors of a gradient into *parts*. The tensors of a part are fused into one vector, which one
algorithm reduces. `sparse_mpi.algorithms.hybrid` carries a plan out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from sparse_mpi.comm.network import Network


class Tensor(NamedTuple):
    """One tensor of the gradient."""

    name: str  #: as its parameter is called
    shape: tuple[int, ...]  #: of its parameter
    ready: float = 0.0  #: seconds from the beginning of the backward pass until its gradient is final

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class PhaseCost:
    """The cost of a phase of a reduction: ``fixed + per_element * elements + per_entry * entries`` seconds."""

    fixed: float = 0.0
    per_element: float = 0.0
    per_entry: float = 0.0

    def seconds(self, elements: float, entries: float) -> float:
        """Return the seconds for a vector of ``elements`` elements, of which a rank sends ``entries``."""
        return self.fixed + self.per_element * elements + self.per_entry * entries


@dataclass(frozen=True)
class Option:
    """An algorithm that may reduce a part, and what its phases cost on this machine."""

    name: str  #: a key of ALGORITHMS
    dense: bool  #: whether all elements are sent, whatever the density
    select: PhaseCost  #: what a rank computes before it can send
    exchange: PhaseCost  #: communication
    merge: PhaseCost  #: what a rank computes afterwards, error feedback included


@dataclass(frozen=True)
class Profile:
    """A training job and the machine it runs on, as measured there."""

    tensors: tuple[Tensor, ...]  #: in the order of the flat gradient
    ranks: int
    density: float  #: share of the gradient's elements that sparse reductions send
    before: float  #: seconds of a step before the backward pass, for making the batch and the forward pass
    backward: float  #: seconds of the backward pass
    update: float  #: seconds of the optimizer's step
    network: Network  #: fitted to allreduces
    options: tuple[Option, ...]
    gather: float = 0.0  #: seconds an element to copy tensors that are not neighbours into one vector

    @property
    def size(self) -> int:
        """Return n, the number of elements of the gradient."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def k(self) -> int:
        """Return how many entries a rank sends if all tensors are reduced sparsely."""
        return max(1, round(self.density * self.size))

    def option(self, name: str) -> Option:
        """Return the option of that name."""
        return next(option for option in self.options if option.name == name)


@dataclass(frozen=True)
class PlannedPart:
    """Tensors that are reduced together."""

    option: str  #: name of the algorithm
    tensors: tuple[int, ...]  #: their numbers, ascending
    k: int  #: entries a rank sends; all elements where the option is dense
    partitions: int = 1  #: into how many pieces of equal length the fused vector is cut, one reduction each


@dataclass(frozen=True)
class Plan:
    """A division of the tensors into parts, with an algorithm for each part."""

    planner: str  #: name of the planner that made it
    tensors: tuple[tuple[str, tuple[int, ...]], ...]  #: name and shape of each
    ranks: int
    density: float
    parts: tuple[PlannedPart, ...]  #: in the order in which they are reduced; every tensor is in exactly one
    predicted: float  #: seconds of a training step, by the profile
    overlap: bool = False  #: True in files before 0.4 that count on reductions during the backward pass
    cpu_lane: bool = False  #: True in those that count on cores beside the training's own
