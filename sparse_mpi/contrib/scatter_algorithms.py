"""Reduce-scatters, the first halves of allreduces: each rank gets the sums of its own part of the vector only.

A part is ``counts[rank]`` consecutive entries, as in MPI_Reduce_scatter. ``total`` has the entries of this rank's part
alone, whose indices count from its start.

`OkTopkScatter` costs 2k(P-1)/P words and P - 1 messages a rank where entries lie evenly, and up to 2k words where all
of a rank's selection belongs to others. All selected entries arrive, without a second selection, so ``sent`` is the
selection, and all parts together have up to kP entries. Parts are given, so Ok-Topk's balanced regions, threshold over
all ranks and balancing of results are not needed.

`ElectScatter` costs as much as `elect.py` says, less the allgather of k(P-1)/P values in ceil(log2 P) messages: all
ranks know the k elected entries, so owners get bare values. `DenseScatter` costs n(P-1)/P words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits
from sparse_mpi.algorithms.elect import Elect, ElectState
from sparse_mpi.algorithms.exchange import split_reduce, stages
from sparse_mpi.arrays import Array, index_dtype, namespace
from sparse_mpi.checks import check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.select import Selector
from sparse_mpi.select.base import most_selected
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import Layout, NoState, SparseVector, equal_boundaries, split_counts
from sparse_mpi.wire import BitPacked, Coo, Int8, SizeBound, Wire


@dataclass(frozen=True)
class Scatter(Algorithm):
    """The base class of algorithms that leave each part of the sum with its owner.

    Args:
        counts: ``(P,)`` the number of consecutive entries that each rank owns; None: nearly equal numbers. States do
            not depend on it.
    """

    counts: Sequence[int] | None = field(default=None, kw_only=True, repr=False, metadata={"of_ranks": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.counts is None:
            return
        if np.asarray(self.counts, object).ndim != 1 or not len(self.counts):
            raise TypeError(
                f"counts must be a sequence of a number for each rank, got {self.counts!r}; None makes them equal"
            )
        for number in self.counts:
            check_whole("counts", number, 0, "entries of each rank", "None makes them equal")
        object.__setattr__(self, "counts", tuple(map(int, self.counts)))

    def boundaries(self, size: int, ranks: int) -> np.ndarray:
        """Return ``(P + 1,)`` int64: rank q owns ``[boundaries[q], boundaries[q + 1])`` of ``size`` entries.

        Raises:
            ValueError: ``counts`` has not one number for each of the ``ranks``, or they do not add up to ``size``.
        """
        if self.counts is None:
            return equal_boundaries(size, ranks)
        if len(self.counts) != ranks or sum(self.counts) != size:
            raise ValueError(
                f"counts must be {ranks} numbers, one for each rank, that add up to the {size} elements of layout, got "
                f"{len(self.counts)} that add up to {sum(self.counts)}; None makes them equal"
            )
        return np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])

    def most_sent(self, size: int, ranks: int) -> int:
        """Return the most entries that a rank may send: all but its own part."""
        return size - int(np.diff(self.boundaries(size, ranks)).min())

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        """Return 0, because nothing may be selected of a rank's part, and the length of the longest part."""
        return 0, int(np.diff(self.boundaries(layout.size, ranks)).max())


def part_of(sums: Array, indices: Array, start: int, stop: int) -> SparseVector:
    """Return ``sums`` at these ``indices`` of the whole vector as entries of its part ``[start, stop)``."""
    size = stop - start
    return SparseVector((indices - start).astype(index_dtype(size), copy=False), sums, size)


@dataclass(frozen=True)
class DenseScatter(Scatter):
    """Add up every element, as MPI_Reduce_scatter does; k is ignored."""

    @property
    def traits(self) -> Traits:
        return Traits(scatters=True)

    def init(self, layout: Layout, k: int, ranks: int) -> NoState:
        return NoState()

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: NoState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, NoState]:
        """Return the sum of this rank's part, which has all entries; ``sent`` is ``acc`` itself."""
        counts = np.diff(self.boundaries(len(acc), comm.size))
        width = int(counts[comm.rank])
        # Exchange: every rank knows how long all messages are. Then add up, in rank order.
        received, _ = comm.alltoallv(acc, counts, np.full(comm.size, width))
        sums = kernels.of(received).add_rows(received.reshape(comm.size, width))
        return Reduction(part_of(sums, namespace(acc).arange(width), 0, width), acc), state

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """Return all values but the shortest part."""
        return Bound(0, self.most_sent(layout.size, ranks), ranks - 1, 0)


