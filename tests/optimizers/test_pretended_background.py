"""Reductions beside the backward pass of a model on a pretended device: `test_gpu_background`, as far as torch allows.

The lane's thread finds the device's tensors, and streams are entered and left as on a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import World
from sparse_mpi.comm import NullComm

from ..fakes import fake_torch
from ..transport.test_background import Threaded
from . import test_gpu_background as real

OPTIONS = [
    {},
    {"in_place": True},
    {"feedback": "dgc"},
    {"compression": "dense"},
    {"clip_norm": 1.0},
    {"dtype": torch.bfloat16},
]


@pytest.fixture
def gpu(device, monkeypatch):
    """The pretended device, for torch too."""
    fake_torch.install_torch(monkeypatch)
    return device


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_overlap_changes_no_bit(gpu, options):
    foreground = real.train(NullComm(2), overlap=False, **options)
    late, early = (real.train(Threaded(2), overlap=overlap, **options) for overlap in (False, True))
    begun = real.weights(real.net(options.get("dtype", torch.float32)))
    assert np.isfinite(early).all() and not np.array_equal(early, begun)
    assert np.array_equal(foreground, late) and np.array_equal(late, early)
    assert not gpu.early and not gpu.races


@pytest.mark.parametrize("in_place", [False, True])
def test_ranks_that_share_a_gpu_stay_alike(gpu, in_place):
    results = World(3).run(lambda comm: real.train(comm, in_place=in_place))
    assert all(np.array_equal(one, results[0]) for one in results)
