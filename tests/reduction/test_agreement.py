"""By how much the gradients of the ranks agree in each tensor."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.reduction.agreement import EVERY, Agreement
from sparse_mpi.sparse import Layout

LAYOUT = Layout(((100, 90), (7,), (50, 60), (3,), (2, 20)))
ALONE, ALIKE, HALF, NONE, WILD = range(5)


def gradient(rank: int, step: int) -> np.ndarray:
    """Tensors in which ranks are independent, alike, both by half, without a gradient, and not finite on rank 0."""
    own, common = (np.random.default_rng(seed).standard_normal(LAYOUT.size) for seed in ([rank, step], [99, step]))
    alone, alike, half, none, wild = LAYOUT.parts
    own[alike] = common[alike]
    own[half] = (own[half] + common[half]) * 1e-12
    own[none] = 0
    own[wild][0] = np.inf if rank == 0 else 1
    return own.astype(np.float32)


def seen(comm, looks: int = 60) -> np.ndarray:
    made = Agreement(LAYOUT)
    for look in range(1, looks + 1):
        made.look(gradient(comm.rank, look))
        made.meet(comm)
        made.take(look)
    return np.stack([made.of_tensors(comm.size), *made.norms.T])


@pytest.mark.ranks(1, 3, 8)
def test_it_is_1_where_ranks_are_independent_and_their_number_where_they_are_alike(ranks):
    first, *others = ranks.run(seen)
    assert all(found.tobytes() == first.tobytes() for found in others)
    found, many = first[0], ranks.size
    assert 1 <= found[ALONE] < 1.4 and found[ALIKE] == pytest.approx(many, rel=1e-6)
    assert found[HALF] == pytest.approx((1 + many) / 2, rel=0.35)
    assert found[NONE] == 1 and 1 <= found[WILD] <= many


@pytest.mark.against_world
@pytest.mark.ranks(3, 4)
def test_world_equals_mpi(ranks):
    assert [x.tobytes() for x in ranks.run(seen)] == [x.tobytes() for x in World(ranks.size).run(seen)]


@pytest.mark.ranks(1, 3)
def test_a_reducer_looks_now_and_then_and_goes_on_from_a_state_to_the_bit(ranks):
    """136 bytes a tensor, of control, in one of EVERY steps."""

    def body(comm):
        made, other = (
            SparseAllreduce(LAYOUT, comm=comm, k=600, algorithm="elect", second_moment=0.99) for _ in range(2)
        )
        norms = []
        for step in range(2 * EVERY + 2):
            if step == EVERY + 3:
                other.load_state_dict(made.state_dict())
            for reducer in (made, other) if step >= EVERY + 3 else (made,):
                reducer.step(np.nan_to_num(gradient(comm.rank, step), posinf=1))
                norms.append(reducer.second_moment.agreement.norms.tobytes())
        return norms, made.second_moment.agreement.of_tensors(comm.size)

    for norms, factors in ranks.run(body):
        assert len(set(norms[:EVERY])) == 1 and len(set(norms)) == (3 if ranks.size > 1 else 1)
        assert all(one == another for one, another in zip(norms[EVERY + 3 :: 2], norms[EVERY + 4 :: 2], strict=True))
        assert ranks.size == 1 or factors[ALIKE] == pytest.approx(ranks.size, rel=1e-6)
