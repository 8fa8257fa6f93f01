"""Merging of runs and the layout of messages: the compiled kernels against the whole-array ones, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.kernels import array

from .on_cuda import same

cpu = pytest.importorskip("sparse_mpi.kernels.cpu", reason="the compiled kernels need Numba")
merging = pytest.importorskip("sparse_mpi.kernels.cpu.merging")

FLOATS = [np.float32, np.float64]
INTEGERS = [np.int32, np.int64, np.uint64]


@given(st.data())
def test_runs_are_merged_two_by_two_or_by_a_window_alike(data):
    """Few pairs, many, far apart and not, from negative indices on; runs may be empty."""
    low = data.draw(st.sampled_from([0, -(2**62), 2**63 - 2**41]))
    size, dtype = data.draw(st.sampled_from([400, 2**14, 2**40])), data.draw(st.sampled_from([*INTEGERS, *FLOATS]))
    lengths = data.draw(st.lists(st.sampled_from([0, 1, 7, 300]), min_size=1, max_size=9))
    rng = np.random.default_rng(lengths)
    runs = [(low + np.unique(rng.integers(0, size, n)), None) for n in lengths]
    numbers = [-0.0, 0.0, 0.1, 3, 2e9] if dtype in INTEGERS else [-0.0, 0.0, 0.1, -3, 1e20]
    runs = [(indices, rng.choice(numbers, len(indices)).astype(dtype)) for indices, _ in runs]
    expected = array.merge_runs(runs, size, low)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "FEW", data.draw(st.sampled_from([1, 1000])))
        assert same(cpu.merge_runs(runs, size, low), expected)
        assert same(cpu.merge(*map(np.concatenate, zip(*runs, strict=True)), size, low), expected)


@given(st.lists(st.tuples(st.integers(0, 2**56), st.floats(0, 1), st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_layouts_are_the_same(messages):
    """From empty messages to those of every index, of regions of any length."""
    entries = np.array([min(round(share * width), 2**40) for width, share, _ in messages], np.int64)
    starts = np.array([start for *_, start in messages], np.int64)
    regions = np.stack([starts, starts + np.array([width for width, *_ in messages])], axis=1)
    for number, tail, width, scale in ((2, 0, 4, 4), (0, 1, 0, 4), (1, 0, 1, 2)):
        sizes = np.full(len(entries), number), width * entries, -(-entries // 128)
        laid = [kernel_set.lay_out(entries, regions, *sizes, tail, scale) for kernel_set in (cpu, array)]
        assert laid[0].tolist() == laid[1].tolist()