@dataclass(frozen=True)
class OkTopkScatter(Scatter):
    """Ok-Topk's split and reduce (Li & Hoefler, PPoPP'22): selected entries go to the rank that owns them.

    Args:
        selector, wire, radix: as for `OkTopk`.
        counts: see `Scatter`.
    """

    selector: Selector = Threshold()
    wire: Wire = Coo()
    radix: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radix is not None:
            check_whole("radix", self.radix, 2, "groups a stage", "None makes a single stage")

    @cached_property
    def traits(self) -> Traits:
        return Traits(scatters=True, lossless=self.wire.lossless, accumulates=True)

    def init(self, layout: Layout, k: int, ranks: int) -> Any:
        return self.selector.init(layout, k)

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: object, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, Any]:
        """Return the sum of all selections in this rank's part; ``sent`` is its own selection, as it arrives."""
        # Select by the local threshold: about k entries of this rank's acc.
        selected, state = self.selector.select(acc, k, state, add)
        # Split and reduce: each rank gets the sum of all selections in its part.
        boundaries = self.boundaries(len(acc), comm.size)
        summed, sent, _ = split_reduce(selected, boundaries, self.radix, self.wire, comm)
        start, stop = boundaries[comm.rank : comm.rank + 2].tolist()
        return Reduction(part_of(summed.values, summed.indices, start, stop), sent), state

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """Return k pairs, with the selector's margin beyond k: a whole selection may lie in others' parts.

        With a radix the bound assumes that no two ranks selected the same entry and that all entries lie in one part.
        """
        if ranks == 1:
            return Bound(0, 0, 0, 0)
        n, most, exchange = layout.size, most_selected(self.selector, layout, k), stages(ranks, self.radix)
        leaving = n if self.radix else self.most_sent(n, ranks)
        split = [self.wire.max_size(min(leaving, most * selections), n, number) for number, selections in exchange]
        return Bound.of(sum(split, SizeBound()), sum(number for number, _ in exchange), 0)


@dataclass(frozen=True)
class ElectScatter(Scatter):
    """Elect without its last allgather: all ranks know which entries are elected, and send their owners bare values.

    Args:
        selector, votes, wire, radix: as for `Elect`.
        counts: see `Scatter`.
    """

    selector: Selector = Threshold()
    votes: float = 0.42
    wire: Wire = BitPacked(Int8())
    radix: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._elect  # which checks its options

    @cached_property
    def _elect(self) -> Elect:
        """Return the algorithm that elects."""
        return Elect(self.selector, self.votes, self.wire, self.radix)

    @cached_property
    def traits(self) -> Traits:
        return replace(self._elect.traits, scatters=True, carries=False)

    def init(self, layout: Layout, k: int, ranks: int) -> ElectState:
        return self._elect.init(layout, k, ranks)

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: ElectState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, ElectState]:
        """Return the sums of all ranks' ``acc`` at the elected entries of this rank's part.

        Returns:
            The reduction and the next state. ``sent`` is acc at all elected entries, less rounding errors.
        """
        # Elect: the same entries on all ranks.
        elected, state = self._elect.elect(acc, k, comm, state, add)
        contribution = SparseVector(elected, kernels.of(acc).gather(acc, elected), len(acc))
        # Sum: owners add up the values of the elected entries in their parts, whose indices they know.
        boundaries = self.boundaries(len(acc), comm.size)
        bounds = np.concatenate([[0], np.cumsum(split_counts(contribution, boundaries))])
        wire = self._elect.sum_wire(k, len(acc), comm.size)
        sums, sent = self._elect.reduce_scatter(contribution.values, bounds, comm, wire)
        (start, stop), own = boundaries[comm.rank : comm.rank + 2].tolist(), slice(*bounds[comm.rank : comm.rank + 2])
        return Reduction(part_of(sums.values, elected[own], start, stop), contribution._replace(values=sent)), state

    def forget(self, state: ElectState) -> ElectState:
        return self._elect.forget(state)

    def selected_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        """Return the bounds of a rank's candidates for its votes."""
        return self._elect.selected_band(layout, k, ranks)

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        """Return 0, and k or the length of the longest part."""
        return 0, min(k, super().result_band(layout, k, ranks)[1])

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """Return the most that one rank sends in a step: votes, indices of the elected, and their values once."""
        return Bound.of(*self._elect.first_half(layout, k, ranks))


# By the names of the allreduces that they are the first halves of
REDUCE_SCATTERS: dict[str, type] = {"dense": DenseScatter, "oktopk": OkTopkScatter, "elect": ElectScatter}
