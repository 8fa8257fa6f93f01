"""Reductions beside the backward pass of a model on a pretended device: `test_gpu_background`, as far as torch allows.

The lane's thread finds the device's tensors, and streams are entered and left as on a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import World
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.training.bucket import largest_bucket

from ..comm.test_background import Threaded
from ..fakes import fake_torch
from ..fakes.fake_device import TORCH_STREAM
from . import loops
from . import test_gpu_background as real

OPTIONS = [
    {},
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
    real.check_overlap(options)
    assert not gpu.early and not gpu.races


@pytest.mark.timeout(300)
@pytest.mark.parametrize("schedule", [None, 1])
def test_ranks_that_share_a_gpu_stay_alike(gpu, schedule):
    """Hooks are on the one thread that goes through all their passes, and must not wait there for other ranks."""
    assert loops.equal(World(3, schedule=schedule).run(real.train))


@pytest.mark.parametrize("overlap", [True, False])
def test_rows_of_embeddings_pass_through_the_host(gpu, overlap):
    """No more of them than were touched, beside dense gradients that stay; torch's sparse tensors are not pretended."""
    rows, width = 5000, 8

    def trained(comm, where):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(rows, width, sparse=True), torch.nn.Linear(width, 4)).to(where)
        plain = torch.optim.SGD(model[1].parameters(), 0.1)
        plain.add_param_group({"params": model[0].parameters(), "lr": 0.0})
        optimizer = DistributedOptimizer(plain, comm=comm, algorithm="dense", overlap=overlap)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.tensor([step, 40, 40, 9 + comm.rank], device=where)).pow(2).sum().backward()
            optimizer.synchronize()
            optimizer.reduction.stepped()
        gradient = model[0].weight.grad
        assert gradient.is_sparse and gradient._indices().tolist() == [[2, *range(9, 9 + comm.size), 40]]
        large = [copy for copy in gpu.copies if copy.bytes >= rows * width * 4]
        assert len(large) == (where == "cuda")  # the table, when its model was moved
        return gradient._values().cpu().numpy()

    expected = World(3).run(lambda comm: trained(comm, "cpu"))[0]
    for one in World(3).run(lambda comm: trained(comm, "cuda")):
        np.testing.assert_allclose(one, expected, rtol=1e-6)
    assert not gpu.early and not gpu.races


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_step_in_a_graph_says_what_to_do(gpu, overlap, clip_norm):
    model = real.net()
    optimizer = real.wrapped(model, Threaded(1), overlap=overlap, clip_norm=clip_norm)
    # From the third step on, reductions begin in the backward pass
    loops.train(model, optimizer, lambda model, step: real.loss_of(model, 0, step), range(3))
    optimizer.zero_grad()
    loss = real.loss_of(model, 0, 0)
    gpu.captured.update({0, TORCH_STREAM})
    with pytest.raises(
        RuntimeError, match="captured into a CUDA graph, it is: .* capture forward and backward passes alone"
    ):
        loss.backward()
        optimizer.step()
    gpu.captured.clear()


@pytest.mark.parametrize(("elements", "most"), [(10, 250), (2 * 10**8, 250), (10**9, 1000)])
def test_buckets_on_a_gpu_are_few(gpu, elements, most):
    """The host pays the same for each, whatever its length; and a large model has about four."""
    whole = torch.empty(1).expand(elements)
    assert largest_bucket("auto", [whole]) == 25
    assert largest_bucket("auto", [whole.as_subclass(fake_torch.CudaTensor)]) == most
    assert largest_bucket(7, [whole]) == 7 and largest_bucket(None, [whole]) is None
