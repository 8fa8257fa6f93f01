"""Adam whose second moment travels: each weight moves by what has gathered over the root of the ranks' own moments."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from sparse_mpi import World
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.reduction.arguments import MOMENT_DENSITY
from sparse_mpi.training.adam_steps import ADAMS, memory

from .loops import equal, loss_of, mean, own, train, weights, wrapped
from .loops import wide_net as net

BETA, EPS, DECAY, RATE = 0.95, 1e-3, 0.1, 0.05
ADAMW = {"lr": RATE, "betas": (0.9, BETA), "eps": EPS, "weight_decay": DECAY}


def adamw(parameters, **options):
    return torch.optim.AdamW(parameters, **ADAMW | options)


def flat_gradient(model, rank, step):
    gradients = torch.autograd.grad(loss_of(model, rank, step), list(model.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients]).numpy().astype(np.float64)


@pytest.mark.parametrize("op", ["average", "sum"])
def test_a_step_is_what_its_docstring_says(ranks, op):
    """Computed anew from the gradients of all ranks; the sums of the moments are those that came, which are rounded."""
    beta = memory(MOMENT_DENSITY)

    def body(comm):
        model = net()
        optimizer = wrapped(model, comm, adamw, RATE, algorithm="elect", op=op, bucket_cap_mb=None)
        (bucket,) = optimizer.reduction.buckets
        squares = np.zeros((comm.size, len(weights(model))))
        rest, last = np.zeros((2, len(weights(model))))
        for step in range(4):
            before = weights(model).astype(np.float64)
            gradients = [flat_gradient(model, rank, step) for rank in range(comm.size)]
            squares = beta * squares + (1 - beta) * np.square(gradients)
            optimizer.zero_grad()
            own(comm.rank)(model, step).backward()
            (total,) = optimizer.synchronize()
            indices, values = total.indices.numpy(), total.values.numpy().astype(np.float64)
            sums = np.asarray(bucket.reducer.second_moment.sums.values, np.float64)
            exact = squares.sum(axis=0)[indices] / (1 - beta ** (step + 1))
            assert (sums <= 4.01 * exact).all() and (exact <= 4.01 * sums).all()
            with optimizer.skip_synchronize():
                optimizer.step()
            divisor = comm.size if op == "average" else 1
            expected = before * (1 - RATE * DECAY)
            # Of what has gathered the part 1 - 0.9^(d^2) moves the weight, without the bias of the first steps
            stays, gathered = 0.9 ** (step + 1 - last[indices]) ** 2, rest[indices] + values / divisor
            moved = (1 - stays) * gathered / (1 - stays * 0.9 ** last[indices])
            layout, agreement = bucket.reducer.layout, bucket.reducer.second_moment.agreement
            longer = np.sqrt(np.repeat(agreement.of_tensors(comm.size), layout.sizes)[indices])
            expected[indices] -= RATE * moved / (longer * np.sqrt(sums) / divisor + EPS)
            rest[indices], last[indices] = stays * gathered, step + 1
            np.testing.assert_allclose(weights(model), expected, rtol=2e-5, atol=1e-6)
        return weights(model)

    assert equal(ranks.run(body))


def test_it_is_the_default_of_adam_with_elect_at_equal_bytes(ranks):
    def body(comm):
        weight = [torch.zeros(30_000, requires_grad=True)]
        made = DistributedOptimizer(torch.optim.Adam(weight), comm=comm)
        (bucket,) = made.reduction.buckets
        return bucket.reducer.second_moment.betas, bucket.reducer.k

    assert ranks.run(body) == [([0.999], round(MOMENT_DENSITY * 30_000))] * ranks.size


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {"betas": (0.9, BETA)}),
        (torch.optim.AdamW, {"betas": (0.9, BETA), "weight_decay": DECAY}),
        (torch.optim.AdamW, {"betas": (0.0, BETA), "maximize": True}),
        (torch.optim.NAdam, {"betas": (0.9, BETA)}),
        (torch.optim.RMSprop, {"alpha": BETA}),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 16])
def test_with_everything_sent_it_is_torchs_and_goes_on_as_torchs(kind, options, size):
    """On any number of ranks, but RMSprop, of which the state has no second moment."""
    if kind is torch.optim.RMSprop and size > 1:
        pytest.skip("the ranks' own second moments are larger than that of their mean")

    def body(comm):
        plain, sparse = net(), net()
        theirs = kind(plain.parameters(), lr=0.01, **options)
        ours = kind(sparse.parameters(), lr=0.01, **options)
        ours = DistributedOptimizer(ours, comm=comm, density=1.0, momentum="second-moment")
        # A first step at a rate of 0, as a warm-up begins, is remembered
        for rate, steps in ((0.0, range(1)), (0.01, range(1, 4)), (0.01, range(4, 8))):
            for model, optimizer, loss in ((plain, theirs, mean(size)), (sparse, ours, own(comm.rank))):
                optimizer.param_groups[0]["lr"] = rate
                train(model, optimizer, loss, steps)
            np.testing.assert_allclose(weights(sparse), weights(plain), rtol=1e-4, atol=1e-6)
            # The state is torch's: from here on it steps alone
            if size > 1 or kind is torch.optim.RMSprop:
                continue
            state, ours = ours.state_dict(), kind(sparse.parameters(), lr=0.01, **options)
            ours.load_state_dict(state)

    World(size).run(body)


def test_what_the_caller_adds_where_nothing_has_come_moves_weights_by_their_rate():
    """As Adam's first step would: there is no second moment to divide by but its own square."""

    def body(comm):
        model = net()
        at_once = partial(adamw, betas=(0.0, BETA))
        optimizer = wrapped(model, comm, at_once, RATE, algorithm="elect", density=0.02, bucket_cap_mb=None)
        train(model, optimizer, own(comm.rank), range(2))
        before = weights(model) * (1 - RATE * DECAY)
        own(comm.rank)(model, 2).backward()
        (total,) = optimizer.synchronize()
        for parameter in model.parameters():
            parameter.grad += 100.0
        with optimizer.skip_synchronize():
            optimizer.step()
        return np.delete(before - weights(model), total.indices.numpy())

    for moved in World(2).run(body):
        np.testing.assert_allclose(moved, RATE, rtol=1e-3)


