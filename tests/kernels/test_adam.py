"""Adam for late entries: every set of kernels against the whole-array one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from sparse_mpi.kernels import adam

from .on_cuda import back, put

SIZES = (700, 1, 0, 4000, 299)
N, ENDS = sum(SIZES), np.cumsum(SIZES)


def table_of(kind, seed):
    rng, table = np.random.default_rng(seed), np.zeros((len(SIZES), adam.COLUMNS))
    table[:, adam.MOVES] = rng.random(len(SIZES)) < 0.8
    table[:, adam.STEP], table[:, adam.SIGN] = rng.integers(5, 40, len(SIZES)), rng.choice([-1, 1], len(SIZES))
    table[:, adam.RATE], table[:, adam.EPS] = rng.random(len(SIZES)), 1e-8
    table[:, adam.BETA1], table[:, adam.BETA2] = rng.choice([0.0, 0.9, 0.95], len(SIZES)), 0.99
    table[:, adam.DECAY], table[:, adam.FACTOR] = 0.1, 1 + rng.random(len(SIZES))
    table[:, adam.BIAS] = 1 - 0.99 ** table[:, adam.STEP]
    table[:, adam.NOW : adam.PRODUCT + 1] = 0.6, 0.7, 0.5
    return table


@pytest.mark.parametrize("given", ["arrived", "arrived and added", "all"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("kind", "travels"), [(adam.ADAM, False), (adam.ADAM, True), (adam.NADAM, True), (adam.RMSPROP, True)]
)
def test_late_entries_move_alike(passes, kind, dtype, travels, given):
    rng, table = np.random.default_rng(kind), table_of(kind, 3)
    arrived = None if given == "all" else np.flatnonzero(rng.random(N) < 0.1).astype(np.int32)
    gradient = rng.standard_normal(N) * (1 if arrived is None else np.isin(np.arange(N), arrived))
    if given == "arrived and added":
        gradient[::97] = 0.5
    seconds = rng.random(N if arrived is None else len(arrived)) + 0.1 if travels else None
    state = rng.standard_normal(N), rng.random(N), rng.integers(0, 5, N)
    empty = kind == adam.RMSPROP
    found = []
    for kernels in (adam, passes):
        there = partial(lambda kernels, x, of=dtype: None if x is None else put(kernels, x.astype(of)), kernels)
        own = [there(x, of)[: 0 if empty else N] for x, of in zip(state, (dtype, dtype, np.int32), strict=True)]
        update, at = there(np.zeros(N)), None if arrived is None else put(kernels, arrived)
        weights = None if travels else there(np.ones(N))
        written = kernels.adam(kind, there(gradient), at, there(seconds), tuple(own), weights, table, ENDS, update)
        where = np.arange(N) if written is None else back(written)
        assert not np.delete(back(update), where).any()
        found.append([back(x) for x in (*own, update)])
    assert all(map(np.array_equal, *found))
    # Where nothing has come, and in tensors that stay as they are, nothing changes
    came = np.isin(np.arange(N), arrived) | (gradient != 0) if arrived is not None else np.ones(N, bool)
    still = ~came | (table[np.searchsorted(ENDS, np.arange(N), side="right"), adam.MOVES] == 0)
    assert not found[1][3][still].any() and found[1][3][~still].all()
