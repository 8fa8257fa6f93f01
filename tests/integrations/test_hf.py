"""Hugging Face's Trainer with the callback under torchrun: `hf_job` trains, and this looks at it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sparse_mpi.integrations.hf import SparseCallback

from ..launch import launch
from ..prefork import copied

RUNS = ("straight", "resumed", "again")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What each rank saw, by run."""
    folder = tmp_path_factory.mktemp("hf")
    offline = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = launch(None, *copied("tests/integrations/hf_job.py", str(folder)), seconds=240, **offline)
    assert done.returncode == 0, done.stderr[-5000:]
    found = {run: [torch.load(folder / f"{run}-{rank}.pt", weights_only=False) for rank in range(2)] for run in RUNS}
    assert all(torch.equal(one["weights"], other["weights"]) for one, other in found.values())
    return found


@pytest.mark.jobs
def test_logs_have_the_bytes_of_a_step(saved):
    """Of an accumulated gradient: dense in the first two steps, sparse in the others."""
    for rank in saved["straight"]:
        _, dense, *sparse = [log["sparse_bytes"] for log in rank["logs"]]
        assert dense > 4 * len(rank["weights"]) and len(sparse) == 4 and 0 < min(sparse) and max(sparse) < dense / 10
        assert rank["steps"] == 6 and rank["residual"].any()
        assert all("sparse_bytes" in told for told in rank["tracked"] if "loss" in told) and len(rank["tracked"]) >= 6


@pytest.mark.jobs
def test_a_run_that_resumes_goes_on_to_the_same_bits(saved):
    for straight, resumed in zip(saved["straight"], saved["resumed"], strict=True):
        for name in ("weights", "residual"):
            assert torch.equal(straight[name], resumed[name])
        # Earlier logs are those of the first rank
        assert straight["logs"][3:] == resumed["logs"][3:] and resumed["steps"] == 6


@pytest.mark.jobs
def test_training_may_begin_again(saved):
    """By the same Trainer, which keeps its DDP, and by another one of the same model."""
    assert saved["again"][0]["again"] == 12 and saved["again"][0]["steps"] == 6


def begin(callback, **args) -> None:
    told = SimpleNamespace(**{"world_size": 2, "deepspeed": None, "fsdp": None} | args)
    callback.on_train_begin(told, SimpleNamespace(global_step=0), None, model=torch.nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ({"deepspeed": "zero2.json"}, "deepspeed"),
        ({"fsdp": "full_shard"}, "fsdp"),
        ({"world_size": 8}, "no DistributedDataParallel"),
    ],
)
def test_a_trainer_without_ddp_is_refused(args, what):
    """Accelerate has neither DeepSpeed nor FSDP on CPUs."""
    ranks = args.get("world_size", 2)
    with pytest.raises(RuntimeError, match=f"got {ranks} processes and {what}; make TrainingArguments without deep"):
        begin(SparseCallback(), **args)


def test_one_process_trains_as_ever():
    callback = SparseCallback()
    begin(callback, world_size=1)
    assert callback.state is None
