"""A parameter is its name, for life: on all ranks, in later groups, behind freezing, in states."""

from __future__ import annotations

import re
from collections import OrderedDict
from itertools import product

import pytest
import torch
from torch import nn

from sparse_mpi.optim import DistributedOptimizer, broadcast_optimizer_state
from sparse_mpi.training.diloco import DiLoCo

from .loops import adamw, equal, loss_of, made, net, own, plain, steps, train, weights

pytestmark = pytest.mark.ranks(2, 3)
KINDS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True),
    "adamw": adamw,
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 0.01),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def same_widths(seed: int = 0) -> nn.Sequential:
    """Layers that only their names tell apart."""
    return net(seed, (5, 5, 5, 5))


def wrap(comm, optimizer, names=None, **options):
    return DistributedOptimizer(optimizer, names, comm=comm, **{"density": 0.4} | options)


@pytest.mark.parametrize("how", ["there", "added", "unfrozen"])
@pytest.mark.parametrize("cap", [None, 1e-4])
@every_kind
def test_parameters_are_reduced_by_name(ranks, kind, cap, how):
    """Each rank has or adds groups in an order of its own, or thaws layers of groups that stand in one."""

    def body(comm, orderly):
        model = same_widths()
        layers = [model[0], model[2], model[4]]
        rest = layers[:2][:: 1 if orderly or comm.rank == 0 else -1]
        optimizer = KINDS[kind](layers[2].parameters())
        if how != "added":
            for layer in rest:
                layer.requires_grad_(how == "there")
                optimizer.add_param_group({"params": list(layer.parameters())})
        pairs = list(model.named_parameters())[:: 1 if orderly or comm.rank == 0 else -1]
        wrap(comm, optimizer, pairs, bucket_cap_mb=cap)
        train(model, optimizer, own(comm.rank), range(3))
        for layer in rest:
            layer.requires_grad_(True)
            if how == "added":
                optimizer.add_param_group({"params": list(layer.parameters())})
        train(model, optimizer, own(comm.rank), range(3, 7))
        return weights(model), [*optimizer.reduction.gradients.residuals()]

    ends, names = zip(*ranks.run(lambda comm: body(comm, False)), strict=True)
    assert equal(ends) and equal([ends[0], ranks.run(lambda comm: body(comm, True))[0][0]])
    assert all(some == names[0] and sorted(some) == sorted(dict(same_widths().named_parameters())) for some in names)


@pytest.mark.parametrize("what", ["names", "shape", "alone"])
@pytest.mark.parametrize("begun", [0, 4])
def test_later_parameters_that_differ_are_an_error_on_all_ranks(ranks, what, begun):
    def body(comm):
        model = net(shapes=(5, 5, 5, 6))
        optimizer = wrap(comm, torch.optim.SGD(model[0].parameters(), 0.1), model.named_parameters())
        train(model, optimizer, own(comm.rank), range(begun))
        odd = comm.rank == 1
        if what == "names":
            optimizer.add_param_group({"params": [model[2 if odd else 4].weight]})
        elif what == "shape":
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3 if odd else 4))]})
        elif odd:
            optimizer.add_param_group({"params": [model[2].weight]})
        with pytest.raises(ValueError, match="all ranks must call with the same arguments"):
            train(model, optimizer, own(comm.rank), range(5, 6))

    ranks.run(body)


def test_without_names_later_parameters_are_numbers_that_none_has(ranks):
    def body(comm):
        first, second, third, fourth = (nn.Linear(3, 3) for _ in range(4))
        optimizer = torch.optim.SGD([first.weight, second.weight], 0.1)
        second.weight.requires_grad_(False)
        optimizer.add_param_group({"params": [third.weight]})
        wrap(comm, optimizer)
        del optimizer.param_groups[0]["params"][0]
        optimizer.add_param_group({"params": [fourth.weight]})
        optimizer.step()
        second.weight.requires_grad_(True)
        optimizer.step()
        return [*optimizer.reduction.gradients.residuals()]

    assert ranks.run(body) == [[f"parameter {number}" for number in (0, 2, 3, 1)]] * ranks.size


