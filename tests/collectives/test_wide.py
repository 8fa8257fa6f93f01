"""Keys of two integers: combined, and in the order of the first column, then of the second."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from sparse_mpi import collectives

DTYPES = [np.uint64, np.int64, np.int32]
CALLS = ["allreduce", "reduce", "reduce_scatter", "allgather"]


def pairs(rank: int, dtype: type, case: str) -> tuple[np.ndarray, np.ndarray]:
    """Keys ``(m, 2)`` that ranks share in part, with the ends of their type, and some twice."""
    rng, info = np.random.default_rng(rank), np.iinfo(dtype)
    if case == "none" or (case == "some" and rank == 1):
        return np.empty((0, 2), dtype), np.empty(0, np.int64)
    if case == "one column":  # all differ in the second alone: owners share these, too
        keys = np.stack([np.zeros(300, dtype), rng.integers(0, 1000, 300).astype(dtype)], axis=1)
    else:
        keys = rng.choice(np.array([info.min, info.min + 1, 0, 1, 256, info.max], dtype), (300, 2))
    return keys, rng.integers(1, 9, 300)


def counted(parts: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[tuple[int, ...], int]]:
    """The sums of all parts by Python's integers, in order."""
    found: Counter[tuple[int, ...]] = Counter()
    for keys, values in parts:
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            found[tuple(key)] += value
    return sorted(found.items())


def listed(result: tuple[np.ndarray, np.ndarray]) -> list[tuple[tuple[int, ...], int]]:
    return list(zip(map(tuple, result[0].tolist()), result[1].tolist(), strict=True))


@pytest.mark.thin(1)
@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["all", "some", "none", "one column"])
@pytest.mark.parametrize("call", CALLS)
def test_sums_of_wide_keys_are_those_of_a_counter(ranks, call, case, dtype):
    given = [pairs(rank, dtype, case) for rank in range(ranks.size)]
    found = ranks.run(lambda comm: getattr(collectives, call)(given[comm.rank], comm=comm))
    expected = counted(given)
    for rank, result in enumerate(found):
        for keys, _ in result if call == "allgather" else [result] if result is not None else []:
            assert keys.dtype == dtype and keys.shape[1:] == (2,)
        if call == "allreduce" or (call == "reduce" and rank == 0):
            assert listed(result) == expected
        if call == "allgather":
            assert [listed(part) for part in result] == [counted([part]) for part in given]
    if call == "reduce_scatter":
        assert [entry for result in found for entry in listed(result)] == expected
        if case == "one column" and ranks.size > 1:
            assert max(len(result[1]) for result in found) < 0.8 * len(expected)


@pytest.mark.ranks(2, 3)
def test_wide_keys_and_others_are_refused_by_all(ranks):
    def body(comm):
        keys = np.ones((3, 2), np.uint64) if comm.rank else np.arange(3)
        with pytest.raises(ValueError, match="two columns of uint64"):
            collectives.allreduce((keys, np.ones(3)), comm=comm)
        with pytest.raises(ValueError, match="two columns of int64") as refused:
            collectives.allreduce((np.ones((3, 2), np.int64 if comm.rank else np.uint64), np.ones(3)), comm=comm)
        return str(refused.value)

    assert len(set(ranks.run(body))) == 1
