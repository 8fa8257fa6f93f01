"""``DistributedOptimizer(clip_norm=)``: the norm of the reduced gradient, of all buckets together or of each."""

from __future__ import annotations

import pytest
import torch

from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.reduction.clipping import clipping_factor, sketched

from .loops import SMALL, loss_of, wrapped
from .loops import wide_net as net

MOST = 0.05
ERROR = 0.1  # four standard errors of an estimated norm


def gradients(comm, scaler=None, **options) -> list[torch.Tensor]:
    """Return the gradients that an optimizer would step along, of each parameter, without a loss scale."""
    model = net()
    scale = 1.0 if scaler is None else scaler.get_scale()
    options = {"algorithm": "dense", "density": None, "bucket_cap_mb": None, "scaler": scaler} | options
    optimizer = wrapped(model, comm, **options)
    (loss_of(model, comm.rank, 0) * scale).backward()
    optimizer.synchronize()
    return [p.grad / scale for p in model.parameters()]


def norm(grads: list[torch.Tensor]) -> float:
    return float(torch.cat([g.flatten() for g in grads]).norm())


SCALER = torch.amp.GradScaler("cpu", init_scale=8.0)
SCALER.scale(torch.zeros(1))  # it makes its scale when it is first used
WHOLE = {
    "overlap": {"overlap": True, "bucket_cap_mb": None},
    "one bucket": {"overlap": False, "bucket_cap_mb": None},
    "buckets": {"overlap": False, "bucket_cap_mb": SMALL},
    "scaler": {"overlap": True, "bucket_cap_mb": SMALL, "scaler": SCALER},
}


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("op", ["average", "sum"])
@pytest.mark.parametrize("how", WHOLE)
def test_the_whole_gradient_is_clipped(ranks, how, op):
    """To the norm that is asked for, of the mean or the sum, without a change of direction."""

    def body(comm):
        free = gradients(comm, op=op)
        most = MOST * (comm.size if op == "sum" else 1)
        clipped, loose = (gradients(comm, op=op, clip_norm=c, **WHOLE[how]) for c in (most, 100.0))
        assert all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(free, loose, strict=True))
        return norm(free), norm(clipped), [float((c / f).median()) for f, c in zip(free, clipped, strict=True)]

    for was, now, factors in ranks.run(body):
        most = MOST * (ranks.size if op == "sum" else 1)
        assert was > 2 * most and now == pytest.approx(most, rel=1e-5 if ranks.size == 1 else ERROR)
        assert factors == pytest.approx([factors[0]] * len(factors), rel=1e-5)


@pytest.mark.ranks(3)
def test_with_overlap_each_bucket_is_clipped(ranks):
    def body(comm):
        clipped = gradients(comm, clip_norm=MOST, overlap=True, bucket_cap_mb=SMALL)
        return [norm([g]) for g in clipped]

    for found in ranks.run(body):
        assert max(found) <= MOST * (1 + ERROR)
        assert sum(n > MOST * (1 - ERROR) for n in found) > 1


@pytest.mark.ranks(3)
def test_half_precision_is_clipped_before_it_is_rounded(ranks):
    """A small factor makes no zeros of a float16 gradient."""

    def body(comm):
        parameter = torch.nn.Parameter(torch.zeros(1000, dtype=torch.float16))
        optimizer = DistributedOptimizer(
            torch.optim.SGD([parameter], 1.0), comm=comm, algorithm="dense", clip_norm=1e-7, overlap=False
        )
        gradient = torch.full((1000,), 1e-3, dtype=torch.float16)
        (parameter * gradient).sum().backward()
        (total,) = optimizer.synchronize()
        factor = clipping_factor(sketched([gradient], comm.size), 1e-7, comm)
        return total, float(gradient[0]) * factor * comm.size

    for total, expected in ranks.run(body):
        assert total.dtype == torch.float32
        torch.testing.assert_close(total, torch.full((1000,), expected), rtol=1e-3, atol=0.0)
