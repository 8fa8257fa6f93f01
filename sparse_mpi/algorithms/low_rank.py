"""Shared by low-rank algorithms: a layout's matrices, their factors, and products of both in flat vectors.

A tensor of at least two dimensions is a matrix M of ``d0`` rows, approximated by P Q^T of low rank. Other tensors, and
matrices no larger than their factors, stay dense. Matrices of one shape form a group with stacked factors, *left* ones
P ``(m, rows, rank)`` and *right* ones Q^T ``(m, rank, columns)``. The flat vector that is sent and remembered holds the
factors of all groups in turn.

Every rank multiplies out the summed factors. For the same bits, all ranks need the same linear algebra library, kind of
processor and number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from sparse_mpi.algorithms.base import Algorithm, Traits
from sparse_mpi.arrays import Array, like, namespace
from sparse_mpi.checks import check_whole
from sparse_mpi.sparse import Layout
from sparse_mpi.states import ranged


class SameShape(NamedTuple):
    rows: int
    columns: int
    rank: int  # the factors' rank
    runs: tuple[tuple[int, int], ...]  # start and number of matrices that lie one after the other

    def factor_shape(self, left: bool) -> tuple[int, int, int]:
        count = sum(count for _, count in self.runs)
        return (count, self.rows, self.rank) if left else (count, self.rank, self.columns)

    def matrices(self, vector: Array) -> Iterator[tuple[Array, slice]]:
        """Yield views ``(count, rows, columns)`` of matrices in ``vector`` ``(n,)``, and their slice of the group."""
        first, size = 0, self.rows * self.columns
        for start, count in self.runs:
            stack = vector[start : start + count * size].reshape(count, self.rows, self.columns)
            yield stack, slice(first, first + count)
            first += count


class Parts(NamedTuple):
    """A layout, divided into matrices that are compressed and dense elements."""

    size: int  # n, length of the flat vector
    groups: tuple[SameShape, ...]
    dense: tuple[tuple[int, int], ...]  # start and stop of elements that stay dense

    @property
    def dense_size(self) -> int:
        return sum(stop - start for start, stop in self.dense)

    def factors_size(self, left: bool) -> int:
        return sum(prod(group.factor_shape(left)) for group in self.groups)

    def factors(self, flat: Array, left: bool) -> list[Array]:
        """Return views of the left or right factors at the front of a flat vector, stacked by group."""
        views, start = [], 0
        for group in self.groups:
            shape = group.factor_shape(left)
            views.append(flat[start : start + prod(shape)].reshape(shape))
            start += prod(shape)
        return views

    def project(self, acc: Array, bases: Sequence[Array], left: bool, dense: bool) -> Array:
        """Return a rank's message: left factors M Q for right ``bases``, or right ones P^T M for left ``bases``.

        The dense elements follow if ``dense``.
        """
        # Multiply each group's matrices with its factors, straight into the message.
        xp, size = namespace(acc), self.factors_size(left)
        message = xp.empty(size + dense * self.dense_size, acc.dtype)
        for group, basis, factors in zip(self.groups, bases, self.factors(message, left), strict=True):
            transposed = basis.transpose(0, 2, 1)
            for stack, members in group.matrices(acc):
                pair = (stack, transposed[members]) if left else (transposed[members], stack)
                xp.matmul(*pair, out=factors[members])
        # Append the elements that stay dense.
        for start, stop in self.dense if dense else ():
            message[size : size + stop - start] = acc[start:stop]
            size += stop - start
        return message

    def expand(self, lefts: Sequence[Array], rights: Sequence[Array], dense: Array) -> Array:
        """Return a vector ``(n,)``: the factors' products, and the ``dense`` elements in their places."""
        xp = namespace(dense)
        vector = xp.empty(self.size, dense.dtype)
        for group, left, right in zip(self.groups, lefts, rights, strict=True):
            for stack, members in group.matrices(vector):
                xp.matmul(left[members], right[members], out=stack)
        first = 0
        for start, stop in self.dense:
            vector[start:stop] = dense[first : first + stop - start]
            first += stop - start
        return vector


