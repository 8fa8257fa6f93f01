"""What a step costs on a device, by algorithm and by memory: waits of the host, launches, and bytes over the bus.

Counted on a pretended device, with the CUDA kernels emulated and MPI that takes no device pointers. A launch is one of
the kernels or a function of CuPy that computes something. A wait is for all that its stream was told before: for what
is to be sent, or for a number on which lengths or decisions depend. A round is a call that a process group makes over
gloo, where NCCL carries arrays on devices. docs/reference/gpu-costs.md has the budgets, and ``python -m tests.record
NAME`` writes them.
"""

from __future__ import annotations

import sys
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np
import pytest
import torch

from sparse_mpi import ALGORITHMS, FEEDBACKS, Layout, SparseAllreduce, World
from sparse_mpi.arrays import is_device
from sparse_mpi.comm.forwarding import ForwardingComm
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.predict.cluster import DeviceCost, device_costs

from ..fakes import fake_cuda, fake_torch
from ..tables import GPU_COSTS, table

RANKS, STEPS = 4, 10
LAYOUT, K = Layout(((100, 150), (50, 100))), 200
TABLES = 4096  # bytes of counts, and of tables of messages, which do not grow with the vector


MADE = {
    "AdamW, elect": partial(torch.optim.AdamW, foreach=True),
    "SGD, oktopk": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
}


class Budget(NamedTuple):
    """The most that any rank needs in a steady step, in which all thresholds hold; and in any step but the first.

    The first step also sets up what stays on the device.
    """

    waits: int
    launches: int
    copies: int  # over the bus, of any length
    rounds: int
    most_waits: int
    most_launches: int


BUDGETS, MEMORIES, TRAINING = (
    {name: Budget(*map(int, cells)) for name, cells in table(GPU_COSTS, kind).items()}
    for kind in ("algorithms", "feedback", "training")
)


class Spent(NamedTuple):
    """By one rank in one step."""

    waits: int
    launches: int
    copies: int
    rounds: int
    down: int  # bytes to the host
    up: int
    sent: int
    received: int
    control: int


class OverNccl(ForwardingComm):
    """Counts the calls that go over gloo beside NCCL: arrays on the host, and lengths that receivers do not know."""

    def __init__(self, comm, rounds=None):
        super().__init__(comm)
        self.rounds = [] if rounds is None else rounds  # True for each call over gloo, of all communicators

    def duplicate(self, yield_cpu=False):
        return OverNccl(self._comm.duplicate(yield_cpu), self.rounds)

    def split(self, color):
        return OverNccl(self._comm.split(color), self.rounds)


# Arguments by which receivers know the lengths; inf: by none
NEEDED = {"allgather": 0, "allreduce": 0, "allgatherv": 1, "alltoallv": 2, "sendrecv": inf, "bcast": inf}


def _counted(name):
    def call(self, send, *others, **options):
        given = [x for x in (*others, *options.values()) if x is not None]
        equal = name == "alltoallv" and not given
        self.rounds.append(not is_device(send) or len(given) < NEEDED[name] and not equal)
        return getattr(self._comm, name)(send, *others, **options)

    return call


for _name in NEEDED:
    setattr(OverNccl, _name, _counted(_name))


def spent(device, algorithm: str, feedback: str) -> list[list[Spent]]:
    """Return what each rank spends in each step of a reducer."""

    def prepare(comm):
        reducer = SparseAllreduce(LAYOUT, k=K, comm=comm, algorithm=algorithm, feedback=feedback)
        return reducer, sys.modules["cupy"].asarray, reducer.step

    return counted(device, prepare)


def counted(device, prepare) -> list[list[Spent]]:
    """Return what each rank spends in each step; ``prepare`` returns a reducer, and what puts and takes a gradient."""

    def body(comm):
        reducer, put, step_along = prepare(view := OverNccl(comm))
        found = []
        for step in range(STEPS):
            rng = np.random.default_rng([comm.rank, step])
            gradient = put(rng.standard_normal(LAYOUT.size).astype(np.float32))
            device.copies.clear()
            device.synchronised.clear()
            view.rounds.clear()
            before = device.launched
            step_along(gradient)
            down, up = (sum(copy.bytes for copy in device.copies if copy.to == to) for to in ("host", "device"))
            traffic = reducer.report.traffic
            told = traffic.sent, traffic.received, traffic.control
            counted = len(device.synchronised), device.launched - before, len(device.copies)
            found.append(Spent(*counted, sum(view.rounds), down, up, *told))
        return found

    return World(RANKS).run(body)


