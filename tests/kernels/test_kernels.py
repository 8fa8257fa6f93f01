"""Every set of kernels against the whole-array one, to the bit: compiled, CUDA sources run on the CPU, and on a GPU."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sparse_mpi.arrays import magnitude_bits, widened
from sparse_mpi.kernels import array
from sparse_mpi.sparse import SparseVector

from ..fakes import fake_cuda
from ..gradients import gradient
from .on_cuda import N, back, inputs, put, same, thresholds

FLOATS = [np.float32, np.float64]
pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")


@pytest.mark.thin(1)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", inputs(np.float32, 8))
def test_select(passes, name, dtype):
    x = inputs(dtype)[name]
    there = put(passes, x)
    for threshold in thresholds(x, 0.5, 0.99):
        count = int((magnitude_bits(x) >= threshold).sum())
        for most in {N, max(count, 1), max(count - 1, 1)}:
            assert same(passes.select(there, threshold, most), array.select(x, threshold, most))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [0, 1, 2, 31, 33, 4095, 4097, 8192, 16385])
def test_select_of_any_length_from_any_address(passes, n, dtype):
    whole = inputs(dtype, n + 1)["normal"]
    for x, there in ((whole[1:], put(passes, whole)[1:]), (whole[:n], put(passes, whole)[:n])):
        for threshold in thresholds(x, 0.5) if n else [0]:
            assert same(passes.select(there, threshold, max(n, 1)), array.select(x, threshold, max(n, 1)))
    strided = whole[::2]
    assert same(passes.select(put(passes, whole)[::2], 0, n + 1), array.select(strided, 0, n + 1))


@pytest.mark.thin(1)
@pytest.mark.parametrize("resident", [1, 2, 8])
@pytest.mark.parametrize("seed", range(5))
def test_select_in_any_order_of_blocks_and_threads(cuda, monkeypatch, resident, seed):
    """Tiles wait for those before them, whichever are at work; 13 of them."""
    monkeypatch.setattr(fake_cuda, "RESIDENT", resident)
    monkeypatch.setattr(fake_cuda, "SEED", seed)
    x = np.random.default_rng(seed).standard_normal(100_000).astype(np.float32)
    assert same(cuda.select(put(cuda, x), thresholds(x, 0.9)[1], N), array.select(x, thresholds(x, 0.9)[1], N))


def test_indices_beyond_32_bits(cuda, monkeypatch):
    """Of a vector that pretends to need them."""
    x = inputs(np.float32)["normal"]
    for module in (cuda, array):
        monkeypatch.setattr(module, "index_dtype", lambda size: np.dtype(np.int64))
    threshold = thresholds(x, 0.9)[1]
    assert same(cuda.select(put(cuda, x), threshold, N), array.select(x, threshold, N))


@pytest.mark.gpu
@pytest.mark.parametrize("cuda", ["device"], indirect=True)
def test_thousands_of_blocks(cuda):
    x = inputs(np.float32, 30_000_001)["normal"]
    on_device, k = put(cuda, x), 300_000
    threshold = thresholds(x, 0.99)[1]
    for _ in range(5):
        assert same(cuda.select(on_device, threshold, 2 * k), array.select(x, threshold, 2 * k))
    *found, least = cuda.top_k(on_device, k)
    *expected, kth = array.truncate_least(*array.select(x, threshold, 2 * k), k)
    assert same(found, expected) and int(least) == kth
    matrix = x[: 29_000 * 1024].reshape(-1, 1024)
    assert same(cuda.top_k_rows(put(cuda, matrix), 10), array.top_k_rows(matrix, 10))


@pytest.mark.thin(1)
@pytest.mark.parametrize("gradient_type", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [7, 8192, N])
@pytest.mark.parametrize("passes", ["compiled", "compiled, 3 threads"], indirect=True)
def test_accumulate_select(passes, n, dtype, gradient_type):
    """All of the residual is accumulated, also where more is found than is wanted."""
    if (dtype, gradient_type) == (np.float32, "float64"):
        pytest.skip("a residual is never less precise than the gradient")
    x = inputs(dtype, n)["normal"]
    if gradient_type == "bfloat16":
        gradient = inputs(np.float32, n + 1)["student"].view(np.uint32) >> 16
        gradient = gradient.astype(np.uint16)
    else:
        gradient = inputs(gradient_type, n + 1)["student"]
    squares = np.square(inputs(dtype, n)["student"])
    squares[::7], squares[1::5] = np.inf, 0
    for added, most in itertools.product((gradient[:n], gradient[1:]), (n, max(1, n // 100))):
        acc = x + widened(added)
        for threshold in thresholds(acc, 0.9):
            a, b = x.copy(), x.copy()
            found = passes.accumulate_select(a, added, threshold, most)
            assert same(found, array.accumulate_select(b, added, threshold, most))
            assert a.tobytes() == b.tobytes() == acc.tobytes()
        limit = thresholds(array.standardized(acc, squares), 0.9)[1]
        for more, sums in ((None, x), (added, acc)):
            a, b = x.copy(), x.copy()
            found = passes.select_standardized(a, squares, limit, most, more)
            assert same(found, array.select_standardized(b, squares, limit, most, more))
            assert a.tobytes() == b.tobytes() == sums.tobytes()


@pytest.mark.thin(1)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", inputs(np.float32, 8))
@pytest.mark.parametrize("passes", ["compiled", "compiled, 3 threads"], indirect=True)
def test_histogram(passes, name, dtype):
    x = inputs(dtype)[name]
    top = 8 * x.itemsize - 1
    middle = int(np.median(magnitude_bits(x)))
    for shift, prefix, width in (
        (top, 0, 16),
        (top - 16, middle >> (top - 16), top - 16 if top < 32 else 16),
        (top, 0, 5),
    ):
        found = passes.histogram(x, shift, prefix, width)
        assert found.dtype == np.int64 and (found == array.histogram(x, shift, prefix, width)).all()


@pytest.mark.thin(1)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 1000), (2, 8193)])
def test_top_k_of_rows(passes, shape, dtype):
    rng = np.random.default_rng(0)
    special = inputs(dtype, math.prod(shape))["special"].reshape(shape)
    ties, turned = (rng.integers(-3, 4, shape) / 4).astype(dtype), special.reshape(shape[::-1]).T
    for matrix in (special, ties, np.zeros(shape, dtype), turned):
        for k in sorted({1, max(1, shape[1] // 100), shape[1] // 2 + 1, shape[1]}):
            assert same(passes.top_k_rows(put(passes, matrix), k), array.top_k_rows(matrix, k))


@pytest.mark.thin(0)  # sums in an emulation are slow
@pytest.mark.parametrize("dtype", [*FLOATS, np.float16])
@pytest.mark.parametrize("name", ["mostly-zero", "normal", "constant"])
def test_moments(passes, name, dtype):
    x = inputs(dtype, 6001)[name]
    for threshold in thresholds(widened(x), 0.5):
        found, expected = passes.moments(put(passes, x), threshold), array.moments(x, threshold)
        assert np.allclose(found, expected, rtol=1e-12)
    for value in (np.nan, np.inf):
        x[3] = value
        for found in (passes.moments(put(passes, x), 0), array.moments(x, 0)):
            sums = found.total, found.squares, found.logs, found.largest
            assert found.entries == len(x) and not np.isfinite(sums).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_scatter(passes, dtype):
    x, n = inputs(dtype)["normal"], 3000
    indices = np.random.default_rng(1).choice(N, n, replace=False).astype(np.int32)
    values = inputs(dtype, n)["special"]
    for name in ("add", "subtract"):
        a, b = put(passes, x), x.copy()
        getattr(passes, name)(a, put(passes, indices), put(passes, values))
        getattr(array, name)(b, indices, values)
        found = back(a)
        assert (np.isnan(found) == np.isnan(b)).all()  # of which each processor has its own
        assert np.where(np.isnan(b), 0, found).tobytes() == np.where(np.isnan(b), 0, b).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_gather_and_clear(passes, dtype):
    x, indices = inputs(dtype)["special"], np.arange(0, N, 3, dtype=np.int32)[::-1]
    left, there = put(passes, x), put(passes, indices)
    assert same([passes.gather(left, there)], [x[::3][::-1]])
    passes.clear(left, there)
    assert not back(left)[::3].any() and same([left[1::3], left[2::3]], [x[1::3], x[2::3]])


@pytest.mark.thin(1)
@pytest.mark.parametrize("wire", ["coo32", "packed+int8", "packed+int2"])
@pytest.mark.parametrize("name", ["oktopk", "topka", "elect"])
def test_steps_with_these_kernels_give_the_bytes_of_the_host(cuda, name, wire):
    from sparse_mpi import SparseAllreduce, World

    def body(comm):
        apart, here = (SparseAllreduce(9001, density=0.01, comm=comm, algorithm=name, wire=wire) for _ in range(2))
        for step in range(2):
            x = gradient(comm.rank, step, 9001)
            total, expected = apart.step(put(cuda, x)), here.step(x)
            assert isinstance(total, SparseVector)
            assert same(total[:2], expected[:2]) and apart.residual.get().tobytes() == here.residual.tobytes()

    World(3).run(body)
