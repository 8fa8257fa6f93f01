"""What tests of sparse data share: a device, pretended or real, and whether few entries come with the arguments."""

from __future__ import annotations

import pytest
import torch

from sparse_mpi import World, collectives
from sparse_mpi.collectives import inline

from ..fakes import fake_array, fake_cupyx, fake_torch
from ..kernels.test_gpu import device_count


def refused(make, ranks=3, **options) -> list[str]:
    """What each rank is told of ``make(rank)``, before anything is sent."""

    def body(comm):
        with pytest.raises((TypeError, ValueError, ImportError)) as error:
            collectives.allreduce(make(comm.rank), comm=comm, **options)
        assert comm.traffic.sent == 0
        return str(error.value)

    return World(ranks).run(body)


@pytest.fixture
def pretended(monkeypatch):
    """The record of a pretended device, in which CuPy, cupyx and torch believe."""
    device = fake_array.install(monkeypatch)
    fake_cupyx.install(monkeypatch)
    fake_torch.install_torch(monkeypatch)
    return device


@pytest.fixture(params=["pretended", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request):
    """The record of a pretended device; nothing of a real one."""
    if request.param == "pretended":
        return request.getfixturevalue("pretended")
    if device_count() == 0 or not torch.cuda.is_available():
        pytest.skip("needs CuPy, a torch built for CUDA, and a CUDA device")
    pytest.importorskip("cupyx.scipy.sparse")
    return None


@pytest.fixture(params=["with the arguments", "apart"])
def apart(request, monkeypatch):
    """Let few entries come with the arguments, or in messages of their own as many do."""
    if request.param == "apart":
        monkeypatch.setattr(inline, "MOST", 0)  # room for all
