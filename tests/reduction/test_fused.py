"""The gradient joins the residual in the selection's own pass: the same bits as one after the other, less memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from sparse_mpi import ALGORITHMS, FEEDBACKS, SparseAllreduce, SparseVector, World
from sparse_mpi.algorithms.topka import TopkA
from sparse_mpi.kernels import cpu

N, K, STEPS = 5000, 50, 4


def gradients(rank, dtype):
    rng = np.random.default_rng(rank)
    return [torch.from_numpy(rng.standard_normal(N)).to(dtype) for _ in range(STEPS)]


def run(comm, name, feedback, dtype, check, wide=False):
    """Totals and residuals of every step; ``check`` makes the library add first and select then."""
    reducer = SparseAllreduce(N, k=K, comm=comm, algorithm=name, feedback=feedback)
    seen = []
    for gradient in gradients(comm.rank, dtype):
        total = reducer.step(gradient.float() if wide else gradient, check=check)
        dense = total.to_dense() if isinstance(total, SparseVector) else total
        seen.append((dense.numpy().tobytes(), np.asarray(reducer.residual).tobytes()))
    return seen


@pytest.mark.thin(1)
@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("feedback", FEEDBACKS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_fused_is_addition_then_selection(ranks, name, feedback):
    def body(comm):
        fused = run(comm, name, feedback, torch.float32, check=False)
        assert fused == run(comm, name, feedback, torch.float32, check=True)

    ranks.run(body)


@pytest.mark.thin(1)
@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("feedback", FEEDBACKS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_half_precision_is_as_if_widened_first(ranks, name, feedback, dtype):
    def body(comm):
        half = run(comm, name, feedback, dtype, check=False)
        assert half == run(comm, name, feedback, dtype, check=False, wide=True)

    ranks.run(body)


@pytest.mark.parametrize("second_moment, fused", [(None, "accumulate_select"), (0.9, "select_standardized")])
def test_steady_steps_select_in_the_accumulating_pass(second_moment, fused, monkeypatch):
    """No selection of its own, no addition of its own, no division of its own."""
    given = {"algorithm": "elect", "second_moment": second_moment}
    reducer = SparseAllreduce(N, k=K, comm=World(1).run(lambda comm: comm)[0], **given)
    gradients = np.random.default_rng(0).standard_normal((40, N)).astype(np.float32)
    passes = []
    for name in ("select", "accumulate", "standardized", "accumulate_select", "select_standardized"):
        real = getattr(cpu, name)
        monkeypatch.setattr(
            cpu, name, lambda *args, name=name, real=real, **named: passes.append(name) or real(*args, **named)
        )
    steps = []
    for gradient in gradients:
        reducer.step(gradient)
        steps.append(tuple(passes))
        passes.clear()
    later = steps[20:]  # the threshold of a step before is missed now and then
    assert {step[0] for step in later} == {fused} and later.count((fused,)) > len(later) / 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_precision_gradient_is_never_widened_whole(dtype):
    n = 2_000_000
    comm = World(1).run(lambda comm: comm)[0]
    reducer = SparseAllreduce(n, density=0.01, comm=comm, algorithm="topka")
    gradient = torch.randn(n, generator=torch.Generator().manual_seed(0)).to(dtype)
    reducer.step(gradient)
    reducer.step(gradient)
    tracemalloc.start()
    try:
        reducer.step(gradient)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < n  # a quarter of the widened vector


@dataclass(frozen=True)
class Blind(TopkA):
    """Never looks at acc."""

    def reduce(self, acc, k, comm, state, layout, add=None):
        selected = SparseVector(np.array([0], np.int32), acc[:1] * 0, len(acc))
        return TopkA().reduce(selected.to_dense(), k, comm, TopkA().init(layout, k, 1), layout)


def test_an_algorithm_that_does_not_select_is_an_error():
    def body(comm):
        reducer = SparseAllreduce(N, k=K, comm=comm, algorithm=Blind())
        reducer.step(np.ones(N, np.float32))
        reducer.step(np.ones(N, np.float32))

    with pytest.raises(RuntimeError, match="must select once from acc"):
        World(1).run(body)
