"""The laws through local steps: nothing of an outer gradient is lost, and all ranks have the same global parameters."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import ALGORITHMS, World

from .loops import common, equal, made, net, plain, residuals, steps, weights


def watched(start, fragment, local, brought):
    """`start` of a reducer, which adds every outer gradient that it is given to a part of ``brought``."""
    before = sum(len(other.common) for other in local.fragments[: local.fragments.index(fragment)])

    def begin(gradient, **options):
        brought[before : before + len(gradient)] += gradient.numpy()
        return start(gradient, **options)

    return begin


@given(
    size=st.sampled_from([1, 3, 5, 7]),
    shapes=st.lists(st.integers(1, 12), min_size=2, max_size=5).map(tuple),
    name=st.sampled_from(list(ALGORITHMS)),
    schedule=st.sampled_from([(1, 1, 0), (3, 1, 2), (4, 2, 1), (6, 2, 2), (4, 1, 0)]),
    alpha=st.sampled_from([0.0, 0.5, 1.0, None]),
    density=st.sampled_from([0.01, 0.3, 1.0]),
)
def test_whatever_the_shapes_and_the_schedule(size, shapes, name, schedule, alpha, density):
    every, fragments, delay = schedule
    options = {"fragments": fragments, "fragment_sync_delay": delay, "fragment_update_alpha": alpha}

    def body(comm):
        replica = made(comm, every, outer=plain, density=density, algorithm=name, model=net(1, shapes), **options)
        local, start = replica.local, common(replica.local)
        brought, local.check_every = np.zeros_like(start), 1
        for fragment in local.fragments:
            fragment.reducer.start = watched(fragment.reducer.start, fragment, local, brought)
        steps(replica, comm.rank, range(12))
        local.synchronize()
        return brought, start - common(local), residuals(local), weights(replica.model)

    brought, applied, owed, ends = (np.array(rows) for rows in zip(*World(size).run(body), strict=True))
    assert equal(applied) and equal(ends) and np.abs(applied).max() > 1e-4
    if ALGORITHMS[name]().traits.conserves:
        there = applied[0].astype(float) * size + owed.sum(0, float)
        np.testing.assert_allclose(there, brought.sum(0, float), rtol=1e-4, atol=2e-5 * size)
