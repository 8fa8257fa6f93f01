"""Two levels: dense sums inside a node, in shared memory, and sparse ones between nodes, over the network.

With N nodes of R ranks, local rank l owns segment l of the vector, an R-th, on its node, and all nodes' ranks l form
*lane* l. Owners sum their segments over the node (a reduce-scatter), each lane reduces its segment sparsely (`oktopk`,
`elect`), and results are gathered inside the node. Lanes share k by the number of a segment's sums that reach the
threshold of a node's k largest: all owners count them, in an allgather of control over all ranks.

Costs n(R-1)/R + 2k(R-1)/R words inside the node, and between nodes the cost of the lanes' algorithm for k entries on N
ranks, shared among a node's R ranks. Returns at most k entries. A node's residual is on the owners. R is the smallest
node's size; other ranks of larger nodes own nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from sparse_mpi import kernels, wire
from sparse_mpi.algorithms.base import Algorithm, Bound, Carried, Reduction, Traits
from sparse_mpi.algorithms.global_threshold import Counted, ThresholdPredictor
from sparse_mpi.algorithms.oktopk import OkTopk
from sparse_mpi.arrays import Array, index_dtype, is_device, namespace
from sparse_mpi.checks import check_instance, check_switch, check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import host_leader, hosts_of, rounds
from sparse_mpi.comm.null import NullComm
from sparse_mpi.select.base import NOT_ZERO
from sparse_mpi.sparse import Layout, SparseVector, equal_boundaries
from sparse_mpi.states import ranged

LOGGER = logging.getLogger("sparse_mpi")
ALONE = 1  # ranks of a node, where each is one by itself
COUNTED = Counted(mantissa=7, lowest=NOT_ZERO)  # finds the threshold by which lanes share k


@dataclass(frozen=True)
class TwoLevelState:
    """State between steps. Unused on ranks without a segment."""

    inner: Any  # the lane's state
    threshold: ThresholdPredictor = ranged(make=ThresholdPredictor, replicated=True)  # sets the lanes' shares of k
    # The rest is the same on the lane's members
    start: int = ranged("[0, n]", 0)  # the segment of the lane's state goes from `start`
    stop: int = ranged("[0, n]", 0)  # end of that segment
    members: np.ndarray = ranged("[0, P)", make=lambda: np.empty(0, np.int64), rising=True)  # the lane's, by rank


class Lanes(NamedTuple):
    node: Comm  # the ranks of its node
    lane: Comm  # the ranks with its number in their nodes
    lanes: int  # R, the number of lanes
    numbers: np.ndarray  # (P,) the number of every rank's lane
    members: np.ndarray  # the lane's members, by rank in the whole


@dataclass(frozen=True)
class TwoLevel(Algorithm):
    """Sparse allreduce between nodes of dense sums inside them.

    Args:
        ranks_per_node: consecutive ranks of a node; the last node may have fewer. None: ranks that share memory.
        inner: the lanes' algorithm, which has ``levels``. Its message format is for the network; pairs inside a node
            are not encoded.
        through_host: True sums device arrays in the node too, where they pass through host memory anyway; False reduces
            them in one level.
    """

    ranks_per_node: int | None = field(default=None, metadata={"of_ranks": True})
    inner: Algorithm = field(default_factory=OkTopk)
    through_host: bool = field(default=True, metadata={"of_ranks": True})

    @cached_property
    def traits(self) -> Traits:
        # An owner's part is its sum less its node's residual, which is in no result
        kept = replace(self.inner.traits, accumulates=False, in_default_plans=False)
        return replace(kept, delegates_residual=True, rounds_relative_to_norm=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_instance("inner", self.inner, Algorithm)
        if not _can_lie_between_nodes(self.inner):
            raise ValueError(f"inner must be an algorithm that has levels, as OkTopk and Elect, got {self.inner!r}")
        check_switch("through_host", self.through_host)
        if self.ranks_per_node is not None:
            check_whole("ranks_per_node", self.ranks_per_node, 1, remedy="None asks the communicator")

    def init(self, layout: Layout, k: int, ranks: int) -> TwoLevelState:
        return TwoLevelState(self.inner.init(layout, k, ranks))

    def forget(self, state: TwoLevelState) -> TwoLevelState:
        return replace(state, inner=self.inner.forget(state.inner))

    def reduce(
        self,
        acc: Array,
        k: int,
        comm: Comm,
        state: TwoLevelState,
        layout: Layout,
        add: Array | None = None,
        beside: Array | None = None,
    ) -> tuple[Reduction, TwoLevelState]:
        """Return at most k entries; ``sent`` ``(n,)`` is acc, less this rank's new residual for its node."""
        # Sum inside the node: local rank l owns the sum of segment l.
        node, lane, lanes, numbers, members = self._place(comm, acc)
        n, xp, lanes = len(acc), namespace(acc), min(lanes, k)
        bounds = equal_boundaries(n, lanes)
        sent = acc.copy()
        summed = _sum_segments(acc, np.diff(bounds), node)
        squares = None if beside is None else _sum_segments(beside, np.diff(bounds), node)
        part = SparseVector(xp.empty(0, index_dtype(n)), xp.empty(0, acc.dtype), n)
        # Share k: by the number of a lane's sums among the largest of all segments.
        shares, threshold = [k], state.threshold
        if lanes > 1:
            nodes = int((numbers == 0).sum())
            measured = summed if squares is None else kernels.of(summed).standardized(summed, squares)
            found, threshold = COUNTED.count(measured, k * nodes, threshold, comm)
            large = np.bincount(numbers, found.above + found.tied, minlength=lanes)[:lanes].astype(np.int64)
            shares = deal(k, large, np.diff(bounds))
        # Reduce the segment between nodes, in the lane of the ranks that own it.
        moments = part.values
        if node.rank < lanes:
            start, stop = (int(bound) for bound in bounds[node.rank : node.rank + 2])
            share = shares[node.rank]
            segment, inner = Layout.of(stop - start), state.inner
            # Begin anew where the lane or its segment has changed. Must agree on all members: if only some began anew,
            # their states would diverge.
            if (state.start, state.stop) != (start, stop) or not np.array_equal(state.members, members):
                inner = self.inner.init(segment, share, lane.size)
            reduce: Callable[..., tuple[Reduction, object]] = self.inner.reduce
            carried = {} if squares is None else {"beside": squares}
            reduction, inner = reduce(summed, share, lane, inner, segment, **carried)
            total, given = reduction
            if not isinstance(total, SparseVector) or not isinstance(given, SparseVector):
                raise TypeError(f"inner must have sparse results, got dense ones of {self.inner!r}")
            part = SparseVector(total.indices.astype(index_dtype(n)) + index_dtype(n).type(start), total.values, n)
            moments = reduction.beside if isinstance(reduction, Carried) else moments
            # Owed: the owner has the whole residual of its node; all other ranks owe nothing.
            kernels.of(summed).subtract(summed, given.indices, given.values)
            with np.errstate(invalid="ignore"):
                sent[start:stop] -= summed
            state = TwoLevelState(inner, threshold, start, stop, members)
        else:
            state = replace(state, threshold=threshold)
        # Gather the segments' results inside the node.
        rows, _ = node.allgatherv(wire.encode(part))
        result = wire.decode(rows, n, acc.dtype)
        if squares is None:
            return Reduction(result, sent), state
        return Carried(result, sent, node.allgatherv(moments)[0]), state

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        bounds = [self._bound(layout.size, k, ranks, *spread) for spread in self._spreads(ranks)]
        return Bound(*(max(column) for column in zip(*bounds, strict=True)))

    def _bound(self, n: int, k: int, ranks: int, nodes: int, smallest: int, largest: int) -> Bound:
        lanes = min(smallest, k)
        widths = np.diff(equal_boundaries(n, lanes))
        share = min(k - lanes + 1, int(widths.max()))  # all other segments may be zero
        inner = self.inner.bound(Layout.of(int(widths.max())), share, nodes)
        messages, control = 0, 0.0
        if lanes > 1:
            _, _, messages, control = COUNTED.bound(n * nodes, k * nodes, ranks)
        return inner._replace(
            pairs=inner.pairs + share * (largest - 1),
            values=inner.values + (n if largest > lanes else n - widths.min()),
            messages=inner.messages + messages + min(lanes, largest - 1) + 2 * rounds(largest),
            control=inner.control + control + 4 * (largest - 1),
        )

    def selected_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        most = 0.0
        for nodes, smallest, _ in self._spreads(ranks):
            width = -(-layout.size // min(smallest, k))
            most = max(most, self.inner.selected_band(Layout.of(width), min(k, width), nodes)[1])
        return 0, most

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        found = [(min(smallest, k), *self.inner.result_band(layout, k, n)) for n, smallest, _ in self._spreads(ranks)]
        return max(min(least - (lanes > 1) * lanes for lanes, least, _ in found), 0), max(most for *_, most in found)

    def _spreads(self, ranks: int) -> Iterator[tuple[int, int, int]]:
        if (per_node := self.ranks_per_node) is not None:
            nodes = -(-ranks // per_node)
            yield nodes, ranks - (nodes - 1) * per_node, min(per_node, ranks)
            return
        yield 1, ranks, ranks
        for nodes in range(2, ranks + 1):
            for smallest in range(1, ranks // nodes + 1):
                yield nodes, smallest, ranks - (nodes - 1) * smallest

    def _place(self, comm: Comm, acc: Array) -> Lanes:
        found = _lanes_of(comm, self.ranks_per_node)
        if not self.through_host and is_device(acc) and found.node.job.staged:
            found = _lanes_of(comm, ALONE)
        return found


def _lanes_of(comm: Comm, per_node: int | None) -> Lanes:
    """Return this rank's place among nodes of ``per_node`` ranks (None: ranks that share memory). Collective."""
    # Computed on first use, and cached as an attribute of the communicator
    key = (Lanes, per_node)
    if per_node == ALONE:
        return Lanes(NullComm(), comm, 1, np.zeros(comm.size, np.int64), np.arange(comm.size))
    if key not in comm.attributes:
        node = comm.split(host_leader(comm) if per_node is None else comm.rank // per_node)
        lane = comm.split(node.rank)
        sizes, numbers = comm.duplicate().allgather(np.array([node.size, node.rank])).T  # traffic of no step
        comm.attributes[key] = Lanes(node, lane, int(sizes.min()), numbers, np.flatnonzero(numbers == node.rank))
    return comm.attributes[key]


def _sum_segments(acc: Array, widths: np.ndarray, node: Comm) -> Array:
    """Return the node's sum of this rank's segment of ``acc``, a new array; empty on ranks that own nothing."""
    if node.size == 1:
        return acc.copy()
    counts = np.zeros(node.size, np.int64)
    counts[: len(widths)] = widths
    received, _ = node.alltoallv(acc, counts, np.full(node.size, counts[node.rank]))
    summed, *others = received.reshape(node.size, -1)
    with np.errstate(invalid="ignore"):
        for other in others:
            kernels.of(summed).accumulate(summed, other)
    return summed


def deal(k: int, weights: np.ndarray, widths: np.ndarray) -> list[int]:
    """Deal k entries to R <= k segments in proportion to ``weights``, by largest remainder, 1 to its width each.

    Entries beyond a segment's width go to others, if need be to segments without weight.
    """
    shares = np.ones(len(widths), np.int64)
    while rest := k - int(shares.sum()):
        room = widths - shares
        wanting = weights * (room > 0)
        wanting = wanting if wanting.any() else room
        parts, remainders = np.divmod(rest * wanting, wanting.sum())
        parts[np.argsort(-remainders, kind="stable")[: rest - parts.sum()]] += 1
        shares += np.minimum(parts, room)
    return shares.tolist()


def _can_lie_between_nodes(algorithm: Algorithm) -> bool:
    return "levels" in getattr(algorithm, "__dataclass_fields__", ())


def placed(algorithm: Algorithm, comm: Comm) -> Algorithm:
    """Return ``algorithm`` as it runs on ``comm``: in one level, or in two. Collective.

    It runs in two if ``levels`` is 2, or if None and several hosts have the same number of ranks, at least two. If
    there was a choice, the first rank logs it. Each part of a `Hybrid` is placed by itself.
    """
    if algorithm.parts:
        parts = tuple(replace(cast(Any, part), algorithm=placed(part.algorithm, comm)) for part in algorithm.parts)
        return replace(cast(Any, algorithm), parts=parts)
    if algorithm.levels == 2:
        return TwoLevel(None, algorithm)
    # Where the ranks are, is asked once
    if placed not in comm.attributes:
        comm.attributes[placed] = np.unique(hosts_of(comm), return_counts=True)[1], set()
    ranks, said = comm.attributes[placed]
    if len(ranks) == 1 or ranks.max() == 1 or algorithm.selector is None:
        return algorithm
    # Choose, and say so
    name, text, made = type(algorithm).__name__, "", algorithm
    if not _can_lie_between_nodes(algorithm):
        text = f"{name} has one level on {len(ranks)} hosts; elect and oktopk can have two"
    elif algorithm.levels is None and ranks.min() < ranks.max():
        text = f"{name} has one level, as hosts have {ranks.min()} to {ranks.max()} ranks; have as many on each"
    elif algorithm.levels is None:
        made = TwoLevel(None, algorithm, through_host=False)
        text = f"{name} has two levels: dense sums of {ranks[0]} ranks a host, sparse ones of {len(ranks)} hosts"
    if text and comm.rank == 0 and text not in said:
        said.add(text)
        LOGGER.warning("sparse_mpi: %s", text)
    return made
