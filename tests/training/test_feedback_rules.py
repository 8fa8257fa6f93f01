"""Every feedback rule in training: whatever the buckets, early or late, resumed, scaled; and gradients ahead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import EF21, ErrorFeedback, StepAhead, World
from sparse_mpi.comm import NullComm
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.optim import DistributedOptimizer

from ..reduction.rules import KINDS, RULES
from .loops import loss_of, weights, wrapped
from .loops import wide_net as net

few_ranks = pytest.mark.ranks(1, 3)
every_rule = pytest.mark.parametrize("kind", RULES)


def made(comm, model, kind, **options):
    return wrapped(model, comm, feedback=KINDS[kind], named_parameters=model.named_parameters(), **options)


def steps(comm, model, optimizer, numbers=range(4), passes: int = 1, scaler=None) -> np.ndarray:
    """Train as a loop does that knows nothing of the rule; return the weights."""
    for number in numbers:
        optimizer.zero_grad()
        with optimizer.ahead():
            for part in range(passes):
                loss = loss_of(model, comm.rank, passes * number + part)
                (scaler.scale(loss) if scaler else loss).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()
    return weights(model)


def trained(ranks, kind, **options) -> np.ndarray:
    """Return the weights after training, which must be the same on all ranks."""

    def body(comm):
        model = net()
        return steps(comm, model, made(comm, model, kind, **options), passes=options.get("backward_passes_per_step", 1))

    first, *others = ranks.run(body)
    assert all(np.array_equal(first, other) for other in others) and np.isfinite(first).all()
    return first


@pytest.mark.thin(1)
@few_ranks
@every_rule
@pytest.mark.parametrize("passes", [1, 2])
def test_overlap_and_place_change_no_bit(ranks, kind, passes):
    options = {"backward_passes_per_step": passes, "wire": "packed"}  # 8 bits may turn the last bit of a sum into more
    early = trained(ranks, kind, **options)
    assert np.array_equal(trained(ranks, kind, overlap=False, **options), early)
    assert not np.allclose(early, weights(net()))
    if KINDS[kind].traits.works_in_place:  # passes then join the residual one by one
        shared = trained(ranks, kind, in_place=True, **options)
        np.testing.assert_allclose(shared, early, rtol=0, atol=0 if passes == 1 else 1e-5)


@pytest.mark.thin(1)
@few_ranks
@every_rule
def test_a_resumed_run_goes_on_to_the_same_bits_after_a_dense_warm_up(ranks, kind):
    def body(comm):
        straight, half, again = net(), net(), net(1)
        long, short, resumed = (made(comm, model, kind) for model in (straight, half, again))
        for optimizer, model in ((long, straight), (short, half)):
            algorithms = optimizer.reduction.algorithms
            optimizer.reduction.use("dense")
            steps(comm, model, optimizer, range(2))
            optimizer.reduction.use(algorithms)
            steps(comm, model, optimizer, range(2, 4))
        again.load_state_dict(half.state_dict())
        saved = short.reduction.state_dict()
        resumed.reduction.load_state_dict(saved)
        with pytest.raises(ValueError, match=r"must hold \d buckets, got 1"):
            resumed.reduction.load_state_dict({"buckets": saved["buckets"][:1]})
        return steps(comm, straight, long, range(4, 7)), steps(comm, again, resumed, range(4, 7))

    for straight, resumed in ranks.run(body):
        assert straight.tobytes() == resumed.tobytes()


@every_rule
def test_a_loss_scale_shows_nowhere(kind):
    """A power of two, so that it changes no bit; a step that overflows leaves no trace."""
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        model = net()
        optimizer = made(NullComm(), model, kind, scaler=scaler)
        steps(NullComm(), model, optimizer, range(2), scaler=scaler)
        if scaler:
            optimizer.zero_grad()
            with optimizer.ahead():
                (loss_of(model, 0, 0) * torch.inf).backward()
            optimizer.synchronize()
            optimizer.reduction.detach()
        ends.append(steps(NullComm(), model, optimizer, range(2, 4), scaler=scaler))
    assert np.array_equal(*ends)


@few_ranks
@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_are_those_of_weights_that_each_rank_has_moved(ranks, in_place):
    """By its own residual, its share and its group's learning rate; and back to the bit."""

    def body(comm):
        model = net()
        groups = [{"params": list(model[0].parameters()), "lr": 0.3}, {"params": list(model[2:].parameters())}]
        plain = torch.optim.SGD(groups, lr=0.1)
        optimizer = DistributedOptimizer(plain, comm=comm, density=0.05, feedback=StepAhead(0.5), in_place=in_place)
        steps(comm, model, optimizer, range(3))
        optimizer.zero_grad()
        (bucket,) = optimizer.reduction.buckets
        ahead, before = bucket.reducer.feedback.preview(), weights(model)
        rates = np.repeat([0.3, 0.1], [sum(p.numel() for p in group["params"]) for group in groups])
        with optimizer.ahead():
            moved = weights(model)
            loss_of(model, comm.rank, 3).backward()
        assert weights(model).tobytes() == before.tobytes() and np.abs(ahead).max() > 0
        np.testing.assert_allclose(moved, before - (rates * ahead).astype(np.float32), rtol=1e-5, atol=1e-7)
        optimizer.step()
        return moved, weights(model)

    (first, end), *others = ranks.run(body)
    for moved, same in others:
        assert not np.array_equal(moved, first) and np.array_equal(same, end)


