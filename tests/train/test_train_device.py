"""Training on a device, as far as a machine without one can tell.

The device ``meta`` computes shapes alone and raises where a value is asked for: a pass that works there waits for
nothing. Streams of CUDA are pretended.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections import namedtuple
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from sparse_mpi import World
from sparse_train.ranks import device as devices
from sparse_train.ranks.job import JobError
from sparse_train.tasks.task import OnDevice, ahead, moved

from .small_program import refusals, tiny, train

PROGRAMS = ["bert", "bert --task squad", "gpt2", "lstm", "resnet", "transformer", "vgg", "vit"]
Pair = namedtuple("Pair", "values lengths")


class OnHost(Pair):
    on_host = ("lengths",)


def made(name, folder):
    return tiny(f"{name} --batch-size 4", folder)[0]


@pytest.mark.thin(0, name=("vgg", "lstm"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_half_precision_leaves_weights_and_gradients_as_they_are(name, tmp_path):
    torch.set_num_threads(1)
    task, plain = (OnDevice(made(name, tmp_path), torch.device("cpu"), precision) for precision in ("bf16", "float32"))
    assert task.headline == plain.headline and task.steps == plain.steps
    losses = [one.forward_and_loss(next(one.train(0)))[0] for one in (task, plain)]
    losses[0].backward()
    half, whole = (loss.item() for loss in losses)
    assert half == pytest.approx(whole, rel=0.1) and half != whole
    assert {p.grad.dtype for p in task.model.parameters() if p.grad is not None} == {torch.float32}


def test_what_says_so_stays_on_the_host():
    batch = moved(OnHost(torch.ones(3), torch.ones(2)), torch.device("meta"))
    assert isinstance(batch, OnHost) and [part.device.type for part in batch] == ["meta", "cpu"]
    assert moved((torch.ones(2), ["text"]), torch.device("meta"))[1] == ["text"]


class Streams:
    """What `ahead` asks of ``torch.cuda``, and a record of it."""

    def __init__(self):
        self.done = []

    def Stream(self, device):
        return "copies"

    @contextmanager
    def stream(self, stream):
        self.done.append("copy")
        yield

    def current_stream(self):
        return self

    def wait_stream(self, stream):
        self.done.append(f"wait for {stream}")


def test_the_next_batch_travels_while_one_is_worked_on(monkeypatch):
    streams = Streams()
    for name in ("Stream", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(streams, name))
    monkeypatch.setattr("sparse_train.tasks.task.moved", lambda batch, device, pinned: (batch, pinned))
    seen = []
    for batch in ahead(iter(range(3)), torch.device("cuda")):
        seen.append(batch)
        streams.done.append(f"work on {batch[0]}")
    assert seen == [(0, True), (1, True), (2, True)]
    waits = "wait for copies"
    assert streams.done == [
        "copy", "copy", waits, "work on 0", "copy", waits, "work on 1", waits, "work on 2",
    ]  # fmt: skip


def pretend(monkeypatch, gpus=2, cupy=None):
    """Have torch tell of so many GPUs; return the list of those that become current."""
    current = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(device.index))
    monkeypatch.setattr(devices, "check_transport", lambda comm: None)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return current


def working(**more):
    return Namespace(**{"ndarray": type("ndarray", (), {}), "zeros": torch.zeros, **more})


def refused(wanted="cuda", ranks=2):
    return refusals(World(ranks), lambda comm: devices.choose(wanted, comm))


def test_without_a_gpu_auto_is_the_cpu_and_cuda_an_error(monkeypatch):
    assert World(2).run(lambda comm: devices.choose("auto", comm).type) == ["cpu", "cpu"]
    assert all("was built without CUDA; install a build for it" in text for text in refused())
    pretend(monkeypatch, gpus=0, cupy=working())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert all("sees no GPU, and CUDA_VISIBLE_DEVICES is '7'" in text for text in refused())
    pretend(monkeypatch, cupy=None)
    assert all("pip install cupy-cuda13x; or take --device cpu" in text for text in refused())
    pretend(monkeypatch, cupy=working(zeros=broken))
    assert all("CuPy does not work here (no kernel image)" in text for text in refused())


def broken(size):
    raise RuntimeError("no kernel image")


def test_an_mpi_that_lies_about_device_pointers_is_found_out(monkeypatch):
    check = devices.check_transport
    pretend(monkeypatch, cupy=working(full=np.full))
    World(3).run(check)
    monkeypatch.setitem(sys.modules, "cupy", working(full=lambda size, value, dtype: np.zeros(size, dtype)))
    monkeypatch.setattr(devices, "check_transport", check)
    assert all("export SPARSE_MPI_CUDA_AWARE=0" in text for text in refused())


@pytest.mark.parametrize(
    ("gpus", "expected"), [(2, [0, 1, 0, 1]), (4, [0, 1, 0, 1]), (1, [0] * 4)], ids=["all", "more", "bound"]
)
def test_ranks_of_a_node_take_its_gpus_in_turn(monkeypatch, capsys, gpus, expected):
    pretend(monkeypatch, gpus, working())
    chosen = World(4, per_node=2).run(lambda comm: devices.choose("auto", comm).index)
    assert chosen == expected and not capsys.readouterr().err


def test_ranks_that_share_a_gpu_are_told_so(monkeypatch, capsys):
    pretend(monkeypatch, 2, working())
    assert World(5, per_node=5).run(lambda comm: devices.choose("cuda", comm).index) == [0, 1, 0, 1, 0]
    assert capsys.readouterr().err == "WARNING: 5 ranks of a node share 2 GPUs\n"


def with_nccl(monkeypatch, ids):
    """Pretend GPUs of these names, one a rank, and an NCCL that tells who made it."""
    runtime = Namespace(deviceGetPCIBusId=lambda index: ids[index])
    pretend(monkeypatch, len(ids), working(cuda=Namespace(runtime=runtime)))
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", Namespace(available=True))
    monkeypatch.setattr("sparse_mpi.comm.nccl.NcclComm", lambda comm: f"nccl of {comm.size}")


def carried(wanted, ids=("a", "b"), kind="cuda"):
    def body(comm):
        try:
            found = devices.transport(wanted, torch.device(kind, comm.rank), comm)
        except JobError as error:
            return str(error)
        return "mpi" if found is comm else found

    return World(len(ids)).run(body)


def test_nccl_carries_what_mpi_does_not_take_from_gpus(monkeypatch):
    with_nccl(monkeypatch, ["a", "b"])
    assert carried("auto") == carried("nccl") == ["nccl of 2"] * 2
    assert carried("mpi") == carried("auto", kind="cpu") == ["mpi"] * 2
    assert all("--transport nccl: gradients are not on a GPU" in text for text in carried("nccl", kind="cpu"))
    with_nccl(monkeypatch, ["a"])
    assert carried("auto", "a") == ["mpi"] and carried("nccl", "a") == ["nccl of 1"]
    with_nccl(monkeypatch, ["a", "a"])
    assert carried("auto") == ["mpi"] * 2
    assert all("another rank has the same GPU" in text for text in carried("nccl"))
    with_nccl(monkeypatch, ["a", "b"])
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", Namespace(available=False))
    assert all("CuPy finds no NCCL; pip install" in text for text in carried("nccl"))


def test_a_program_chooses_deterministic_kernels_if_told_to(tmp_path, monkeypatch):
    """Before anything is computed, and of its own accord it leaves them as they are."""
    variable, cudnn, seen = "CUBLAS_WORKSPACE_CONFIG", torch.backends.cudnn, []
    before = cudnn.deterministic, cudnn.benchmark, torch.are_deterministic_algorithms_enabled()
    monkeypatch.setenv(variable, "")
    monkeypatch.delenv(variable)

    def chosen(wanted, comm):
        state = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        seen.append((variable in os.environ, cudnn.deterministic, *state))
        return torch.device("cpu")

    monkeypatch.setattr("sparse_train.trainer.program.choose", chosen)
    try:
        train(1, tmp_path / "plain", "--max-steps", "1")
        train(1, tmp_path / "told", "--max-steps", "1", "--deterministic")
    finally:
        cudnn.deterministic, cudnn.benchmark = before[:2]
        torch.use_deterministic_algorithms(before[2])
    assert seen == [(False, False, False, False), (True, True, True, True)]


def test_a_program_trains_in_half_precision_and_goes_on_in_whole(tmp_path):
    options = ["--checkpoint-every", "4", "--max-steps", "8"]
    assert train(2, tmp_path / "half", *options, "--precision", "bf16", "--device", "auto").identical
    checkpoint = tmp_path / "half" / "checkpoints" / "step-00000004"
    assert train(2, tmp_path / "whole", *options, "--resume", str(checkpoint), "--device", "cpu").steps == 8
