"""Block-cyclic ownership: a renumbering that loses nothing, equal parts, turns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.algorithms.partition import Partition
from sparse_mpi.sparse import SparseVector

partitions = st.builds(Partition, st.integers(1, 500), st.integers(1, 20), st.integers(1, 100), st.integers(-50, 50))


def everything(size: int) -> SparseVector:
    return SparseVector(np.arange(size, dtype=np.int32), np.arange(size, dtype=np.float32), size)


@given(partitions)
def test_every_element_has_one_owner_and_comes_back(partition):
    n, vector = partition.size, everything(partition.size)
    permuted = partition.permute(vector)
    assert permuted.indices.tolist() == list(range(n)) and permuted.indices.dtype == np.int32
    restored = partition.restore(permuted)
    assert restored.indices.tobytes() == vector.indices.tobytes()
    assert restored.values.tobytes() == vector.values.tobytes()
    boundaries = partition.boundaries
    assert boundaries[0] == 0 and boundaries[-1] == n and len(boundaries) == partition.owners + 1
    assert np.diff(boundaries).min() >= (n >= partition.owners) and np.diff(boundaries).max() <= partition.widest
    for owner in range(partition.owners):
        region = permuted.values[boundaries[owner] : boundaries[owner + 1]]
        assert (np.diff(region) > 0).all()
        blocks = np.unique(region.astype(int) // partition.block)
        assert ((blocks + partition.shift) % partition.owners == owner).all()
        assert partition.part(vector.values, owner).tolist() == region.tolist()


def test_every_rank_has_every_element_in_its_turn():
    owned = [Partition(1009, 7, 64, turn).part(np.arange(1009), 0) for turn in range(7)]
    assert sorted(np.concatenate(owned).tolist()) == list(range(1009))


def test_long_vectors_have_wide_indices():
    n = 2**31 + 1000
    vector = SparseVector(np.array([0, 2**31 + 999], np.int64), np.ones(2, np.float32), n)
    partition = Partition(n, 3, 64, 1)
    back = partition.restore(partition.permute(vector))
    assert back.indices.tolist() == vector.indices.tolist() and back.indices.dtype == np.int64


@pytest.mark.parametrize("name", ["size", "owners", "block"])
def test_bad_numbers(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Partition(**({"size": 10, "owners": 2, "block": 3} | {name: 0}))
