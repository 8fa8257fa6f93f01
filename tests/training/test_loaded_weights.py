"""Weights that are loaded into a model with local steps are its global ones from then on."""

from __future__ import annotations

import copy
import io
from functools import partial

import numpy as np
import pytest
import torch

from sparse_mpi.optim import broadcast_parameters

from .loops import adamw, common, equal, every_schedule, nesterov, net, plain, residuals, scheduled, steps, weights

pytestmark = pytest.mark.ranks(2, 3)
replica_of = partial(scheduled, density=0.2, inner=plain, outer=plain)


@every_schedule
@pytest.mark.parametrize("at", [0, 3, 4, 5, 7])
@pytest.mark.parametrize("algorithm", ["elect", "dense"])
def test_training_goes_on_from_them(ranks, schedule, at, algorithm):
    """As if it had begun with them, whatever was owed and on its way."""

    def body(comm):
        replica = replica_of(comm, schedule, algorithm=algorithm)
        steps(replica, comm.rank, range(at))
        replica.model.load_state_dict(net(7).state_dict())
        for group in replica.inner.param_groups:
            group["lr"] = 0.0
        steps(replica, comm.rank, range(at, at + 13))
        replica.local.flush()
        return weights(replica.model), common(replica.local), residuals(replica.local)

    for own, globals_, owed in ranks.run(body):
        assert own.tobytes() == globals_.tobytes() == weights(net(7)).tobytes() and not owed.any()


@every_schedule
@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("outer", [plain, nesterov], ids=lambda make: make.__name__)
def test_it_is_the_same_before_and_after_the_first_exchange_is_prepared(ranks, schedule, how, outer):
    def body(comm, first):
        loaded, model = net(7).state_dict(), net()
        if first:
            model.load_state_dict(loaded)
        replica = replica_of(comm, schedule, model=model, outer=outer, inner=adamw)
        if not first:
            model.load_state_dict(loaded)
        if how == "after":
            replica.local.synchronize()
        steps(replica, comm.rank, range(13))
        return weights(model)

    assert equal([*ranks.run(lambda comm: body(comm, True)), *ranks.run(lambda comm: body(comm, False))][:: ranks.size])


@every_schedule
@pytest.mark.parametrize("load", ["a part", "some names"])
def test_what_was_not_loaded_goes_on(ranks, schedule, load):
    def body(comm):
        replica, new = replica_of(comm, schedule), net(7)
        steps(replica, comm.rank, range(5))
        before, owed = common(replica.local), residuals(replica.local)
        if load == "a part":
            replica.model[2].load_state_dict(new[2].state_dict())
        else:
            found = {name: x for name, x in new.state_dict().items() if name.startswith("2.")}
            replica.model.load_state_dict(found, strict=False)
        steps(replica, comm.rank, [])
        replica.local.state_dict()
        first, part = (6 * 9 + 9, 9 * 7 + 7)
        rest = np.r_[0:first, first + part : len(before)]
        now = common(replica.local)
        assert now[rest].tobytes() == before[rest].tobytes()
        assert residuals(replica.local)[rest].tobytes() == owed[rest].tobytes()
        assert not residuals(replica.local)[first : first + part].any()
        assert now[first : first + part].tobytes() == weights(new[2]).tobytes()
        steps(replica, comm.rank, range(5, 12))
        replica.local.synchronize()
        return weights(replica.model)

    assert equal(ranks.run(body))


def test_weights_that_are_swapped_and_given_back_change_nothing(ranks):
    """As of an average, for an evaluation; also the rank's own ones that follow its state."""

    def body(comm, swaps):
        replica = replica_of(comm, (4, 2, 1, 0.5))
        for number in range(13):
            steps(replica, comm.rank, [number])
            own = copy.deepcopy(replica.model.state_dict())
            if swaps:
                replica.model.load_state_dict(net(comm.rank).state_dict())
                replica.model.load_state_dict(own)
            if number == 6:
                replica.local.load_state_dict(replica.local.state_dict())
                replica.model.load_state_dict(own)
        return weights(replica.model)

    for swapped, left in zip(ranks.run(lambda c: body(c, True)), ranks.run(lambda c: body(c, False)), strict=True):
        assert swapped.tobytes() == left.tobytes()


@pytest.mark.parametrize("who", ["other weights", "one rank", "one rank, and broadcast"])
@pytest.mark.parametrize("at", [0, 3])
def test_weights_that_differ_are_an_error_on_all_ranks(ranks, who, at):
    def body(comm):
        replica = replica_of(comm, (4, 1, 0, 0.0))
        steps(replica, comm.rank, range(at))
        if who == "other weights" or comm.rank == 0:
            replica.model.load_state_dict(net(7 + comm.rank).state_dict())
        if who == "one rank, and broadcast":
            broadcast_parameters(replica.model.state_dict(), comm=comm)
        with pytest.raises(ValueError, match=r"(?s)all ranks must call with the same.*call=model\.load_state_dict"):
            steps(replica, comm.rank, range(at, at + 4))

    ranks.run(body)


def test_nothing_is_loaded_where_it_would_be_lost(ranks):
    def body(comm):
        replica = replica_of(comm, (4, 1, 0, 0.0))
        before, new = weights(replica.model), net(7).state_dict()
        with replica.local.globally(), pytest.raises(RuntimeError, match=r"within globally\(\).*load them behind it"):
            replica.model.load_state_dict(new)
        with pytest.raises(RuntimeError, match="got assign; leave that out"):
            replica.model.load_state_dict(new, assign=True)
        assert weights(replica.model).tobytes() == before.tobytes()
        with replica.local as local:
            steps(replica, comm.rank, range(5))
        steps(replica, comm.rank, range(5, 9))
        assert (local.steps, local.synchronizations) == (5, 1)
        replica.model.load_state_dict(new)
        assert common(local).tobytes() != weights(replica.model).tobytes()
        assert not any(module._load_state_dict_pre_hooks for module in replica.model.modules())

    ranks.run(body)


def test_a_copy_of_the_model_tells_nobody(ranks):
    def body(comm):
        replica = replica_of(comm, (4, 1, 0, 0.0))
        file = io.BytesIO()
        torch.save(replica.model, file)
        copies = copy.deepcopy(replica.model), torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        for model in copies:
            model.load_state_dict(net(7).state_dict())
        steps(replica, comm.rank, range(4))
        assert all(weights(model).tobytes() == weights(net(7)).tobytes() for model in copies)
        with pytest.raises(TypeError, match="DiLoCo must not be copied or pickled"):
            copy.copy(replica.local)
        return weights(replica.model)

    assert equal(ranks.run(body))