@lru_cache(maxsize=64)
def parts_of(layout: Layout, rank: int) -> Parts:
    groups: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    dense: list[tuple[int, int]] = []
    for shape, size, start in zip(layout.shapes, layout.sizes, layout.offsets, strict=True):
        rows = shape[0] if len(shape) > 1 and size else 1
        columns = size // rows
        r = min(rank, rows, columns)  # the rank of the factors
        if r * (rows + columns) >= size:
            first = dense.pop()[0] if dense and dense[-1][1] == start else start
            dense.append((first, start + size))
        else:
            runs = groups.setdefault((rows, columns, r), [])
            adjacent = runs and runs[-1][0] + runs[-1][1] * size == start
            first, count = runs.pop() if adjacent else (start, 0)
            runs.append((first, count + 1))
    return Parts(layout.size, tuple(SameShape(*key, tuple(runs)) for key, runs in groups.items()), tuple(dense))


def orthonormal(factors: Array, left: bool) -> Array:
    """Return stacked factors of the same span with orthonormal columns (right ones: rows); NaN for NaN or Inf."""
    xp = namespace(factors)
    basis = xp.linalg.qr(factors if left else factors.transpose(0, 2, 1))[0]
    basis[~xp.isfinite(factors).all(axis=(1, 2))] = np.nan
    return basis if left else basis.transpose(0, 2, 1)


def drawn(group: SameShape, number: int, left: bool, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, number, left]).standard_normal(group.factor_shape(left))


@dataclass(frozen=True)
class LowRankState:
    # flat: summed factors of the last step, whose span is the next one's start; finite, none zero
    factors: Array = ranged("(-inf, inf)", replicated=True)
    left: bool = ranged(default=False, replicated=True)  # True: the factors are left ones


@dataclass(frozen=True)
class LowRank(Algorithm):
    """A low-rank algorithm's hyperparameters and first state.

    Args:
        rank: most columns of a factor.
        seed: seed of the random factors, at the start and for lost ones.
    """

    rank: int = 4
    seed: int = 0

    # Elements of products of matrices are rounded so, by each library in an order of its own
    traits: ClassVar[Traits] = Traits(rounds_relative_to_norm=True, device_difference=1e-5, exact_order=False)

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, 1, remedy="4 suits most convolutional networks")
        check_whole("seed", self.seed, 0)

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        return layout.size, layout.size

    def init(self, layout: Layout, k: int, ranks: int) -> LowRankState:
        """Return random right factors, in float64 because the gradient's dtype is not known yet."""
        groups = parts_of(layout, self.rank).groups
        starts = [drawn(group, number, False, self.seed).ravel() for number, group in enumerate(groups)]
        return LowRankState(np.concatenate([np.empty(0), *starts]))

    def last_factors(self, state: LowRankState, layout: Layout, acc: Array) -> tuple[list[Array], bool]:
        """Return ``state``'s factors, or the first ones if these do not fit; and whether they are left ones."""
        parts = parts_of(layout, self.rank)
        if len(state.factors) != parts.factors_size(state.left):
            state = self.init(layout, 1, 1)
        return parts.factors(like(state.factors, acc).astype(acc.dtype, copy=False), state.left), state.left

    def next_state(self, layout: Layout, message: Array, left: bool) -> LowRankState:
        # Find the columns (of right factors: rows) without direction, zero or not finite, by their largest element:
        # where the gradient stays zero in the wrong places they would never find another one.
        xp, parts = namespace(message), parts_of(layout, self.rank)
        stacks = parts.factors(message, left)
        largest = [abs(stack).max(axis=1 if left else 2) for stack in stacks]
        lost = [~((most > 0) & (most < np.inf)) for most in largest]  # (m, rank)
        # Draw them anew, in place, the same on all ranks. A device is read only once if there are none.
        if bool(xp.concatenate([mask.ravel() for mask in lost]).any()):
            for number, (group, stack, mask) in enumerate(zip(parts.groups, stacks, lost, strict=True)):
                if bool(mask.any()):
                    fresh = like(drawn(group, number, left, self.seed), stack).astype(stack.dtype)
                    xp.copyto(stack, fresh, where=mask[:, None, :] if left else mask[:, :, None])
        return LowRankState(message[: parts.factors_size(left)].copy(), left)
