"""Quota: the shape of a step, of Elect's too; which entries it takes, and when it hands over to Ok-Topk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SparseAllreduce, World, sparse_allreduce
from sparse_mpi.algorithms import Algorithm, Reduction, quota
from sparse_mpi.algorithms.quota import Quota, few, parts_of
from sparse_mpi.select.exact import top_k
from sparse_mpi.sparse import SparseVector, merge, truncate, where
from sparse_mpi.testing import CASES, Case, Trials, check_algorithm
from sparse_mpi.wire import WIRES

from .conformance import train

N, K = 30_000, 600
SHAPES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "all zero": lambda rng, n: np.zeros(n),
    "one tensor": lambda rng, n: np.where(np.arange(n) < n // 20, rng.standard_normal(n), 0),
    "ties": lambda rng, n: rng.integers(-2, 3, n) / 4,
    "not a number": lambda rng, n: np.where(np.arange(n) == 77, np.nan, rng.standard_normal(n)),
}


@pytest.mark.thin(1, ranks=(3,))
@pytest.mark.ranks(1, 2, 3, 5, 6, 7, 8, 16)
@pytest.mark.parametrize(("name", "k"), [("quota", K), ("elect", 2 * K)])
@pytest.mark.parametrize("wire", ["coo32", "packed", "packed+bf16", "packed+int8"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.full("compiled anew"))])
def test_every_step_sends_what_the_bound_says(ranks, shape, wire, dtype, name, k):
    """To the byte and the message, whatever the data."""
    algorithm = ALGORITHMS[name](wire=WIRES[wire])

    def body(comm):
        reducer, sent = SparseAllreduce(N, k=k, comm=comm, algorithm=algorithm), []
        for step in range(3):
            gradient = SHAPES[shape](np.random.default_rng([step, comm.rank]), N).astype(dtype)
            reducer.step(gradient * 10.0 ** (step - 1), check=shape != "not a number")
            sent.append((reducer.report.traffic.sent, reducer.report.traffic.messages, reducer.report.traffic.control))
        return sent, algorithm.bound(reducer.layout, k, comm.size)

    for sent, bound in ranks.run(body):
        if ranks.size > 1:
            agreement = 2 * (ranks.size - 1).bit_length()  # messages of the check of arguments
            paid = bound.payload(4 + np.dtype(dtype).itemsize, np.dtype(dtype).itemsize)
            assert {(s, m - agreement) for s, m, _ in sent} == {(paid, bound.messages)}
            assert len({control for _, _, control in sent[1:]}) == 1  # the check's alone


@pytest.mark.thin(1)
@pytest.mark.ranks(2, 3, 5, 8)
@pytest.mark.parametrize("wire", ["coo32", "packed+bf16", "packed+int8"])
@pytest.mark.parametrize("case", CASES)
def test_all_laws_with_parts_of_any_size(ranks, case, wire, monkeypatch):
    """Cases of so few entries would be reduced by Ok-Topk."""
    monkeypatch.setattr(quota, "FEWEST", 1)
    check_algorithm(Quota(wire=WIRES[wire]), Trials((ranks,), (case,), examples=0))


@pytest.mark.ranks(2, 4, 7)
def test_a_result_is_the_largest_sums_of_each_part(ranks):
    parts = parts_of(N, K, ranks.size)
    given = [np.random.default_rng(rank).standard_normal(N).astype(np.float32) for rank in range(ranks.size)]
    sums = np.zeros((parts.number, parts.width), np.float32)
    for x in given:
        rows = parts.rows(x)
        largest = np.argsort(-np.abs(rows), axis=1)[:, : parts.quota]
        row = np.arange(parts.number)[:, None]
        sums[row, largest] += rows[row, largest]
    chosen = np.sort(np.argsort(-np.abs(sums), axis=1, kind="stable")[:, : parts.quota], axis=1)
    expected = np.sort(parts.indices(chosen).reshape(-1))
    for total, _ in ranks.run(lambda comm: sparse_allreduce(given[comm.rank], k=K, comm=comm, algorithm="quota")):
        assert total.indices.tolist() == expected.tolist()


@dataclass(frozen=True)
class Exact(Algorithm):
    """The k largest of the sum of all ranks' k largest."""

    def reduce(self, acc, k, comm, state, layout, add=None):
        mine = top_k(acc, k)
        indices, _ = comm.allgatherv(mine.indices)
        values, _ = comm.allgatherv(mine.values)
        total = truncate(merge(SparseVector(indices, values, len(acc))), k)
        return Reduction(total, where(mine, total)), state