def test_layers_that_a_step_skips_keep_their_weights_and_moments():
    def body(comm):
        model = net()
        optimizer = wrapped(model, comm, adamw, RATE, algorithm="elect", bucket_cap_mb=None)
        train(model, optimizer, own(comm.rank), range(2))
        (bucket,) = optimizer.reduction.buckets
        (first, *_), moment = bucket.reducer.layout.parts, bucket.reducer.second_moment
        before, kept = weights(model), moment.mean[first].copy()
        # Flush first: nothing of the layer is to arrive late
        optimizer.flush()
        after = weights(model)
        optimizer.zero_grad()
        model[1:](torch.ones(2, 40)).square().sum().backward()
        optimizer.step()
        now = weights(model)
        return (
            np.array_equal(before[first], after[first]),
            np.array_equal(after[first], now[first]),
            np.array_equal(kept, moment.mean[first]),
        )

    for moved, same, kept in World(3).run(body):
        assert not moved and same and kept


def test_groups_have_betas_of_their_own_and_a_scheduler_may_change_them():
    """The moving means are those of torch's Adam with these betas, where they outlast waits."""
    least = memory(0.05)

    def body(comm):
        model = net()
        first, *others = model.parameters()
        groups = [{"params": [first]}, {"params": others, "betas": (0.9, 0.5)}]
        made = DistributedOptimizer(adamw(groups), comm=comm, density=0.05, bucket_cap_mb=None)
        (bucket,) = made.reduction.buckets
        squares = []
        for step, beta in enumerate((0.998, 0.5, 0.9999)):
            squares.append(flat_gradient(model, comm.rank, step) ** 2)
            made.param_groups[0]["betas"] = (0.9, beta)
            train(model, made, own(comm.rank), [step])
        # A beta holds from the gradient after the step in which it was set
        expected = np.empty_like(squares[0])
        for part, betas in ((slice(0, first.numel()), (0.998, least)), (slice(first.numel(), None), (least,) * 2)):
            mean = squares[0][part]
            for age, (square, beta) in enumerate(zip(squares[1:], betas, strict=True), 2):
                mean = mean + (1 - beta) / (1 - beta**age) * (square[part] - mean)
            expected[part] = mean
        np.testing.assert_allclose(bucket.reducer.second_moment.mean, expected, rtol=1e-4)
        return bucket.reducer.second_moment.betas

    for betas in World(2).run(body):
        np.testing.assert_allclose(betas, [0.9999, *[least] * 5], rtol=1e-3)


WIRES = ("packed", "packed+int8", "packed+int4", "packed+bf16")
SPIKES = {torch.float32: 1e22, torch.bfloat16: 1e20, torch.float16: 6e4, torch.float64: 1e25}


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "options", [*({"wire": wire} for wire in WIRES), {"density": 1.0}, {"momentum": "arrival"}], ids=str
)
@pytest.mark.parametrize("dtype", SPIKES, ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RMSprop])
@pytest.mark.parametrize("alone", [True, False])
def test_a_finite_gradient_whose_square_overflows_moves_weights_by_their_rate(kind, dtype, options, alone):
    """As with torch, whose moments are Inf from then on; of one entry, or of all."""
    options = {"momentum": "second-moment"} | options
    # In half precision no square overflows; what 8 bits do to the neighbours of a spike is owed, and comes back
    if kind not in ADAMS[options["momentum"]] or (alone and dtype is torch.float16):
        return

    def body(comm):
        draw = torch.Generator().manual_seed(comm.rank)
        weight = torch.nn.Parameter(torch.zeros(400, dtype=dtype))
        optimizer = DistributedOptimizer(
            kind([weight], lr=0.01), comm=comm, nonfinite="raise", **{"density": 0.3, "algorithm": "elect"} | options
        )
        optimizer.reduction.check_every = int(dtype is torch.float32)
        for step in range(8):
            gradient = torch.randn(400, generator=draw).to(dtype)
            if step == 3:
                gradient[: 1 if alone else 400] *= SPIKES[dtype] / (4 if dtype is torch.float16 else 1)
            optimizer.zero_grad()
            (weight * gradient).sum().backward()
            optimizer.step()
        return weight.detach().double()

    first, second = World(2).run(body)
    largest = first.abs().max().item()
    assert torch.equal(first, second) and 0.02 < largest < (1.0 if kind is torch.optim.RMSprop else 0.25), largest
    # Neighbours in a message go on
    assert not alone or (first != 0).double().mean() > 0.7
