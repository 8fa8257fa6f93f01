"""What an algorithm is: the two laws, stated as a protocol."""

from __future__ import annotations

from math import ceil, log2
from typing import Any, NamedTuple, Protocol

from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.sparse import Layout, SparseVector


class Reduction(NamedTuple):
    """What an allreduce gives back: the sum, and this rank's part in it.

    The sum of ``sent`` over all ranks is ``total`` (to rounding), so ``x - sent`` is what this rank still owes.
    """

    total: SparseVector | Array  # the same bytes on every rank; dense where the algorithm's result is dense
    sent: SparseVector | Array  # this rank's net contribution


class Bound(NamedTuple):
    """The most one rank sends in one step."""

    pairs: float  # (index, value) pairs
    values: float  # values without index
    messages: float  # all messages, those of control too
    control: float  # bytes of counts, boundaries, histograms
    extra: float = 0.0  # payload bytes that are neither a pair nor a value: short indices, short values

    def payload(self, pair_bytes: int, value_bytes: int) -> float:
        """Payload bytes."""
        return self.pairs * pair_bytes + self.values * value_bytes + self.extra

    @property
    def words(self) -> float:
        """Payload in 4-byte words, for float32 values and int32 indices: the papers' unit."""
        return 2 * self.pairs + self.values + self.extra / 4


class Algorithm(Protocol):
    """A frozen dataclass of hyperparameters. ``reduce`` obeys two laws on any number of ranks and any input:

    1. Agreement: ``total`` has the same bytes on every rank.
    2. Nothing is lost: the sum of ``sent`` over the ranks is ``total``, to rounding.

    No return may depend on one rank's data before the last message: a rank with nothing to say still takes part.
    """

    @property
    def conserves(self) -> bool:
        """False declares the algorithm exempt from the second law."""

    def init(self, layout: Layout, k: int, ranks: int) -> Any:
        """The state before the first step: a frozen dataclass of numbers, arrays and such dataclasses."""

    def reduce(self, acc: Array, k: int, comm: Comm, state: Any) -> tuple[Reduction, Any]:
        """Reduce ``acc`` ``(n,)`` (left as it is), 1 <= k <= n, over the ranks of ``comm``; and the next state.

        An algorithm with a field ``selector`` learns what is in ``acc`` from ``selector.select(acc, k, ...)`` alone,
        once: ``acc`` may lack the latest gradient until then, and the selector adds it in the same pass.
        """

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """The most that one rank sends in one step."""


def rounds(ranks: int) -> int:
    """L = ceil(log2 P), the depth of a binary tree over P ranks."""
    return ceil(log2(ranks))