def gradient(step, rank, n, skew):
    """Layers of unequal scale, a direction that ranks share, heavy rows, and jumps."""
    rng, common = np.random.default_rng([step, rank]), np.random.default_rng([step, 99])
    scale = np.repeat(np.exp(np.random.default_rng(5).standard_normal(16)), -(-n // 16))[:n]
    if skew == "one tensor":
        scale[n // 3 : n // 3 + n // 50] *= 30
    elif skew == "rows":
        scale *= np.where(np.arange(n) // 256 % 16 == step % 16, 10, 1)
    elif skew == "columns":
        scale *= np.where(np.arange(n) % 256 == 7, 10, 1)
    jump = {12: 10.0, 13: 1000.0, 14: 0.01}.get(step % 60, 1.0)
    return (jump * scale * (rng.standard_normal(n) + common.standard_normal(n))).astype(np.float32)


def energies(comm, algorithm, n, steps, skew):
    """Shares of the energy of all that ranks owe that the result takes away, of every step."""
    reducer, shares = SparseAllreduce(n, k=n // 100, comm=comm, algorithm=algorithm), []
    for step in range(steps):
        g = gradient(step, comm.rank, n, skew)
        owed = comm.allreduce((reducer.residual + g).astype(np.float64))
        total = reducer.step(g)
        left = owed.copy()
        left[total.indices] -= total.values
        shares.append(1 - (left @ left) / (owed @ owed))
    return shares


LONG = pytest.mark.full("300 steps on 8, 16 and 64 ranks")
STEPS = [(4, 20), pytest.param(8, 300, marks=LONG), pytest.param(16, 300, marks=LONG), pytest.param(64, 60, marks=LONG)]


@pytest.mark.parametrize(("size", "steps"), STEPS)
@pytest.mark.parametrize("skew", ["layers", "one tensor", "rows", "columns"])
def test_the_energy_is_that_of_exact_selection(size, steps, skew):
    """Over steps in which the gradient jumps."""
    n = 65_536 if size == 4 else 131_072 if size <= 16 else 524_288
    quota, exact = (
        np.mean(World(size).run(partial(energies, algorithm=way, n=n, steps=steps, skew=skew))[0])
        for way in ("quota", Exact())
    )
    assert quota >= 0.98 * exact


@pytest.mark.ranks(3)
@pytest.mark.parametrize(("n", "k"), [(N, 47), (3000, 100)])
def test_too_few_entries_are_reduced_by_oktopk(ranks, caplog, n, k):
    assert few(n, k, 3) and not few(N, 48, 3)
    case = Case(lambda rng, rank, ranks: rng.standard_normal(n), n, k)
    both = [
        ranks.run(partial(train, algorithm=name, case=case, dtype=np.float32, steps=3)) for name in ("quota", "oktopk")
    ]
    for one, other in zip(*both, strict=True):
        assert [step.total.values.tobytes() for step in one] == [step.total.values.tobytes() for step in other]
    assert caplog.text.count(f"quota reduces by oktopk: {k} of {n} entries are too few") <= 1


def steps_behind(comm, numbers, before=None):
    """Totals of the steps of these numbers, the state behind them, and what this rank owes at first and at last."""
    reducer = SparseAllreduce(N, k=K, comm=comm, algorithm="quota")
    if before is not None:
        reducer.take_over(before[comm.rank :: comm.size], len(before))
    owed = reducer.residual.astype(np.float64)
    totals = [reducer.step(gradient(step, comm.rank, N, "layers"), check=True) for step in numbers]
    return totals, reducer.state_dict(), owed, reducer.residual.astype(np.float64)


def test_a_run_resumes_to_the_bit_and_on_other_ranks():
    straight = World(3).run(partial(steps_behind, numbers=range(6)))
    _, states, _, rests = zip(*World(3).run(partial(steps_behind, numbers=range(3))), strict=True)
    resumed = World(3).run(partial(steps_behind, numbers=range(3, 6), before=list(states)))
    for (whole, _, _, rest), (half, _, _, same) in zip(straight, resumed, strict=True):
        assert all(a.values.tobytes() == b.values.tobytes() for a, b in zip(whole[3:], half, strict=True))
        assert rest.tobytes() == same.tobytes()
    for ranks in (2, 5):
        others = World(ranks).run(partial(steps_behind, numbers=range(3, 5), before=list(states)))
        np.testing.assert_allclose(sum(first for _, _, first, _ in others), sum(rests), atol=1e-3)


def test_places_have_two_bytes_wherever_quotas_allow():
    assert parts_of(14_700_000, 147_000, 4).place == np.uint16 == parts_of(65_536 * 8, 5243, 8).place
    assert parts_of(1 << 28, 1 << 18, 4).place == np.uint32  # density 0.1 %
    assert parts_of(100_000, 100_000, 3).quota == parts_of(100_000, 100_000, 3).width