def trained(device, name: str, tensors: int, idle: int = 0) -> list[list[Spent]]:
    """Return what each rank spends in each step of an optimizer behind its backward pass; ``idle`` have no gradient."""
    size = LAYOUT.size // tensors

    def prepare(comm):
        parameters = [torch.nn.Parameter(torch.ones(size, device="cuda")) for _ in range(tensors)]
        optimizer = DistributedOptimizer(MADE[name](parameters), k=K, comm=comm, algorithm=name.split(", ")[1])

        def put(gradient):
            parts = torch.from_numpy(gradient).split(size)
            for parameter, part in list(zip(parameters, parts, strict=True))[idle:]:
                parameter.grad = part.to("cuda")

        return optimizer.reduction, put, lambda _: optimizer.step()

    return counted(device, prepare)


def later(found: list[list[Spent]]) -> list[Spent]:
    """Return what all ranks spent in all steps but the first."""
    return [step for steps in found for step in steps[1:]]


def budget(found: list[list[Spent]]) -> Budget:
    """Return what was needed in the step with the fewest waits, and the most in any, by the rank that needed most."""
    steps = [[max(numbers) for numbers in zip(*ranks, strict=True)][:4] for ranks in zip(*found, strict=True)][1:]
    return Budget(*min(steps), max(step[0] for step in steps), max(step[1] for step in steps))


def assert_only_what_is_exchanged_crosses(found: list[list[Spent]]) -> None:
    """Assert that no more crosses the bus than the messages, with a rank's own part of them, and tables."""
    own = RANKS / (RANKS - 1)
    for step in later(found):
        assert step.down <= own * step.sent + step.control + TABLES
        assert step.up <= own * step.received + step.control + TABLES


@pytest.fixture
def emulated(device, monkeypatch):
    if fake_cuda.COMPILER is None:
        pytest.skip("emulating CUDA needs g++")
    fake_cuda.install_kernels(monkeypatch)
    return device


def test_every_algorithm_and_memory_has_a_budget_that_predictions_know():
    assert BUDGETS.keys() == ALGORITHMS.keys() and MEMORIES.keys() == FEEDBACKS.keys()
    costs = {name: DeviceCost(budget.launches, budget.waits, budget.copies) for name, budget in BUDGETS.items()}
    assert device_costs() == costs


@pytest.mark.thin(0, name=("oktopk", "elect"))
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_step_of_an_algorithm_keeps_to_its_budget(emulated, name):
    found = spent(emulated, name, "residual")
    assert budget(found) == BUDGETS[name]
    assert_only_what_is_exchanged_crosses(found)


@pytest.mark.thin(0, name=("gmc",))  # "residual" is what algorithms are counted with
@pytest.mark.parametrize("name", FEEDBACKS)
def test_a_step_of_a_memory_keeps_to_its_budget(emulated, name):
    found = spent(emulated, "topka", name)
    assert budget(found) == MEMORIES[name]
    assert_only_what_is_exchanged_crosses(found)


@pytest.mark.thin(1)  # both numbers have one budget
@pytest.mark.parametrize("tensors", [4, 40])
@pytest.mark.parametrize("name", MADE)
def test_a_step_of_an_optimizer_keeps_to_its_budget_for_any_number_of_tensors(emulated, monkeypatch, name, tensors):
    """Torch's own operations are counted in training/test_operations.py."""
    fake_torch.install_torch(monkeypatch)
    assert budget(trained(emulated, name, tensors)) == TRAINING[name]


@pytest.mark.thin(0, name=("SGD, oktopk",))  # what AdamW withholds is as many launches anyway
@pytest.mark.parametrize("name", MADE)
def test_tensors_without_a_gradient_cost_no_launch_each(emulated, monkeypatch, name):
    fake_torch.install_torch(monkeypatch)
    few, many = (budget(trained(emulated, name, 40, idle)) for idle in (10, 30))
    assert few[:4] == many[:4]
