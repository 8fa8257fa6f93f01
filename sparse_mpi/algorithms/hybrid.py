"""Hybrid collective (ADTopk, HPDC'24; HiPress, SOSP'21): an algorithm for each part of the tensors.

Costs the sum of its parts. A part's tensors are fused into one vector, which one algorithm reduces; parts run one by
one. Needs a layout. The result is dense if more than an eighth of the elements come from dense results, else sparse.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits
from sparse_mpi.arrays import Array, index_dtype, like, namespace
from sparse_mpi.checks import check_instance, check_range
from sparse_mpi.comm import Comm
from sparse_mpi.sparse import Layout, SparseVector, concatenate, merge


@dataclass(frozen=True)
class Fused:
    """Tensors reduced as one vector.

    Args:
        algorithm: reduces the vector.
        tensors: tensors' numbers in the layout, ascending.
        share: fraction of k; dense algorithms ignore it.
    """

    algorithm: Algorithm
    tensors: tuple[int, ...]
    share: float

    def __post_init__(self) -> None:
        check_instance("algorithm", self.algorithm, Algorithm)
        check_range("share", self.share, "[0, 1]", "it is the part's entries over those of all")
        if not self.tensors or any(a >= b for a, b in itertools.pairwise(self.tensors)):
            raise ValueError(f"tensors must be numbers of tensors in ascending order, at least one, got {self.tensors}")

    def cut(self, layout: Layout, k: int) -> tuple[Layout, int]:
        fused = Layout(tuple(layout.shapes[tensor] for tensor in self.tensors))
        return fused, min(max(round(self.share * k), 1), fused.size)


@dataclass(frozen=True)
class _HybridState:
    pieces: tuple[Any, ...]  # the states of all parts, in order


@dataclass(frozen=True)
class Hybrid(Algorithm):
    """Reduce each part of a gradient by its own algorithm.

    Args:
        parts: `Fused` tensors; every tensor of the layout is in exactly one part.
    """

    parts: tuple[Fused, ...] = field()

    @cached_property
    def traits(self) -> Traits:
        parts = [part.algorithm.traits for part in self.parts]
        return Traits(
            conserves=all(part.conserves for part in parts),
            delegates_residual=any(part.delegates_residual for part in parts),
            rounds_relative_to_norm=any(part.rounds_relative_to_norm for part in parts),
            lossless=all(part.lossless for part in parts),
        )

    def init(self, layout: Layout, k: int, ranks: int) -> _HybridState:
        placed = sorted(tensor for part in self.parts for tensor in part.tensors)
        if placed != list(range(len(layout.shapes))):
            raise ValueError(
                f"parts must have each of the {len(layout.shapes)} tensors of the layout once, got {placed}; "
                "make the plan for this model"
            )
        if empty := [part for part in self.parts if not part.cut(layout, k)[1]]:
            raise ValueError(f"a part must have elements, got none for {empty[0]}; leave its tensors out of the layout")
        return _HybridState(
            tuple(algorithm.init(fused, kept, ranks) for algorithm, fused, kept in self._cut(layout, k))
        )

    def _cut(self, layout: Layout, k: int) -> Iterator[tuple[Algorithm, Layout, int]]:
        for part in self.parts:
            yield part.algorithm, *part.cut(layout, k)

    def forget(self, state: _HybridState) -> _HybridState:
        pairs = zip(self.parts, state.pieces, strict=True)
        return _HybridState(tuple(part.algorithm.forget(before) for part, before in pairs))

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: _HybridState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, _HybridState]:
        reductions, states = [], []
        places = [_FusedRanges(stretches(layout, part.tensors)) for part in self.parts]
        # Reduce part after part: its tensors are fused into one vector.
        for (algorithm, fused, kept), place, before in zip(self._cut(layout, k), places, state.pieces, strict=True):
            reduction, after = algorithm.reduce(_fuse(acc, place.ranges), kept, comm, before, fused)
            reductions.append(reduction)
            states.append(after)
        # Place total and sent of each part in the flat vector.
        total = join([reduction.total for reduction in reductions], places, acc)
        sent = join([reduction.sent for reduction in reductions], places, acc)
        return Reduction(total, sent), _HybridState(tuple(states))

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        bounds = [algorithm.bound(fused, kept, ranks) for algorithm, fused, kept in self._cut(layout, k)]
        return Bound(*(sum(column) for column in zip(*bounds, strict=True)))

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        """Return the sums over the parts; at most n where `join` may return a dense vector."""
        bands = [(*a.result_band(fused, kept, ranks), fused.size) for a, fused, kept in self._cut(layout, k)]
        dense = sum(size for least, _, size in bands if least == size)
        least, most, _ = (sum(column) for column in zip(*bands, strict=True))
        return least, layout.size if 8 * dense > layout.size else most

    def exact_order(self, layout: Layout, k: int) -> bool:
        return all(algorithm.exact_order(fused, kept) for algorithm, fused, kept in self._cut(layout, k))


class _FusedRanges(NamedTuple):
    ranges: tuple[tuple[int, int], ...]  # the ranges of the flat vector that were fused

    def spread(self, values: Array, flat: Array) -> None:
        first = 0
        for start, stop in self.ranges:
            flat[start:stop] = values[first : first + stop - start]
            first += stop - start

    def positions(self, indices: Array, size: int) -> Array:
        """Return the indices in the flat vector of length ``size`` for ``indices`` in the fused one."""
        # Each range moves by the distance between its start and its place in the fused vector.
        starts, stops = np.array(self.ranges).T
        firsts = np.cumsum(stops - starts) - (stops - starts)
        moves, kind = starts - firsts, index_dtype(size)
        if len(moves) == 1:
            return indices.astype(kind) + kind.type(moves[0])
        range_of = namespace(indices).searchsorted(like(firsts[1:], indices), indices, side="right")
        return indices.astype(kind) + like(moves.astype(kind), indices)[range_of]


@lru_cache(maxsize=64)
def stretches(layout: Layout, tensors: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of the flat vector that hold these tensors; adjacent ranges are joined."""
    ranges: list[tuple[int, int]] = []
    for tensor in tensors:
        start, size = layout.offsets[tensor], layout.sizes[tensor]
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, layout.offsets[tensor] + size))
    return tuple(ranges)


def _fuse(flat: Array, ranges: tuple[tuple[int, int], ...]) -> Array:
    parts = [flat[start:stop] for start, stop in ranges]
    return parts[0] if len(parts) == 1 else namespace(flat).concatenate(parts)


def join(results: Sequence[SparseVector | Array], places: Sequence[_FusedRanges], flat: Array) -> SparseVector | Array:
    """Return all parts' results as one like ``flat`` ``(n,)``: dense if over an eighth comes from dense ones."""
    n, xp = len(flat), namespace(flat)
    if len(results) == 1:
        return results[0]
    # Write all results into one dense vector, where pairs of the dense results would be larger.
    dense = sum(len(result) for result in results if not isinstance(result, SparseVector))
    if 8 * dense > n:
        joined = (xp.empty if dense == n else xp.zeros)(n, flat.dtype)
        for result, place in zip(results, places, strict=True):
            if isinstance(result, SparseVector):
                joined[place.positions(result.indices, n)] = result.values
            else:
                place.spread(result, joined)
        return joined
    # Otherwise make pairs of all results, and sort them.
    pairs = []
    for result, place in zip(results, places, strict=True):
        if not isinstance(result, SparseVector):
            result = SparseVector(xp.arange(len(result)), result, len(result))
        pairs.append(SparseVector(place.positions(result.indices, n), result.values, n))
    return merge(concatenate(pairs))
