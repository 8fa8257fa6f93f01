"""The members that algorithms declare have sound defaults, and hold for algorithms that are made of others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, World
from sparse_mpi.algorithms import Algorithm, Reduction
from sparse_mpi.algorithms.base import with_selectors
from sparse_mpi.algorithms.hybrid import Fused, Hybrid
from sparse_mpi.arrays import Array
from sparse_mpi.reduction.report import unselected
from sparse_mpi.select import Selector
from sparse_mpi.select.exact import Exact
from sparse_mpi.sparse import NoState, merge
from sparse_mpi.testing import CASES
from sparse_mpi.testing.cases import LAYERS
from sparse_mpi.wire import decode, encode

from .conformance import train


@dataclass(frozen=True)
class Newcomer(Algorithm):
    """The least that an algorithm has to say: it ignores ``add``, which it is never given."""

    selector: Selector = Exact()

    def reduce(self, acc, k, comm, state, layout, add: Array | None = None):
        assert add is None
        selected, _ = self.selector.select(acc, k, NoState())
        rows, _ = comm.allgatherv(encode(selected))
        return Reduction(merge(decode(rows, len(acc), acc.dtype)), selected), state


def test_a_newcomer_needs_one_method():
    for steps in World(3).run(lambda comm: train(comm, Newcomer(), CASES["layers"], np.float32, 4)):
        assert all(step.report.select_seconds > 0 for step in steps)
    with pytest.raises(TypeError, match="reduce"):
        type("Incomplete", (Algorithm,), {})()


def test_a_bound_is_missed_by_those_who_ask_for_it():
    with pytest.raises(NotImplementedError, match=r"Newcomer\(.* must declare its bound here: write bound\(layout, k"):
        Newcomer().bound(LAYERS, 1, 2)


def test_a_hybrid_declares_what_its_parts_do():
    tensors = tuple(range(len(LAYERS.shapes)))
    for few in (tensors[:1], tensors[1:]):
        rest = tuple(sorted(set(tensors) - set(few)))
        hybrid = Hybrid((Fused(ALGORITHMS["gtopk"](), few, 0.5), Fused(ALGORITHMS["dense-bf16"](), rest, 1.0)))
        assert hybrid.traits.conserves and not hybrid.traits.lossless and hybrid.exact_order(LAYERS, CASES["layers"].k)
        assert unselected(hybrid, LAYERS) == sum(LAYERS.sizes[tensor] for tensor in rest)
    assert not Hybrid((Fused(ALGORITHMS["dense"](), tensors, 1.0),)).exact_order(LAYERS, CASES["layers"].k)


def test_no_selector_is_left_out():
    """Of an algorithm, of what it runs inside, and of its parts."""
    parts = (Fused(ALGORITHMS["oktopk-2level"](), (0, 2), 0.5), Fused(ALGORITHMS["topka"](), (1,), 0.5))
    hybrid = Hybrid((*parts, Fused(ALGORITHMS["dense"](), (3,), 1.0)))
    changed = with_selectors(hybrid, lambda selector: Exact())
    two, one, dense = (part.algorithm for part in changed.parts)
    assert two.inner.selector == one.selector == Exact() and dense == ALGORITHMS["dense"]()
    assert hybrid.parts[0].algorithm.inner.selector != Exact()
