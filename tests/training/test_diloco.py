"""`DiLoCo` does what its formula says, and what it is told: schedules, mixing, evaluation, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sparse_mpi import GlobalMomentum
from sparse_mpi.comm import NullComm
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.training.diloco import DiLoCo

from .loops import adamw, common, loss_of, made, nesterov, net, own, plain, steps, train, weights


@pytest.mark.ranks(3)
def test_fragments_take_turns_and_arrive_after_the_delay(ranks):
    def body(comm):
        replica = made(comm, 6, density=0.2, fragments=3, fragment_sync_delay=1)
        changed, costs = [], []
        for number in range(14):
            before = [fragment.common.clone() for fragment in replica.local.fragments]
            steps(replica, comm.rank, [number])
            after = [fragment.common for fragment in replica.local.fragments]
            changed += [
                (number + 1, i) for i, (a, b) in enumerate(zip(before, after, strict=True)) if not torch.equal(a, b)
            ]
            costs.append(replica.local.report is not None and replica.local.report.traffic.sent > 0)
        return changed, replica.local.synchronizations, costs

    for changed, count, costs in ranks.run(body):
        assert changed == [(3, 0), (5, 1), (7, 2), (9, 0), (11, 1), (13, 2)] and count == 6
        assert costs == [number + 1 in dict(changed) for number in range(14)]


@pytest.mark.ranks(3)
@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_so_much_of_the_local_parameters_is_kept(ranks, alpha):
    def body(comm):
        replica = made(comm, 3, algorithm="dense", fragment_update_alpha=alpha)
        own = []
        steps(replica, comm.rank, range(2))
        prepare = replica.local.fragments[0].prepare
        replica.local.fragments[0].prepare = lambda *a, **options: (
            own.append(weights(replica.model)),
            prepare(*a, **options),
        )
        steps(replica, comm.rank, [2])
        expected = alpha * own[0] + (1 - alpha) * common(replica.local)
        np.testing.assert_allclose(weights(replica.model), expected, rtol=1e-5, atol=1e-6)

    ranks.run(body)


@pytest.mark.ranks(1, 3)
def test_steps_of_the_delay_are_added_to_what_the_others_have_moved(ranks):
    """With plain outer steps of all entries the global parameters become the mean of what left."""

    def body(comm):
        replica = made(comm, 4, outer=plain, algorithm="dense", fragment_sync_delay=2, fragment_update_alpha=None)
        alone = net()
        inner = adamw(alone.parameters())
        left = train(alone, inner, own(comm.rank), range(4))
        later = train(alone, inner, own(comm.rank), range(4, 6))
        steps(replica, comm.rank, range(6))
        return left, later, weights(replica.model)

    found = ranks.run(body)
    mean = np.mean([left for left, _, _ in found], 0)
    for left, later, kept in found:
        np.testing.assert_allclose(kept, later + (mean - left), rtol=1e-4, atol=1e-6)


@pytest.mark.ranks(3)
def test_the_model_starts_from_rank_0_and_gradients_stay_where_they_are(ranks):
    def body(comm):
        replica = made(comm, 1, density=0.1, model=net(comm.rank))
        start = weights(replica.model)
        loss_of(replica.model, comm.rank, 0).backward()
        before = [p.grad.clone() for p in replica.model.parameters()]
        replica.inner.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(replica.model.parameters(), before, strict=True))
        return start

    assert all(start.tobytes() == weights(net(0)).tobytes() for start in ranks.run(body))


@pytest.mark.ranks(3)
def test_frozen_parameters_and_their_groups_stay(ranks):
    def body(comm):
        model = net()
        model[0].requires_grad_(False)
        replica = made(comm, 2, density=0.2, model=model)
        before = model[0].weight.clone()
        steps(replica, comm.rank, range(4))
        return torch.equal(before, model[0].weight)

    assert all(ranks.run(body))


BAD = {
    "every-0": ({"sync_every": 0}, ValueError, "sync_every must be at least 1"),
    "multiple": ({"sync_every": 5, "fragments": 2}, ValueError, "multiple of the 2 fragments.* got 5; take 6"),
    "fragments-many": (
        {"sync_every": 7, "fragments": 7},
        ValueError,
        r"fragments must be in \[1, 6\], got 7; each needs a parameter",
    ),
    "delay": (
        {"fragments": 2, "fragment_sync_delay": 2},
        ValueError,
        r"fragment_sync_delay must be in \[0, 1\] steps, got 2; a fragment",
    ),
    "momentum-twice": ({"feedback": GlobalMomentum(0.9)}, ValueError, "momentum must be given once"),
}


def refused(ranks, make, kind, words) -> None:
    """All ranks raise before the first message but those of the check."""

    def body(comm):
        before = comm.traffic.sent
        with pytest.raises(kind, match=words):
            make(comm)
        assert comm.traffic.sent == before

    ranks.run(body)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("bad", BAD)
def test_bad_arguments_are_refused_on_all_ranks(ranks, bad):
    options, kind, words = BAD[bad]
    refused(ranks, lambda comm: made(comm, **{"sync_every": 4, **options}), kind, words)


@pytest.mark.ranks(1, 3)
def test_optimizers_that_do_not_fit_are_refused(ranks):
    model, other = net(), net(1)
    inner, outer = adamw(model.parameters()), nesterov(model.parameters())
    half = net()
    half[0].to(torch.bfloat16)

    def refuse(kind, words, *arguments):
        refused(ranks, lambda comm: DiLoCo(*arguments, 4, comm=comm), kind, words)

    reducing = [DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), comm=NullComm()) for _ in range(2)]
    refuse(TypeError, "inner_optimizer must not reduce", model, reducing[0], outer)
    refuse(TypeError, "outer_optimizer must not reduce", model, inner, reducing[1])
    refuse(ValueError, "another one than inner_optimizer", model, inner, inner)
    refuse(ValueError, "inner_optimizer must have all 6 parameters", other, inner, nesterov(other.parameters()))
    refuse(ValueError, "outer_optimizer must have all 6 parameters", model, inner, nesterov(model[0].parameters()))
    both = adamw([*model.parameters(), *other.parameters()])
    refuse(ValueError, "inner_optimizer must have .* no others, got 6 others", model, both, outer)
    reduces = object.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(reduces)
    reduces.module = model
    refuse(TypeError, "model must not reduce gradients itself", reduces, inner, outer)
    refuse(ValueError, "one dtype on one device", half, adamw(half.parameters()), nesterov(half.parameters()))
