"""The diffs for those who come from another library: the new side trains, and ranks end with one model."""

from __future__ import annotations

import re

import pytest

from ..launch import ROOT, launch, needs_mpi

PAGE = (ROOT / "docs" / "guides" / "coming-from.md").read_text()
DIFFS = dict(re.findall(r"(?m)^## (.*)\n(?:(?!## ).*\n)*?```diff\n((?:[-+ ].*\n)+)```", PAGE))
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
BEFORE = """
import torch
from torch import distributed, nn
from sparse_mpi.comm import as_comm
if distributed.is_torchelastic_launched():
    distributed.init_process_group("gloo")
draw = torch.Generator().manual_seed(as_comm(None).rank)
images = torch.randn(20, 32, 64, generator=draw)
batches = [(one, one[:, :10].argmax(1)) for one in images]
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
"""
LOOP = """
for images, labels in batches:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
"""
AFTER = 'print(f"weights {sum(p.double().sum() for p in model.parameters()):.6f}")\n'
by_library = pytest.mark.parametrize("library", DIFFS)


def side(library: str, dropped: str) -> str:
    """The lines of a diff that do not begin with ``dropped``."""
    return "".join(f"{line[1:]}\n" for line in DIFFS[library].splitlines() if line[:1] != dropped)


def test_each_section_of_a_trainer_has_a_diff():
    assert ["Spark and dask", *DIFFS] == re.findall(r"(?m)^## (.*)", PAGE)


@needs_mpi
@pytest.mark.jobs
@pytest.mark.full("a job for each library; examples/distributed.py is run in make test")
@by_library
def test_the_new_side_runs_and_ranks_end_with_one_model(library, tmp_path):
    new, script = side(library, "-"), tmp_path / "train.py"
    script.write_text(BEFORE + new + ("" if "\nfor " in new else LOOP) + AFTER)
    launcher = (None, *TORCHRUN) if "DistributedDataParallel" in new else (2,)
    done = launch(*launcher, str(script), OMP_NUM_THREADS="1")
    weights = re.findall(r"weights ([-.\de]+)", done.stdout)  # ranks may print on one line
    assert done.returncode == 0 and len(weights) == 2 and len(set(weights)) == 1, done.stderr
