"""The hybrid collective: its parts' algorithms, each on its own tensors, and nothing else."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, Layout, SparseAllreduce, SparseVector
from sparse_mpi.algorithms.hybrid import Fused, Hybrid, stretches
from sparse_mpi.comm import NullComm
from sparse_mpi.testing import CASES, Trials, check_algorithm
from sparse_mpi.testing.cases import LAYERS
from sparse_mpi.testing.steps import dense_of

from ..kernels.on_cuda import bytes_of

BIG, SMALL, REST = (0, 2, 8), (1, 3, 4, 5, 9), (6, 7, 10)  # tensors of LAYERS


def part(name, tensors, share=0.0, **options):
    return Fused(ALGORITHMS[name](**options), tuple(sorted(tensors)), share)


HYBRIDS = {
    "dense and sparse": Hybrid((part("oktopk", BIG, 0.8), part("dense", SMALL + REST))),
    "mostly dense": Hybrid((part("dense-bf16", BIG + REST), part("topka", SMALL, 0.2))),
    "three ways": Hybrid((part("topkdsa", BIG, 0.7), part("dense", SMALL), part("gtopk", REST, 0.3))),
    "one part": Hybrid((part("topka", range(11), 1.0),)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", ["layers", "layers, k=1", "layers, k=n"])
@pytest.mark.parametrize("hybrid", HYBRIDS)
@pytest.mark.thin(1, ranks=(3,), dtype=("float32",))
def test_all_laws(ranks, hybrid, case, dtype):
    assert HYBRIDS[hybrid].traits.conserves
    check_algorithm(HYBRIDS[hybrid], Trials((ranks,), (case,), (dtype,), examples=0))


@pytest.mark.parametrize("hybrid", HYBRIDS)
def test_a_part_is_reduced_as_if_it_were_alone(ranks, hybrid):
    """To the bit: each part's tensors, fused by hand, through a reducer of their own."""
    case = CASES["layers"]

    def body(comm):
        together = SparseAllreduce(LAYERS, k=case.k, comm=comm, algorithm=HYBRIDS[hybrid])
        cuts = [(part.algorithm, *part.cut(LAYERS, case.k)) for part in HYBRIDS[hybrid].parts]
        alone = [SparseAllreduce(fused, k=k, comm=comm, algorithm=algorithm) for algorithm, fused, k in cuts]
        for step in range(3):
            g = case.gradient(np.float32, step, comm.rank, comm.size)
            total, expected = dense_of(together.step(g)), np.zeros_like(g)
            for part, reducer in zip(HYBRIDS[hybrid].parts, alone, strict=True):
                where = np.concatenate([np.arange(lo, hi) for lo, hi in stretches(LAYERS, part.tensors)])
                expected[where] = dense_of(reducer.step(g[where]))
            assert total.tobytes() == expected.tobytes()

    ranks.run(body)


@pytest.mark.parametrize("hybrid", HYBRIDS)
def test_result_is_dense_where_dense_parts_are_large(hybrid):
    reducer = SparseAllreduce(LAYERS, k=100, comm=NullComm(), algorithm=HYBRIDS[hybrid])
    total = reducer.step(CASES["layers"].gradient(np.float32, 0, 0, 1))
    assert isinstance(total, SparseVector) == (hybrid in ("three ways", "one part"))


def test_k_of_a_step_is_shared_out(ranks):
    algorithm = HYBRIDS["three ways"]

    def body(comm):
        reducer = SparseAllreduce(LAYERS, k=40, comm=comm, algorithm=algorithm)
        dense = sum(LAYERS.sizes[tensor] for tensor in SMALL)
        for k in (40, 200, 10, 1):
            reducer.step(CASES["layers"].gradient(np.float32, k, comm.rank, comm.size), check=True, k=k)
            assert reducer.report.selected == dense + max(round(0.7 * k), 1) + max(round(0.3 * k), 1)

    ranks.run(body)


@pytest.mark.ranks(3)
def test_every_part_learns_of_a_flush(ranks):
    """What a part remembers is of a residual that is no more."""
    parts = part("elect", BIG, 0.5), part("elect", REST, 0.5), part("dense", SMALL)
    case, algorithm = CASES["layers"], Hybrid(parts)

    def body(comm):
        reducer = SparseAllreduce(LAYERS, k=case.k, comm=comm, algorithm=algorithm)
        for step in range(3):
            reducer.step(case.gradient(np.float32, step, comm.rank, comm.size))
        votes = [len(state["my_vote_sum"]) for state in reducer.state_dict()["state"]["pieces"][:2]]
        reducer.flush()
        return votes, [len(state["my_vote_sum"]) for state in reducer.state_dict()["state"]["pieces"][:2]]

    for before, after in ranks.run(body):
        assert min(before) > 0 and after == [0, 0]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([(0, 1)], r"each of the 3 tensors of the layout once, got \[0, 1\]; make the plan for this model"),
        ([(0, 1), (1, 2)], r"got \[0, 1, 1, 2\]"),
        ([(0, 1, 2, 3)], r"got \[0, 1, 2, 3\]"),
    ],
)
def test_parts_must_cover_the_layout_once(ranks, parts, message):
    algorithm = Hybrid(tuple(part("topka", tensors, 0.5) for tensors in parts))

    def body(comm):
        with pytest.raises(ValueError, match=message):
            SparseAllreduce([(4, 5), (5,), (3, 3)], k=5, comm=comm, algorithm=algorithm)

    ranks.run(body)


@pytest.mark.parametrize(
    ("tensors", "share", "message"),
    [
        ((0,), 1.5, r"share must be in \[0, 1\], got 1.5"),
        ((), 0.5, r"at least one, got \(\)"),
        ((2, 1), 0.5, r"ascending order, at least one, got \(2, 1\)"),
    ],
)
def test_bad_parts_are_refused(tensors, share, message):
    with pytest.raises(ValueError, match=message):
        Fused(ALGORITHMS["topka"](), tensors, share)


def test_parts_without_elements_are_refused():
    with pytest.raises(ValueError, match="a part must have elements, got none"):
        Hybrid((part("topka", (0,), 1.0), part("topka", (1,), 1.0))).init(Layout.of([(5,), (0,)]), 1, 1)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("hybrid", HYBRIDS)
def test_device_arrays_give_the_bytes_of_the_host(ranks, device, hybrid):
    cupy = sys.modules["cupy"]

    def body(comm):
        apart, here = (SparseAllreduce(LAYERS, k=120, comm=comm, algorithm=HYBRIDS[hybrid]) for _ in range(2))
        for step in range(3):
            g = CASES["layers"].gradient(np.float32, step, comm.rank, comm.size)
            total, expected = apart.step(cupy.asarray(g)), here.step(g)
            assert bytes_of(total, apart.residual) == bytes_of(expected, here.residual)

    ranks.run(body)


@pytest.mark.under_mpi(3)
def test_ranks_with_other_hybrids_are_told_apart(ranks):
    """However late in a long description they differ."""
    if ranks.size < 2:
        pytest.skip("one rank differs from nobody")

    def body(comm):
        share = 0.5 if comm.rank else 0.25
        parts = tuple(part("oktopk", (tensor,), share if tensor == 10 else 0.1) for tensor in range(11))
        with pytest.raises(ValueError, match=r"(?s)rank 0: n=.*\[-?[0-9a-f]+\].*rank.* 1.*: n=.*\[-?[0-9a-f]+\]"):
            SparseAllreduce(LAYERS, k=50, comm=comm, algorithm=Hybrid(parts))

    ranks.run(body)
