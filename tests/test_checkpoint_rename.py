"""A checkpoint's folder: the same for all ranks, and never lost while it is rewritten or thinned out."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import World
from sparse_mpi.checkpoint import load, save


def test_the_folder_is_that_of_rank_0(tmp_path):
    def body(comm):
        written = save(tmp_path / str(comm.rank), 1, {}, b"weights", np.arange(comm.rank), comm)
        return written, len(load(written, comm).states[0])

    assert World(3).run(body) == [(tmp_path / "0" / "step-00000001", rank) for rank in range(3)]
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
