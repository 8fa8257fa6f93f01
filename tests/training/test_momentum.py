"""Who applies SGD's momentum: wherever it is, ``param_groups`` mean what they mean in torch."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from sparse_mpi import ErrorFeedback, GlobalMomentum, Layout, MomentumCorrection, SparseVector
from sparse_mpi.comm import NullComm
from sparse_mpi.feedback import LeakyFeedback
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.training.optimizer_rule import fading, matched

from .calls import SMALL, WHOLE, Call, Program
from .doors import DOORS
from .loops import equal
from .orders import STEP

TAKEN, TRAVELS = ["global", "corrected"], "second-moment"


@pytest.mark.parametrize("momentum", TAKEN)
@pytest.mark.parametrize("nesterov", [False, True])
def test_weights_decay_as_they_do_in_torch_where_no_gradient_is(momentum, nesterov):
    """Late by no step, though entries that are not selected are."""
    decayed = []
    for distributed in (False, True):
        weight = torch.ones(50, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.02, nesterov=nesterov)
        if distributed:
            optimizer = DistributedOptimizer(optimizer, comm=NullComm(), k=1, momentum=momentum)
        for _ in range(120):
            weight.grad = torch.zeros(50)
            optimizer.step()
        decayed.append(weight.detach().numpy())
    assert decayed[0][0] < 0.13
    np.testing.assert_allclose(decayed[1], decayed[0], rtol=1e-5)


def optimizer_of(options, make=torch.optim.SGD, **own):
    return DistributedOptimizer(make([torch.ones(3, requires_grad=True)], lr=0.1, **own), comm=NullComm(), **options)


@pytest.mark.parametrize(
    ("kind", "own", "options", "message"),
    [
        ("SGD", {"momentum": 0.8}, {"feedback": "dgc"}, "once, got 0.8 in the optimizer and 0.9 in MomentumCorrection"),
        ("SGD", {"momentum": 0.8}, {"feedback": GlobalMomentum(0.7)}, "got 0.8 .* and 0.7 in GlobalMomentum"),
        ("AdamW", {}, {"momentum": "global"}, "momentum must not be 'global' with AdamW"),
        ("RMSprop", {}, {"momentum": "corrected"}, "momentum must not be 'corrected' with RMSprop"),
        ("SGD", {}, {"momentum": "arrival"}, "momentum must not be 'arrival' with SGD"),
        ("SGD", {}, {"momentum": TRAVELS}, "momentum must not be 'second-moment' with SGD"),
        (
            "Adamax",
            {},
            {"momentum": TRAVELS},
            "momentum must not be 'second-moment' with Adamax, whose step is none of",
        ),
        ("Adam", {"amsgrad": True}, {"momentum": "arrival"}, "amsgrad must be False with momentum='arrival', got True"),
        ("AdamW", {"amsgrad": True}, {"momentum": TRAVELS}, "amsgrad must be False with momentum='second-moment'"),
        ("RMSprop", {"centered": True}, {"momentum": TRAVELS}, "centered must be 0 with momentum='second-moment'"),
        ("AdamW", {}, {"momentum": TRAVELS, "feedback": "dgc"}, "feedback must be 'residual' or leaky with momentum="),
    ],
    ids=str,
)
def test_a_mode_needs_the_optimizer_it_is_for(kind, own, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        optimizer_of(options, getattr(torch.optim, kind), **own)


def first(**changed):
    return lambda optimizer: optimizer.param_groups[0].update(changed)


def later(**own):
    return lambda optimizer: optimizer.add_param_group({"params": [torch.ones(3, requires_grad=True)], **own})


@pytest.mark.parametrize(
    ("kind", "mode", "change", "message"),
    [
        ("SGD", "global", first(momentum=0.5), "momentum must stay 0.9, .* got 0.5 in the optimizer"),
        ("SGD", "global", later(dampening=0.5), "dampening must stay .* got 0.5 in the optimizer"),
        ("SGD", "corrected", later(dampening=0.5), "dampening must stay .* got 0.5 in the optimizer"),
        ("SGD", "corrected", later(nesterov=True), "nesterov must stay .* got True in the optimizer"),
        ("Adam", "arrival", later(amsgrad=True), "amsgrad must be False with momentum='arrival', got True"),
        *(
            ("AdamW", mode, first(betas=betas), r"betas must be in \[0, 1\), got")
            for mode in ("arrival", TRAVELS)
            for betas in ((0.9, 2.0), (0.9, float("nan")), (1.0, 0.99))
        ),
    ],
)
def test_what_does_not_fit_later_is_refused_before_anything_is_reduced(kind, mode, change, message):
    optimizer = optimizer_of(
        {"momentum": mode}, getattr(torch.optim, kind), **{"momentum": 0.9} if kind == "SGD" else {}
    )
    change(optimizer)
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    for weight in weights:
        weight.grad = torch.arange(3.0)
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    assert all((weight == 1).all() for weight in weights)


def test_behind_a_step_that_raises_the_optimizer_has_its_momentum():
    def fail(*_):
        raise ArithmeticError("the loss")

    optimizer = optimizer_of({}, momentum=0.9, weight_decay=0.02)
    for after in ({"momentum": 0.9, "weight_decay": 0.02}, {"momentum": 0, "weight_decay": 0}):
        with pytest.raises(ArithmeticError):
            optimizer.step(fail if after["momentum"] else None)
        assert optimizer.param_groups[0].items() >= after.items()
        # The next error is behind our hook, as in the optimizer itself
        optimizer.register_step_pre_hook(fail)
    assert optimizer.state_dict()["param_groups"][0]["momentum"] == 0.9


@pytest.mark.parametrize("rule", [ErrorFeedback(), MomentumCorrection(0.0), GlobalMomentum(0.0)], ids=repr)
def test_a_rule_without_momentum_leaves_the_optimizers_own(rule):
    assert optimizer_of({"feedback": rule}, momentum=0.9).param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize(
    ("make", "own", "options", "says"),
    [
        (torch.optim.SGD, {"momentum": 0.9}, {}, "SGD's momentum enters before entries are selected, as 0.833"),
        (torch.optim.SGD, {}, {}, ""),
        (torch.optim.SGD, {"momentum": 0.9}, {"momentum": "local"}, ""),
        (torch.optim.SGD, {"momentum": 0.9}, {"momentum": "global"}, ""),
        (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}, {}, ""),
        (torch.optim.SGD, {"momentum": 0.9}, {"feedback": "none"}, ""),
        (torch.optim.AdamW, {}, {}, "AdamW elects entries and moves weights in units of second moments"),
        (torch.optim.AdamW, {}, {"algorithm": "oktopk"}, "AdamW makes up for the steps that an entry has waited"),
        (torch.optim.AdamW, {}, {"wire": "coo32"}, "AdamW makes up for the steps that an entry has waited"),
        (torch.optim.Adam, {"weight_decay": 0.1}, {}, "Adam makes up for the steps that an entry has waited"),
        (torch.optim.Adam, {"amsgrad": True}, {}, ""),
        (torch.optim.RMSprop, {"momentum": 0.9}, {}, ""),
    ],
    ids=str,
)
def test_momentum_is_taken_over_by_default_where_that_is_possible_and_said_so(
    make, own, options, says, capsys, monkeypatch
):
    monkeypatch.setattr(logging.root, "handlers", [])  # as in a program that sets up none: the line is on stderr
    optimizer = optimizer_of(options, make, **own)
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == bool(says)
    taken = optimizer.reduction.buckets[0].reducer.feedback.traits.momentum
    assert taken == (own["momentum"] if "SGD" in says or options.get("momentum") == "global" else 0)


def test_a_leak_goes_with_momentum_that_is_taken_over():
    for feedback, keep in (("residual", 1.0), ("leaky", 0.95), (LeakyFeedback(0.9), 0.9)):
        rule = optimizer_of({"feedback": feedback}, momentum=0.8).reduction.buckets[0].reducer.feedback
        assert (rule.momentum, rule.keep) == (0.8, keep) and rule.traits.leak == pytest.approx(1 - keep)
        assert rule.late == pytest.approx(0.6 + 0.2 / 3)  # one entry in three arrives in a step
    with pytest.raises(ValueError, match="feedback must keep all with momentum='corrected', got one that keeps 0"):
        optimizer_of({"feedback": "leaky", "momentum": "corrected"}, momentum=0.8)
    adam = optimizer_of({"feedback": "leaky"}, torch.optim.Adam)
    adam.param_groups[0]["params"][0].grad = torch.ones(3)
    adam.step()
    assert adam.reduction.buckets[0].reducer.feedback.keep == 0.95


def test_momentum_is_matched_to_the_wait():
    """Half of the effective rate where little arrives in a step, all of it where everything does."""
    assert matched(0.9, 1.0) == 0.9 and matched(0.9, 0.0) == pytest.approx(0.8) and matched(0.3, 0.0) == 0
    rule = GlobalMomentum(0.5, late=0.25).start(Layout.of(4), 2)
    for total, pushed in (
        (np.ones(4, np.float32), 0.25),
        (SparseVector(np.arange(4), np.ones(4, np.float32), 4), 0.125),
    ):
        rule.accumulate(np.zeros(4, np.float32))
        before = rule.residual.copy()
        rule.consume(total, total)
        np.testing.assert_allclose(rule.residual, before - 1 + pushed)


def test_what_waits_for_more_than_a_hundred_steps_fades(capsys, monkeypatch):
    """It is sent or fades, together 1 % a step; nothing fades where 1 % is sent, nor if that is asked for."""
    monkeypatch.setattr(logging.root, "handlers", [])
    assert [fading(share) for share in (1.0, 0.0275, 0.01, 0.01 - 1e-8, 0.0025)] == [0, 0, 0, 0, 0.0075]
    weight = torch.zeros(1000, requires_grad=True)
    for density, options, keep in (
        (0.004, {}, 0.994),
        (0.01, {}, 1),
        (0.004, {"feedback": ErrorFeedback()}, 1),
        (0.004, {"momentum": "global"}, 1),
        (0.004, {"feedback": LeakyFeedback(0.9)}, 0.9),
    ):
        plain = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        made = DistributedOptimizer(plain, comm=NullComm(), density=density, **options)
        rule = made.reduction.buckets[0].reducer.feedback
        assert rule.keep == pytest.approx(keep)
        assert ("0.60% of what waits fades in each step" in capsys.readouterr().err) == (keep == 0.994)


def test_nesterov_looks_ahead_by_what_each_bucket_was_given():
    """Late sums get less momentum; a dense bucket beside a sparse one is trained as by torch."""
    weights = [torch.full((8,), 0.5, requires_grad=True), torch.full((40,), 0.5, requires_grad=True)]
    plain = weights[0].detach().clone().requires_grad_()
    optimizer = DistributedOptimizer(
        torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True),
        comm=NullComm(),
        density=0.1,
        algorithm="topka",
        bucket_cap_mb=1e-5,
    )
    expected = torch.optim.SGD([plain], lr=0.1, momentum=0.9, nesterov=True)
    kinds = {8: "dense", 40: "topka"}
    for bucket in optimizer.reduction.buckets:
        bucket.reducer.use(kinds[bucket.flat.numel()])
    for _ in range(8):
        for parameters, chosen in ((weights, optimizer), ([plain], expected)):
            chosen.zero_grad()
            sum((parameter - torch.arange(len(parameter))).pow(2).sum() for parameter in parameters).backward()
            chosen.step()
    torch.testing.assert_close(weights[0], plain)


# What comes behind a step whose gradients are not cleared, or on one rank alone
AGAIN = {"another pass": (WHOLE, STEP), "another step": (STEP,), "another step that skips": (Call("skip"),)}
AGAIN["cleared on one rank"] = Call("zero_grad", True, 1), STEP


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("cap", [25.0, SMALL])
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("how", AGAIN)
def test_an_update_with_momentum_is_cleared_before_more_comes(ranks, how, steps, cap):
    program = Program(optimizer="momentum", density=0.1, options={"bucket_cap_mb": cap})

    def body(comm):
        trainee = DOORS["optimizer"](program, comm).steps(range(steps))
        before = trainee.weights()
        with pytest.raises((RuntimeError, ValueError), match="must be cleared between a step and the next backward"):
            for call in AGAIN[how]:
                trainee.do(steps, call)
        assert np.array_equal(trainee.weights(), before)
        trainee.zero_grad(False)
        return trainee.steps(range(steps, steps + 2)).weights()

    assert equal(ranks.run(body))
