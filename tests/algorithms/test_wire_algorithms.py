"""Every algorithm with every message format that it takes: the laws hold of what arrives, rounded or not."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SparseAllreduce
from sparse_mpi.reduction.arguments import make_algorithm, takes
from sparse_mpi.wire import WIRES, Coo

from .conformance import CASES, assert_all, assert_same_as_in_world, gradient, same_bytes, train

VARIANTS = {name: (name, {}) for name in ALGORITHMS if takes(name, "wire")} | {
    "oktopk-owner": ("oktopk", {"residual": "owner"})
}
PACKED = [name for name in WIRES if not isinstance(WIRES[name], Coo)]
LOSSY = [name for name in WIRES if not WIRES[name].lossless]
pytestmark = pytest.mark.filterwarnings("ignore:invalid value")  # Inf - Inf


@pytest.mark.ranks(1, 2, 3, 5, 8)
@pytest.mark.parametrize("wire", PACKED)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.thin(1)
def test_laws_form_economy_and_count(ranks, variant, wire):
    name, options = VARIANTS[variant]
    algorithm = make_algorithm(name, options | {"wire": wire})
    for case, dtype in [
        *((case, np.float32) for case in ("elsewhere", "k=1", "n<P", "layers")),
        ("heavy-tailed", np.float64),
    ]:
        case = CASES[case]
        assert_all(ranks.run(lambda comm, c=case, d=dtype: train(comm, algorithm, c, d, 2)), algorithm, case, dtype)


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_lossless_format_changes_bytes_and_nothing_else(ranks, variant):
    name, options = VARIANTS[variant]

    def body(comm, wire):
        return train(comm, name, CASES["layers"], np.float32, 3, wire=wire, **options)

    for plain, packed in zip(*(ranks.run(lambda comm, w=w: body(comm, w)) for w in ("coo32", "packed")), strict=True):
        for a, b in zip(plain, packed, strict=True):
            assert same_bytes(a.total, b.total) and a.given.tobytes() == b.given.tobytes()
            assert b.report.traffic.sent < a.report.traffic.sent or ranks.size == 1


@pytest.mark.thin(0)  # many steps
@pytest.mark.ranks(3)
@pytest.mark.parametrize("wire", LOSSY)
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_rounding_takes_is_sent_later(ranks, variant, wire):
    """Of a gradient that comes once, all arrives in the end, to the precision of float64."""
    name, options = VARIANTS[variant]
    case = CASES["layers"]

    def body(comm):
        reducer = SparseAllreduce(case.layout, k=case.k, comm=comm, algorithm=name, wire=wire, **options)
        given = gradient(case, np.float64, 0, comm.rank, comm.size)
        arrived = reducer.step(given).to_dense()
        for _ in range(60 * WIRES[wire].codec.together):  # what is owed shrinks more slowly where codes are short
            arrived += reducer.step(np.zeros(case.n)).to_dense()
        return arrived, given

    seen = ranks.run(body)
    expected = np.sum([given for _, given in seen], axis=0)
    assert np.abs(seen[0][0] - expected).max() < 1e-6 * np.abs(expected).max()


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("wire", PACKED)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.against_world
def test_world_equals_mpi_in_bytes_and_traffic(ranks, variant, wire):
    name, options = VARIANTS[variant]
    case = CASES["heavy-tailed"]
    assert_same_as_in_world(ranks, lambda comm: train(comm, name, case, np.float32, 3, wire=wire, **options))


@pytest.mark.thin(1)
@pytest.mark.parametrize("wire", LOSSY)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.ranks(3)
def test_nonfinite_shows_in_total_at_once_and_then_is_gone(ranks, variant, wire):
    name, options = VARIANTS[variant]
    case = CASES["layers"]

    def body(comm):
        reducer = SparseAllreduce(case.layout, k=case.k, comm=comm, algorithm=name, wire=wire, **options)
        seen = []
        for step in range(3):
            g = gradient(case, np.float32, step, comm.rank, comm.size)
            g[400] = [1, np.inf, 1][step] if comm.rank == 1 else 0
            seen.append(np.isfinite(reducer.step(g).to_dense()))
        assert np.isfinite(reducer.residual).all()
        return seen

    for before, during, after in ranks.run(body):
        assert before.all() and after.all() and np.flatnonzero(~during).tolist() == [400]
