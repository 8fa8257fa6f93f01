"""What a step costs on a device, by algorithm and by memory: waits of the host, launches, and bytes over the bus.

Counted on a pretended device, with the CUDA kernels emulated and MPI that takes no device pointers. A launch is one of
the kernels or a function of CuPy that computes something. A wait is for all that its stream was told before: for what
is to be sent, or for a number on which lengths or decisions depend. `docs/reference/gpu-costs.md` has the numbers too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, FEEDBACKS, Layout, SparseAllreduce, World

from ..fakes import fake_cuda

RANKS, STEPS = 4, 6
LAYOUT, K = Layout(((100, 150), (50, 100))), 200
TABLES = 4096  # bytes of counts, and of tables of messages, which do not grow with the vector
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "gpu-costs.md"


class Budget(NamedTuple):
    """The most that any rank needs in any step but the first, which also sets up what stays on the device."""

    waits: int
    launches: int


BUDGETS = {
    "dense": Budget(1, 2),
    "dense-bf16": Budget(2, 13),
    "topka": Budget(7, 20),
    "topkdsa": Budget(9, 25),
    "gtopk": Budget(13, 59),
    "oktopk": Budget(16, 39),
    "oktopk-2level": Budget(19, 54),
    "spardl": Budget(28, 155),
    "micro": Budget(8, 38),
    "gaussiank": Budget(8, 21),
    "adtopk": Budget(3, 69),
    "elect": Budget(22, 91),
    "powersgd": Budget(3, 37),
    "acpsgd": Budget(2, 35),
}
# With topka
MEMORIES = {
    "residual": Budget(7, 20),
    "dgc": Budget(8, 49),
    "gmc": Budget(7, 25),
    "leaky": Budget(7, 21),
    "ef21": Budget(10, 42),
    "sa-pef": Budget(7, 21),
    "none": Budget(7, 19),
}


class Spent(NamedTuple):
    """By one rank in one step."""

    waits: int
    launches: int
    down: int  # bytes to the host
    up: int
    sent: int
    received: int
    control: int


def spent(device, algorithm: str, feedback: str) -> list[list[Spent]]:
    """Return what each rank spends in each step."""
    cupy = sys.modules["cupy"]

    def body(comm):
        reducer = SparseAllreduce(LAYOUT, k=K, comm=comm, algorithm=algorithm, feedback=feedback)
        found = []
        for step in range(STEPS):
            rng = np.random.default_rng([comm.rank, step])
            gradient = cupy.asarray(rng.standard_normal(LAYOUT.size).astype(np.float32))
            device.copies.clear()
            device.synchronised.clear()
            before = device.launched
            reducer.step(gradient)
            down, up = (sum(copy.bytes for copy in device.copies if copy.to == to) for to in ("host", "device"))
            traffic = reducer.report.traffic
            told = traffic.sent, traffic.received, traffic.control
            found.append(Spent(len(device.synchronised), device.launched - before, down, up, *told))
        return found

    return World(RANKS).run(body)


def later(found: list[list[Spent]]) -> list[Spent]:
    """Return what all ranks spent in all steps but the first."""
    return [step for steps in found for step in steps[1:]]


def most(found: list[list[Spent]]) -> Budget:
    """Return the most of any rank in any later step."""
    return Budget(max(step.waits for step in later(found)), max(step.launches for step in later(found)))


def assert_only_what_is_exchanged_crosses(found: list[list[Spent]]) -> None:
    """Assert that no more crosses the bus than the messages, with a rank's own part of them, and tables."""
    own = RANKS / (RANKS - 1)
    for step in later(found):
        assert step.down <= own * step.sent + step.control + TABLES
        assert step.up <= own * step.received + step.control + TABLES


@pytest.fixture
def emulated(device, monkeypatch):
    """The pretended device with the CUDA kernels."""
    if fake_cuda.COMPILER is None:
        pytest.skip("emulating CUDA needs g++")
    fake_cuda.install_kernels(monkeypatch)
    return device


def test_every_algorithm_and_memory_has_a_budget():
    assert BUDGETS.keys() == ALGORITHMS.keys() and MEMORIES.keys() == FEEDBACKS.keys()


@pytest.mark.thin(0, name=("dense-bf16", "topka", "oktopk", "elect"))
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_step_of_an_algorithm_keeps_to_its_budget(emulated, name):
    found = spent(emulated, name, "residual")
    assert most(found) == BUDGETS[name]
    assert_only_what_is_exchanged_crosses(found)


@pytest.mark.thin(0, name=("residual", "gmc"))
@pytest.mark.parametrize("name", FEEDBACKS)
def test_a_step_of_a_memory_keeps_to_its_budget(emulated, name):
    found = spent(emulated, "topka", name)
    assert most(found) == MEMORIES[name]
    assert_only_what_is_exchanged_crosses(found)


def test_the_document_has_the_same_numbers():
    text = DOCUMENT.read_text()
    for name, budget in BUDGETS.items():
        assert f"| {name} | {budget.waits} | {budget.launches} |" in text
