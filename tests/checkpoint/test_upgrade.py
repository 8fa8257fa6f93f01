"""States that sparse_mpi 0.3.0 wrote load for one release more.

The folder written_by_0.3.0 has the states of two ranks after three steps, and what each reducer gave in the fourth.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World, checkpoint

OLD = Path(__file__).with_name("written_by_0.3.0")
CASES = json.loads((OLD / "step-00000003" / "checkpoint.json").read_text())["identity"]["cases"]


@pytest.mark.parametrize("label", CASES)
def test_a_reducer_goes_on_where_that_of_0_3_stopped(label):
    """To the same entries, and to the same values but for the rounding of another processor.

    With second moments other entries are elected since: ranks vote in their units. Moments and residuals go on.
    """

    def step(comm):
        found = checkpoint.load(OLD, comm)
        reducer = SparseAllreduce([(12, 30), (30,)], k=20, comm=comm, **CASES[label])
        reducer.take_over([state[label] for state in found.states], found.ranks)
        gradient = np.random.default_rng([3, comm.rank]).standard_normal(390).astype(np.float32)
        if (moment := reducer.second_moment) is not None:
            assert moment.mean.tobytes() == found.states[0][label]["second_moment"].tobytes() and moment.steps == [3, 3]
        return reducer.step(gradient, check=True).to_dense()

    expected = np.load(OLD / "totals.npz")[label]
    if label == "moment":
        assert len({np.count_nonzero(total) for total in World(2).run(step)}) == 1
        return
    for total in World(2).run(step):
        np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-5)
        assert ((total != 0) == (expected != 0)).all()
