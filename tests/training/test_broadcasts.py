"""`broadcast_parameters`, `broadcast_optimizer_state`: all ranks have the root's, or all raise and nothing changed."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sparse_mpi.optim import broadcast_optimizer_state, broadcast_parameters

pytestmark = pytest.mark.ranks(1, 3)


def refused(ranks, call, words: str, one: bool) -> None:
    """Assert that ``call(comm, wrong)`` raises on all ranks if it is wrong on all, or on the last alone."""

    def run(comm):
        with pytest.raises((TypeError, ValueError), match=words):
            call(comm, not one or comm.rank == comm.size - 1)

    ranks.run(run)


BUFFERS = {
    "empty": lambda: torch.zeros(0),
    "empty rows": lambda: torch.zeros(3, 0),
    "number": lambda: torch.tensor(2.5),
    "transposed": lambda: torch.arange(12.0).view(4, 3).t(),
    "every other": lambda: torch.arange(12.0)[::2],
    "channels last": lambda: torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "parameter": lambda: nn.Parameter(torch.arange(5.0)),
}
DTYPES = ("bool", "uint8", "int64", "float16", "bfloat16", "float64", "complex64", "float8_e4m3fn", "float8_e5m2")


def test_tensors_of_every_kind_come_from_the_root(ranks):
    def run(comm):
        state = {name: make() for name, make in BUFFERS.items()}
        state |= {name: torch.tensor([0, 1, 1]).to(getattr(torch, name)) for name in DTYPES}
        expected = {name: tensor.detach().clone() for name, tensor in state.items()}
        if comm.rank != comm.size - 1:
            with torch.no_grad():
                for tensor in state.values():
                    tensor.copy_(torch.zeros(tensor.shape))
        # The order of a mapping may be another on each rank, and what is no tensor stays
        order = sorted(state, reverse=comm.rank % 2 > 0)
        broadcast_parameters({name: state[name] for name in order} | {"_extra_state": comm.rank}, comm.size - 1, comm)
        return [
            torch.equal(tensor.to(torch.complex64), expected[name].to(torch.complex64))
            for name, tensor in state.items()
        ]

    assert all(map(all, ranks.run(run)))


STATE = {"w": torch.zeros(3)}
INFERENCE = torch.inference_mode()(lambda: torch.zeros(3))()
PARAMS = {  # what comes, and a part of the error
    "a model": (nn.Linear(2, 3), r"pairs .*got Linear\("),
    "parameters": (list(nn.Linear(2, 2).parameters()), "pairs of a name and a tensor, got Parameter"),
    "arrays": ({"w": np.zeros(3)}, r"got \('w', array"),
    "pairs with an array": ([("v", torch.zeros(2)), ("w", 3)], r"got \('w', 3\)"),
    "numbers of tensors": ({"w": torch.zeros(3), 1: torch.zeros(3)}, r"got \(1, tensor"),
    "another shape": ({"w": torch.zeros(4)}, "w:"),
    "another dtype": ({"w": torch.zeros(3).double()}, "w:"),
    "another name": ({"v": torch.zeros(3)}, "v:"),
    "sparse": ({"w": torch.zeros(3).to_sparse()}, r"params\['w'\] must be a dense tensor .* of torch.sparse_coo"),
    "meta": ({"w": torch.zeros(3, device="meta")}, r"params\['w'\] must be .*, got one on meta"),
    "lazy": (nn.LazyLinear(2).state_dict(), "an uninitialized parameter"),
    "inference": ({"w": INFERENCE}, r"params\['w'\] must be .*, got one of torch.inference_mode"),
}


@pytest.mark.parametrize("one", [True, False])
@pytest.mark.parametrize("kind", PARAMS)
def test_bad_parameters_are_refused_on_all_ranks(ranks, kind, one):
    params, words = PARAMS[kind]
    if kind.startswith("another") and not (one and ranks.size > 1):
        return
    refused(ranks, lambda comm, wrong: broadcast_parameters(params if wrong else STATE, comm=comm), words, one)


def test_an_iterator_that_fails_on_one_rank_fails_on_all(ranks):
    def failing(wrong):
        yield from STATE.items()
        if wrong:
            raise ValueError("no more names")

    refused(ranks, lambda comm, wrong: broadcast_parameters(failing(wrong), comm=comm), "no more names", one=True)


def sgd(**options):
    return torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(2, 3))]}], **{"lr": 0.5} | options)


def with_group(options):
    optimizer = sgd()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]} | options)
    return optimizer


class Own:
    """What ``weights_only`` refuses."""


OPTIMIZERS = {
    "a state": (lambda: sgd().state_dict(), "optimizer must be an instance of Optimizer"),
    "another class": (lambda: torch.optim.Adam(sgd().param_groups[0]["params"]), "optimizer=Adam"),
    "more groups": (lambda: with_group({}), "optimizer=SGD"),
    "another shape": (lambda: torch.optim.SGD([nn.Parameter(torch.zeros(6))]), r"groups=\(6,\):torch.float32"),
    "another dtype": (lambda: torch.optim.SGD([nn.Parameter(torch.zeros(2, 3).double())]), "torch.float64"),
}


@pytest.mark.parametrize("one", [True, False])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_other_optimizers_are_refused_on_all_ranks(ranks, kind, one):
    make, words = OPTIMIZERS[kind]
    if not kind.startswith("a ") and not (one and ranks.size > 1):
        return
    refused(ranks, lambda comm, wrong: broadcast_optimizer_state(make() if wrong else sgd(), comm=comm), words, one)


@pytest.mark.parametrize("option", [Own(), lambda step: 0.1, [1, {"deep": Own()}]])
def test_what_the_root_cannot_send_is_named_on_all_ranks(ranks, option):
    """The pickle of a function fails on the root, that of an object where it is read."""
    place = r"\['param_groups'\]\[1\]\['own'\]" + (r"\[1\]\['deep'\]" if isinstance(option, list) else "")

    def run(comm):
        optimizer = with_group({"own": option if comm.rank == 0 else 1})
        with pytest.raises((TypeError, ValueError), match=place + " must be numbers, texts, tensors"):
            broadcast_optimizer_state(optimizer, comm=comm)

    ranks.run(run)


def test_a_load_that_fails_on_one_rank_fails_on_all(ranks):
    def run(comm):
        optimizer = sgd(lr=1.0 + comm.rank)

        def refuse(*_):
            raise KeyError("mu_product")

        if comm.rank == comm.size - 1:
            optimizer.register_load_state_dict_pre_hook(refuse)
        with pytest.raises((KeyError, ValueError), match="mu_product"):
            broadcast_optimizer_state(optimizer, comm=comm)

    ranks.run(run)


numbers = st.one_of(
    st.floats(0, 9, width=32).map(np.float32),
    st.floats(0, 9).map(np.float64),
    st.integers(0, 9).map(np.int32),
    st.booleans().map(np.bool_),
    st.floats(0, 9),
    st.sampled_from([None, "text", torch.float16, torch.tensor(0.5)]),
)
trees = st.recursive(
    numbers,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("ranks", [2], indirect=True)
@given(lr=numbers.filter(lambda x: isinstance(x, (float, np.generic))), option=trees)
def test_numpys_numbers_arrive_as_pythons_and_arrays_as_tensors_on_all_ranks(ranks, lr, option):
    def run(comm):
        optimizer = with_group({"own": deepcopy(option)} if comm.rank == 0 else {})
        parameter = optimizer.param_groups[0]["params"][0]
        if comm.rank == 0:
            optimizer.param_groups[0]["lr"] = lr
            optimizer.state[parameter] = OrderedDict(seen=lr, moment=torch.ones(2, 3))
            optimizer.param_groups[0]["rates"] = np.ones(2)
        broadcast_optimizer_state(optimizer, comm=comm)
        assert torch.equal(optimizer.state[parameter]["moment"], torch.ones(2, 3))
        assert torch.equal(optimizer.param_groups[0]["rates"], torch.ones(2, dtype=torch.float64))
        return optimizer.param_groups[0]["lr"], optimizer.state[parameter]["seen"], optimizer.param_groups[1]["own"]

    first, second = ranks.run(run)
    assert str(first) == str(second) and "np." not in str(first) and first[0] == first[1] == lr