@pytest.mark.parametrize("how", ["at once", "groups in another order", "as before"])
@every_kind
def test_a_run_that_thawed_layers_goes_on_in_a_fresh_one_to_the_same_bits(ranks, kind, how):
    def body(comm):
        def wrapped(model, optimizer):
            return wrap(comm, optimizer, model.named_parameters(), density=0.35)

        def thawing(orderly):
            model = same_widths()
            optimizer = wrapped(model, KINDS[kind](model[4].parameters()))
            train(model, optimizer, own(comm.rank), range(3 if orderly else 0))
            for layer in (model[0], model[2]) if orderly else (model[2], model[0]):
                optimizer.add_param_group({"params": list(layer.parameters())})
            return model, optimizer

        model, optimizer = thawing(True)
        train(model, optimizer, own(comm.rank), range(3, 6))
        saved, moments = optimizer.reduction.state_dict(), {p: dict(s) for p, s in optimizer.state.items()}
        names = {p: name for name, p in model.named_parameters()}
        if how == "as before":  # frozen in its first steps
            again, fresh = thawing(False)
        else:
            again = same_widths(1)
            several = list(again.parameters())[:: -1 if how == "groups in another order" else 1]
            fresh = wrapped(again, KINDS[kind]([{"params": [p]} for p in several]))
        again.load_state_dict(model.state_dict())
        parameters = dict(again.named_parameters())
        for parameter, state in moments.items():
            copies = {key: x.clone() if isinstance(x, torch.Tensor) else x for key, x in state.items()}
            fresh.state[parameters[names[parameter]]] = copies
        fresh.reduction.load_state_dict(saved)
        ends = [train(*one, own(comm.rank), range(6, 10)) for one in ((model, optimizer), (again, fresh))]
        assert equal(ends)

    ranks.run(body)


@pytest.mark.parametrize("way", ["given", "of torch", "of the reduction"])
def test_a_state_is_broadcast_by_names_where_they_are_known(ranks, way):
    def body(comm, orderly):
        model = same_widths()
        pairs = list(model.named_parameters())[:: 1 if orderly or comm.rank == 0 else -1]
        optimizer = torch.optim.Adam([p for _, p in pairs] if way != "of torch" else pairs, 0.1)
        if way == "of the reduction":
            wrap(comm, optimizer, pairs)
        names = model.named_parameters() if way == "given" else None
        loss_of(model, comm.rank, 0).backward()
        optimizer.step()
        if orderly:
            broadcast_optimizer_state(optimizer, comm=comm, named_parameters=names)
            return
        with pytest.raises(ValueError, match=r"all ranks must call with the same arguments, but(?s:.*)0\.weight"):
            broadcast_optimizer_state(optimizer, comm=comm, named_parameters=names)

    for orderly in (True, False):
        # biases and weights differ in shape: only layers are swapped
        ranks.run(lambda comm, orderly=orderly: body(comm, orderly))


class ByName(nn.Sequential):
    """Layers that are held in one order, and called in that of their names."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _, layer in sorted(self.named_children()):
            x = layer(x)
        return x


def layers(orderly: bool) -> nn.Sequential:
    return ByName(OrderedDict([*same_widths().named_children()][:: 1 if orderly else -1]))


def replica_of(comm, orderly, **options):
    return made(comm, 2, model=layers(orderly), **{"density": 0.4} | options)


@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_local_steps_go_by_name(ranks, kind, fragments):
    """Also in states, which the outer optimizer of the first rank is in, and the inner one goes to new ranks."""

    def body(comm, orderly):
        replica = replica_of(comm, orderly or comm.rank != 1, outer=KINDS[kind], fragments=fragments)
        steps(replica, comm.rank, range(4))
        states = [replica.local.state_dict()]
        steps(replica, comm.rank, range(4, 8))
        other = replica_of(comm, orderly or comm.rank == 0, outer=KINDS[kind], fragments=fragments)
        other.local.take_over(states, comm.size)
        steps(other, comm.rank, range(4, 8))
        ends = []
        for model, _, local in (replica, other):
            local.synchronize()
            ends.append(torch.cat([p.detach().flatten() for _, p in sorted(model.named_parameters())]).tolist())
        return ends

    results = ranks.run(lambda comm: body(comm, False))
    assert results == [results[0]] * ranks.size and results[0][0] == results[0][1]
    assert results == ranks.run(lambda comm: body(comm, True))


@pytest.mark.parametrize(
    ("door", "what"),
    [*product(["optimizer", "local steps"], ["names", "shapes"]), ("local steps", "groups")],
)
def test_other_parameters_are_refused_on_all_ranks(ranks, door, what):
    def body(comm):
        odd = comm.rank == 1
        last = nn.Linear(5, 3 if what == "shapes" and odd else 4)
        model = nn.ModuleDict({"a": nn.Linear(5, 5), "b" if what == "names" and odd else "c": last})
        groups = [{"params": layer.parameters()} for layer in model.values()]
        inner = torch.optim.SGD(groups[:: -1 if what == "groups" and odd else 1], 0.1)
        with pytest.raises(ValueError, match="all ranks must call with the same arguments"):
            if door == "optimizer":
                wrap(comm, inner, model.named_parameters())
            else:
                DiLoCo(model, inner, plain(model.parameters()), 2, comm=comm)

    ranks.run(body)


def test_a_state_of_other_fragments_is_refused(ranks):
    def body(comm):
        one, other = (replica_of(comm, orderly, fragments=2).local for orderly in (True, False))
        with pytest.raises(ValueError, match=re.escape("state['vectors'] must be of ")):
            one.load_state_dict(other.state_dict())

    ranks.run(body)
