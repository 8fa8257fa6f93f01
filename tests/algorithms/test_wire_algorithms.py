"""Every algorithm with every message format that it takes: the laws hold of what arrives, rounded or not."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS
from sparse_mpi.reduction.arguments import make_algorithm, takes
from sparse_mpi.testing import CASES, Trials, check_algorithm
from sparse_mpi.testing.steps import same_bytes
from sparse_mpi.wire import WIRES, Coo

from .conformance import assert_same_as_in_world, train

NAMES = [name for name in ALGORITHMS if takes(name, "wire")]
PACKED = [name for name in WIRES if not isinstance(WIRES[name], Coo)]
pytestmark = pytest.mark.filterwarnings("ignore:invalid value")  # Inf - Inf


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("wire", PACKED)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.thin(1)
def test_all_laws(ranks, name, wire):
    cases = "heavy-tailed", "n<P", "layers, nonfinite"
    check_algorithm(make_algorithm(name, {"wire": wire}), Trials((ranks,), cases, examples=0))


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("name", NAMES)
def test_the_lossless_format_changes_bytes_and_nothing_else(ranks, name):
    def body(comm, wire):
        return train(comm, name, CASES["layers"], np.float32, 3, wire=wire)

    for plain, packed in zip(*(ranks.run(lambda comm, w=w: body(comm, w)) for w in ("coo32", "packed")), strict=True):
        for a, b in zip(plain, packed, strict=True):
            assert same_bytes(a.total, b.total) and a.given.tobytes() == b.given.tobytes()
            assert b.report.traffic.sent < a.report.traffic.sent or ranks.size == 1


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("wire", PACKED)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.against_world
def test_world_equals_mpi_in_bytes_and_traffic(ranks, name, wire):
    case = CASES["heavy-tailed"]
    assert_same_as_in_world(ranks, lambda comm: train(comm, name, case, np.float32, 3, wire=wire))
