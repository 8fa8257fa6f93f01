"""Training on a GPU for real: reductions beside the backward pass, `DistributedOptimizer` and the DDP hook.

    python -m pytest -m gpu tests/training/test_gpu_background.py

One process is enough: its communicator moves nothing, or is a gloo group of one rank.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.comm import NullComm
from sparse_mpi.ddp import SparseState, sparse_hook

from ..comm.test_background import Threaded
from ..kernels.test_gpu import LATE, K, N, bytes_of, device_count, vector
from . import loops
from .loops import SMALL, weights, wide_net, wrapped

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(device_count() == 0, reason="needs CuPy and a CUDA device")]
needs_cuda_torch = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a torch built for CUDA")
NAMES = ("oktopk", "topka", "gtopk", "dense")


def in_the_foreground(name: str) -> list[bytes]:
    """Three steps on the host, and the residual."""
    reducer = SparseAllreduce(N, k=K, comm=NullComm(2), algorithm=name)
    totals = [reducer.step(vector(0, step)) for step in range(3)]
    return bytes_of(*totals, reducer.state_dict()["residual"])


@needs_cuda_torch
@pytest.mark.parametrize("name", NAMES)
def test_tensors_that_are_still_being_computed(name):
    """On a busy stream of torch's own; several in flight; nobody synchronises."""
    reducers = [SparseAllreduce(N, k=K, comm=comm, algorithm=name) for comm in [Threaded(2)] * 2]
    ready = [torch.from_numpy(vector(0, step)).cuda() for step in range(3)]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        buffers, totals = [torch.zeros(N, device="cuda") for _ in reducers], []
        for gradient in ready:
            torch.cuda._sleep(LATE)
            handles = []
            for reducer, buffer in zip(reducers, buffers, strict=True):
                buffer.zero_()
                buffer += gradient
                handles.append(reducer.start(buffer))
            totals.append([handle.wait() for handle in handles])
        found = [bytes_of(*mine) for mine in zip(*totals, strict=True)]
    expected = in_the_foreground(name)
    for mine, reducer in zip(found, reducers, strict=True):
        assert [*mine, *bytes_of(reducer.state_dict()["residual"])] == expected


@needs_cuda_torch
@pytest.mark.parametrize("name", NAMES)
def test_results_stay_as_they_are_while_later_steps_reuse_memory(name):
    """The caller's stream is too busy to have copied a result when the next step is made."""
    reducer = SparseAllreduce(N, k=K, comm=Threaded(2), algorithm=name)
    ready = [torch.from_numpy(vector(0, step)).cuda() for step in range(3)]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        handles = [reducer.start(gradient) for gradient in ready]
        torch.cuda._sleep(LATE)
        totals = [handle.wait() for handle in handles]
        assert bytes_of(*totals) == in_the_foreground(name)[: len(bytes_of(*totals))]


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return wide_net().to("cuda", dtype)


def loss_of(model: nn.Module, rank: int, step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.Generator().manual_seed(1000 * step + rank)
    return model(torch.randn(8, 20, generator=made).to("cuda", dtype)).pow(2).mean()


def train(comm, dtype: torch.dtype = torch.float32, autocast: bool = False, **options) -> np.ndarray:
    """The weights after a few steps on the GPU; k is even in all buckets, as `NullComm` of two ranks needs it."""

    def loss(model: nn.Module, step: int) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            return loss_of(model, comm.rank, step, dtype)

    model = net(dtype)
    end = loops.train(model, wrapped(model, comm, **{"density": 0.043} | options), loss, range(4))
    assert all(p.grad.is_cuda for p in model.parameters())
    return end


@needs_cuda_torch
@pytest.mark.parametrize("stream", ["default", "own"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"feedback": "dgc"},
        {"compression": "dense"},
        {"clip_norm": 1.0},
        {"autocast": True},
        {"dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_overlap_changes_no_bit(options, stream):
    """Hooks of autograd's thread start what a lane's thread does; the foreground has one thread and stream."""
    with torch.cuda.stream(torch.cuda.Stream() if stream == "own" else torch.cuda.default_stream()):
        check_overlap(options)


def check_overlap(options) -> None:
    foreground = train(NullComm(2), overlap=False, **options)
    late, early = (train(Threaded(2), overlap=overlap, **options) for overlap in (False, True))
    begun = weights(net(options.get("dtype", torch.float32)))
    assert np.isfinite(early).all() and not np.array_equal(early, begun)
    assert np.array_equal(foreground, late) and np.array_equal(late, early)


@needs_cuda_torch
def test_ranks_that_share_a_gpu_stay_alike():
    assert loops.equal(World(3).run(train))


@needs_cuda_torch
@pytest.mark.parametrize("stream", ["default", "own"])
@pytest.mark.parametrize("comm", [NullComm, Threaded])
def test_a_loss_scaler_skips_an_overflow_and_leaves_no_trace(comm, stream):
    with torch.cuda.stream(torch.cuda.Stream() if stream == "own" else torch.cuda.default_stream()):
        model, scaler = net(), torch.amp.GradScaler("cuda", init_scale=2.0**10)
        optimizer = wrapped(model, comm(2), density=0.1, scaler=scaler, algorithm="topka")
        history = [weights(model)]
        for step in range(5):
            optimizer.zero_grad()
            loss = loss_of(model, 0, step) * (float("inf") if step == 2 else 1.0)
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            history.append(weights(model))
        left = [one["reducer"] for one in optimizer.reduction.state_dict()["vectors"]]
    changed = [not np.array_equal(a, b) for a, b in zip(history, history[1:], strict=False)]
    assert changed == [True, True, False, True, True] and scaler.get_scale() == 2.0**9
    assert np.isfinite(history[-1]).all() and all(np.isfinite(bucket["residual"]).all() for bucket in left)


@needs_cuda_torch
@pytest.mark.parametrize("options", [{"algorithm": "dense"}, {"algorithm": "topka", "density": 1.0}], ids=str)
def test_what_the_hook_sends_whole_trains_as_ddp_does(group, options):
    expected, found = (trained_by_ddp(group, hooked) for hooked in (None, options | {"dense_steps": 0}))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)


@needs_cuda_torch
def test_the_hook_keeps_what_it_does_not_send(group):
    """From step to step, through DDP's second set of buckets; the laws hold in every step."""
    found, state = trained_by_ddp(group, {"density": 0.05, "dense_steps": 1})
    left = np.concatenate([part for part in state.residuals().values()])
    assert np.isfinite(found).all() and np.count_nonzero(left) > len(left) / 2 and state.steps == 4
    again, _ = trained_by_ddp(group, {"density": 0.05, "dense_steps": 1})
    assert np.array_equal(found, again)


def trained_by_ddp(group, options: dict | None) -> tuple[np.ndarray, SparseState | None]:
    """The weights after a few steps under DistributedDataParallel, and the state of its hook if there is one."""
    bare = net()
    model = DistributedDataParallel(bare, device_ids=[0], bucket_cap_mb=SMALL, process_group=group)
    state = None if options is None else SparseState(bare.named_parameters(), comm=group, **options)
    if state is not None:
        state.check_every = 1
        model.register_comm_hook(state, sparse_hook)
    optimizer = torch.optim.SGD(bare.parameters(), 0.1, momentum=0.9)
    return loops.train(model, optimizer, lambda model, step: loss_of(model, 0, step), range(4)), state
