"""Where checkpoints go, what they are of, and when none may be written: all ranks alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparse_mpi import World
from sparse_mpi.checkpoint import latest

from .small_program import LOG, PROGRAM, train

pytestmark = pytest.mark.usefixtures("no_signals")


def test_ranks_whose_clocks_differ_write_into_one_folder(tmp_path, monkeypatch):
    """Each names the default folder of results after the time at which it was started."""
    monkeypatch.chdir(tmp_path)
    args = [PROGRAM.parse([*LOG, "--checkpoint-every", "4", "--max-steps", "4"]) for _ in range(2)]
    for rank, each in enumerate(args):
        each.out = Path(f"run-{rank}")
        each.checkpoint_dir = each.out / "checkpoints"
    World(2).run(lambda comm: PROGRAM.train(args[comm.rank], comm))
    assert latest("run-0/checkpoints").name == "step-00000004" and not Path("run-1").exists()
    assert {each.out for each in args} == {Path("run-0")}
