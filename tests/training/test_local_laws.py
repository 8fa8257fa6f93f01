"""The laws through local steps: nothing of an outer gradient is lost, and all ranks have the same global parameters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import ALGORITHMS, World

from .loops import adamw, common, made, net, own, plain, residuals, steps, train, weights

pytestmark = pytest.mark.ranks(1, 3, 5, 7)


def accounts(comm, numbers=range(12), flush=False, **options):
    """Train, and flush if told to.

    Returns:
        What this rank brought, what was applied to its global parameters, what it owes, and these.
    """
    replica = made(comm, outer=plain, density=options.pop("density", 0.1), **options)
    brought = np.zeros_like(common(replica.local))
    start = common(replica.local)
    for fragment in replica.local.fragments:
        fragment.reducer.start = watched(fragment.reducer.start, fragment, replica.local, brought)
    replica.local.check_every = int(not flush)
    steps(replica, comm.rank, numbers)
    replica.local.flush() if flush else replica.local.synchronize()
    return brought, start - common(replica.local), residuals(replica.local), weights(replica.model)


def watched(start, fragment, local, brought):
    """`start` of a reducer, which adds every outer gradient that it is given to a part of ``brought``."""
    before = sum(len(other.common) for other in local.fragments[: local.fragments.index(fragment)])

    def begin(gradient, **options):
        brought[before : before + len(gradient)] += gradient.numpy()
        return start(gradient, **options)

    return begin


def check_accounts(results, exact: bool = True) -> None:
    brought, owed = (sum(one[part].astype(float) for one in results) for part in (0, 2))
    applied = results[0][1].astype(float) * len(results)
    if exact:
        np.testing.assert_allclose(applied + owed, brought, rtol=1e-4, atol=2e-5 * len(results))
    for one in results:
        assert one[1].tobytes() == results[0][1].tobytes() and one[3].tobytes() == results[0][3].tobytes()
    assert np.abs(results[0][1]).max() > 1e-4


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
        return accounts(comm, sync_every=every, density=density, algorithm=name, model=net(1, shapes), **options)

    check_accounts(World(size).run(body), ALGORITHMS[name]().traits.conserves)


def test_steps_of_the_delay_are_kept_where_that_is_asked_for():
    """With plain outer steps of all entries and nobody else, training is as without synchronisation."""

    def body(comm):
        options = {"fragment_sync_delay": 3, "fragment_update_alpha": None, "fragments": 1}
        replica, alone = made(comm, 6, outer=plain, algorithm="dense", **options), net()
        steps(replica, 0, range(18))
        train(alone, adamw(alone.parameters()), own(0), range(18))
        return weights(replica.model), weights(alone)

    np.testing.assert_allclose(*World(1).run(body)[0], atol=1e-5)
