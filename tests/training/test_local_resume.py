"""A `DiLoCo` resumes on other ranks, also when ranks are lost; `check_door` has it on the same ones."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from sparse_mpi import World
from sparse_mpi.fault_tolerance import Team

from .loops import SCHEDULES, common, every_schedule, net, plain, residuals, scheduled, steps, weights

replica_of = partial(scheduled, density=0.1, algorithm="elect")


@pytest.mark.ranks(1, 2, 4, 5)
@pytest.mark.thin(1)
@pytest.mark.parametrize("feedback", ["residual", "leaky"])
@every_schedule
def test_other_numbers_of_ranks_owe_together_what_the_old_ones_did(ranks, schedule, feedback):
    """Scaled so that the mean changes as much; what they have moved since the last exchange is owed too."""
    old = 3

    def saved(comm):
        replica = replica_of(comm, schedule, outer=plain, feedback=feedback)
        steps(replica, comm.rank, range(7))
        state = replica.local.state_dict()
        taken = [f.common if f.taken is None else f.taken for f in replica.local.fragments]
        moved = np.concatenate([t.numpy() for t in taken]) - weights(replica.model)
        arriving = [f.common * 0 if f.taken is None else f.mean() for f in replica.local.fragments]
        after = common(replica.local) - np.concatenate([m.numpy() for m in arriving])
        return state, residuals(replica.local) + moved, after

    states, owed, globals_ = zip(*World(old).run(saved), strict=True)

    def body(comm):
        replica = replica_of(comm, schedule, outer=plain, feedback=feedback, model=net(comm.rank + 2))
        replica.local.take_over(states[comm.rank :: comm.size], old)
        begun = residuals(replica.local), common(replica.local), weights(replica.model)
        replica.local.check_every = 1
        steps(replica, comm.rank, range(7, 14))
        replica.local.flush()
        return *begun, weights(replica.model).tobytes()

    results = ranks.run(body)
    total = sum(one[0] for one in results)
    np.testing.assert_allclose(total, sum(owed) * ranks.size / old, rtol=1e-4, atol=1e-5)
    for _, start, own, end in results:
        np.testing.assert_allclose(start, globals_[0], rtol=1e-5, atol=1e-6)
        assert start.tobytes() == own.tobytes() == results[0][1].tobytes() and end == results[0][3]


@pytest.mark.ranks(1, 3)
def test_a_state_of_another_schedule_is_refused(ranks):
    def body(comm):
        one, other = replica_of(comm, SCHEDULES[0]), replica_of(comm, SCHEDULES[1])
        with pytest.raises(ValueError, match=r"state\['schedule'\] must be"):
            other.local.load_state_dict(one.local.state_dict())
        with pytest.raises(ValueError, match="states must be those of ranks"):
            one.local.take_over([], comm.size)

    ranks.run(body)


@pytest.mark.parametrize("schedule", [(2, 1, 0, 0.0), (4, 2, 1, None)], ids=str)
@pytest.mark.parametrize("leave", [{2: 3}, {0: (2, 3)}, {1: 1, 3: (4, 2)}], ids=lambda leave: str(sorted(leave)))
def test_survivors_go_on(schedule, leave):
    def main(comm):
        team = Team(comm)
        replica = replica_of(team, schedule, copy_every=2)
        steps(replica, team.number, range(12))
        replica.local.flush()
        return weights(replica.model).tobytes(), [rank for d in team.departures for rank in d.ranks]

    left = [result for result in World(4, leave=leave).run(main) if result is not None]
    assert len(left) == 4 - len(leave)
    assert all(end == left[0][0] and sorted(lost) == sorted(leave) for end, lost in left)


@pytest.mark.ranks(2)
def test_a_rate_of_numpy_is_saved(ranks):
    """As a schedule by np.cos or np.interp sets it."""

    def body(comm):
        replica = replica_of(comm, (2, 1, 0, 0.0))
        for group in (*replica.local.inner.param_groups, *replica.local.outer.param_groups):
            group["lr"] = np.float64(0.05)
        steps(replica, comm.rank, range(3))
        replica.local.load_state_dict(replica.local.state_dict())
        return replica.local.inner.param_groups[0]["lr"]

    assert ranks.run(body) == [0.05] * ranks.size