def test_weights_come_back_after_an_error():
    model = net()
    optimizer = made(NullComm(), model, "sa-pef")
    steps(NullComm(), model, optimizer)
    before = weights(model)
    with pytest.raises(KeyError), optimizer.ahead():
        raise KeyError
    assert weights(model).tobytes() == before.tobytes()


@pytest.mark.parametrize("overlap", [False, True])
def test_gradients_that_are_not_computed_ahead_are_an_error(overlap):
    model = net()
    optimizer = made(NullComm(), model, "sa-pef", overlap=overlap)
    with pytest.raises(RuntimeError, match=r"must be computed ahead with StepAhead.*write `with optimizer.ahead\(\):`"):
        loss_of(model, 0, 0).backward()
    with pytest.raises(RuntimeError, match="must be computed ahead"):
        made(NullComm(), net(), "sa-pef").step()
    model = net()
    optimizer = made(NullComm(), model, "sa-pef", overlap=overlap)
    steps(NullComm(), model, optimizer)
    with pytest.raises(RuntimeError, match="must be computed ahead"):
        optimizer.step()  # once for each step


def test_weights_move_once_a_step_where_gradients_join_the_residual():
    model = net()
    optimizer = made(NullComm(), model, "sa-pef", in_place=True, backward_passes_per_step=2)
    optimizer.zero_grad()
    with optimizer.ahead():
        loss_of(model, 0, 0).backward()
    with pytest.raises(RuntimeError, match="must be entered once a step with in_place=True"), optimizer.ahead():
        pass


def test_only_steps_of_sgd_are_previewed():
    with pytest.raises(TypeError, match="feedback must not preview steps of AdamW, .*StepAhead.* use"):
        DistributedOptimizer(torch.optim.AdamW(net().parameters()), comm=NullComm(), feedback="sa-pef")


def test_a_mean_of_gradients_takes_no_momentum_besides():
    plain = torch.optim.SGD(net().parameters(), lr=0.1, momentum=0.8)
    with pytest.raises(ValueError, match=r"given once, got 0.8 in the optimizer and 0.9 in EF21"):
        DistributedOptimizer(plain, comm=NullComm(), feedback="ef21")
    DistributedOptimizer(plain, comm=NullComm(), feedback=EF21(1.0))


@few_ranks
def test_with_everything_sent_ef21_is_sgd_along_the_mean(ranks):
    """Of gradients over ranks and steps: dense steps, and plain error feedback of weight 1."""

    def body(comm):
        model, twin = net(), net()
        optimizer = made(comm, model, "ef21-plain", algorithm="dense")
        plain = DistributedOptimizer(torch.optim.SGD(twin.parameters(), lr=0.1), comm=comm, feedback=ErrorFeedback())
        plain.reduction.use("dense")
        return steps(comm, model, optimizer), steps(comm, twin, plain)

    for ours, expected in ranks.run(body):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


@every_rule
def test_other_ranks_go_on_where_the_old_ones_stopped(kind):
    """The mean gradient that is owed, or gone along, is what it was."""

    def saved(comm):
        model = net()
        optimizer = made(comm, model, kind, bucket_cap_mb=None)
        steps(comm, model, optimizer)
        return optimizer.reduction.state_dict()

    states = World(4).run(saved)

    def body(comm):
        model = net()
        optimizer = made(comm, model, kind, bucket_cap_mb=None)
        optimizer.reduction.take_over(states[comm.rank :: comm.size], 4)
        rule = optimizer.reduction.buckets[0].reducer.feedback
        taken = {name: array.copy() for name, array in whole_state(rule).items()}
        steps(comm, model, optimizer, range(4, 6))
        return taken, list(rule.state()), list(rule.state(replicated=True))

    results = World(2).run(body)
    for name in results[0][1]:
        expected = sum(state["buckets"][0][name] for state in states) / 4
        np.testing.assert_allclose(sum(taken[name] for taken, *_ in results) / 2, expected, rtol=1e-4, atol=1e-6)
    for name in results[0][2]:
        for taken, *_ in results:
            np.testing.assert_allclose(taken[name] / 2, states[0]["buckets"][0][name] / 4, rtol=1e-5)
