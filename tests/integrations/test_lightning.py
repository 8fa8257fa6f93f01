"""Lightning with the strategy "sparse_mpi" under torchrun: `lightning_job` fits, and this looks at it."""

from __future__ import annotations

import pytest
import torch

from ..launch import launch
from ..prefork import copied

pytestmark = pytest.mark.jobs
RUNS = ("own", "straight", "half", "resumed")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What each rank saw, by run."""
    folder = tmp_path_factory.mktemp("lightning")
    done = launch(None, *copied("tests/integrations/lightning_job.py", str(folder)), seconds=240, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-5000:]
    found = {run: [torch.load(folder / f"{run}-{rank}.pt", weights_only=False) for rank in range(2)] for run in RUNS}
    assert all(torch.equal(one["weights"], other["weights"]) for one, other in found.values())
    return found


def test_steps_are_dense_at_first_and_then_sparse(saved):
    for rank in saved["straight"]:
        dense, sparse = rank["sent"][:2], rank["sent"][2:]
        assert len(sparse) == 10 and min(dense) > 4 * 250 and 0 < max(sparse) < min(dense) / 10


def test_its_logger_has_the_reports(saved):
    ((names, *rows),) = saved["straight"][0]["logged"]
    assert {"mb_sent", "total", "exchange_seconds"} <= set(names.split(",")) and len(rows) >= 12


def test_a_fit_that_resumes_goes_on_to_the_same_bits(saved):
    for straight, resumed in zip(saved["straight"], saved["resumed"], strict=True):
        assert straight["sent"][6:] == resumed["sent"] and straight["residual"].any()
        for name in ("weights", "residual"):
            assert torch.equal(straight[name], resumed[name])


def test_files_of_the_ranks_go_with_their_checkpoint(saved):
    assert saved["straight"][0]["files"] == ["epoch=1.ckpt", "epoch=1.ckpt.rank0.pt", "epoch=1.ckpt.rank1.pt"]


def test_lightnings_own_strategy_leaves_the_hook_out_without_cuda(saved):
    """If this fails, Lightning has changed, and the page of the frameworks has to."""
    assert [rank["steps"] for rank in saved["own"]] == [0, 0]
