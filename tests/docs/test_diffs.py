"""The diffs for those who come from another library: what they lead to runs, and ranks end with one model."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest

from ..launch import ROOT, launch, needs_mpi

PAGES = sorted((ROOT / "docs" / "guides" / "coming-from").glob("*.md"))
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def side(page, dropped: str) -> str:
    """The script of a page's diff without the lines that begin with ``dropped``."""
    (diff,) = re.findall(r"^```diff\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[:1] != dropped)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_both_sides_are_scripts_and_only_what_differs_is_marked(page):
    old, new = (side(page, dropped) for dropped in "+-")
    for script in (old, new):
        ast.parse(textwrap.dedent(script))
    assert "sparse_mpi" in new and "sparse_mpi" not in old


@needs_mpi
@pytest.mark.jobs
@pytest.mark.full("a job for each page; examples/distributed.py is run in make test")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_new_side_runs_and_ranks_end_with_one_model(page, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(side(page, "-"))
    launcher = (None, *TORCHRUN) if "DistributedDataParallel" in script.read_text() else (2,)
    done = launch(*launcher, str(script), OMP_NUM_THREADS="1")
    weights = re.findall(r"weights ([-.\de]+)", done.stdout)  # ranks may print on one line
    assert done.returncode == 0 and len(weights) == 2 and len(set(weights)) == 1, done.stderr
