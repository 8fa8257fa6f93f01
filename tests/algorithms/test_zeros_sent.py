"""Zeros are not sent, by any algorithm whose selector may select fewer than k entries."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SELECTORS
from sparse_mpi.reduction.arguments import make_algorithm, takes
from sparse_mpi.testing import Case

from .conformance import train

SPARSE = [name for name in ALGORITHMS if takes(name, "selector") and not ALGORITHMS[name]().selector.patterned]
SPARSE.remove("elect")  # steps of one shape, zeros included


def mostly_zero(rng, rank, ranks):
    """20 entries of 10,000, and none on the last of several ranks."""
    x = np.zeros(10_000)
    x[rng.choice(10_000, 20, replace=False)] = rng.standard_normal(20)
    return x if rank < ranks - 1 or ranks == 1 else np.zeros(10_000)


@pytest.mark.parametrize(
    "selector", [name for name in SELECTORS if not SELECTORS[name]().patterned and name != "random"]
)
@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.thin(1)
def test_zeros_are_not_sent(ranks, name, selector):
    """A step takes no more bytes than one that selects as many entries as are not zero on all ranks together."""
    case, algorithm = Case(mostly_zero, 10_000, 500), make_algorithm(name, {"selector": selector})
    most = algorithm.bound(case.layout, 20 * ranks.size, ranks.size).payload(8, 4)
    for steps in zip(*ranks.run(lambda comm: train(comm, algorithm, case, np.float32, 1)), strict=True):
        given = np.any([case.gradient(np.float32, 0, rank, ranks.size) != 0 for rank in range(ranks.size)], axis=0)
        for step in steps:
            assert given[step.total.indices].all()
            assert step.report.selected <= 20 and step.report.traffic.sent <= most
