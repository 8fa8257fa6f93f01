"""Bytes a parameter that the library keeps, on a pretended device: the table of docs/reference/gpu-costs.md."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import NullComm
from sparse_mpi.ddp import SparseState, sparse_hook

from ..fakes import fake_cuda, fake_torch
from ..fakes.fake_device import TORCH_MEMORY
from .test_one_pool import live, young  # noqa: F401  the fixture
from .test_schedules import bucket_of

N, RANKS, DENSE = 1 << 15, 8, 2  # parameters; ranks; dense steps
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "gpu-costs.md"
ADAMW = partial(torch.optim.AdamW, lr=1e-3)


class Bytes(NamedTuple):
    """A parameter, of float32: between steps, and the most beside that in a dense step."""

    kept: float
    dense: float


TABLE = {
    ("oktopk", None): Bytes(4, 4),
    ("oktopk", ADAMW): Bytes(4, 4),
    ("elect", None): Bytes(8.5, 4),
    ("elect", ADAMW): Bytes(12.5, 8),
}


def measured(algorithm: str, make) -> Bytes:
    """What DDP's hook takes in one bucket, from which DDP's own memory, the gradient, is not counted."""
    parameter = torch.nn.Parameter(torch.zeros(N, device="cuda"))
    optimizer = None if make is None else make([parameter])
    state = SparseState(
        [("whole", parameter)], comm=NullComm(RANKS), algorithm=algorithm, optimizer=optimizer, dense_steps=DENSE
    )
    SparseAllreduce(99, k=9, comm=NullComm()).step(torch.zeros(99, device="cuda"))  # takes what all vectors share
    before, kept, dense = live(), 0.0, 0.0
    for step in range(DENSE + 2):
        drawn = np.random.default_rng(step).standard_normal(N).astype(np.float32)
        parameter.grad = torch.from_numpy(drawn).to("cuda")
        TORCH_MEMORY.most = live()
        sparse_hook(state, bucket_of(parameter.grad, [parameter])).value()
        if optimizer is not None:
            optimizer.step()
        most = TORCH_MEMORY.most - before
        kept = (live() - before) / N
        dense = max(dense, (most / N - kept) * (step < DENSE))
    return Bytes(kept, dense)


@pytest.mark.usefixtures("young")
@pytest.mark.parametrize(("algorithm", "make"), TABLE, ids=str)
def test_bytes_a_parameter(device, algorithm, make, monkeypatch):
    if fake_cuda.COMPILER is None:
        pytest.skip("emulating CUDA needs g++")
    fake_cuda.install_kernels(monkeypatch)
    fake_torch.install_torch(monkeypatch)
    monkeypatch.setattr("sparse_mpi.arrays.SHARED_BYTES", 1)  # have torch's meter see all arrays
    found, expected = measured(algorithm, make), TABLE[algorithm, make]
    assert expected.kept <= found.kept < expected.kept + 0.2  # the rest is of the entries that were sent last
    assert found.dense == expected.dense


def test_the_document_has_the_same_numbers():
    text = DOCUMENT.read_text()
    for (algorithm, make), (kept, dense) in TABLE.items():
        row = f"| {algorithm}{', AdamW given' if make else ''} | "
        assert f"{row}{16 + kept:g} | {kept:g} | {dense:g} |" in text
