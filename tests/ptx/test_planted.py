"""Defects that are planted into the sources are found; without them there is none.

Some of them leave the results of the emulator as they are, which `test_what_the_emulator_lets_live` shows.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sparse_mpi.kernels import array

from ..fakes import fake_cuda
from ..kernels.on_cuda import put, thresholds
from .device import RECORD
from .memory import Fault

N = 20_011  # three tiles of a selection
X = np.random.default_rng(0).standard_normal(N).astype(np.float32)
LIMIT = thresholds(X, 0.9)[1]


def select(cuda, start=0):
    n = N - start
    found = cuda.select(put(cuda, X)[start:], LIMIT, N)
    expected = array.select(X[start:], LIMIT, N)
    assert [part.get().tobytes() for part in found] == [part.tobytes() for part in expected]
    assert len(expected[0]) < n


def count(cuda):
    limits = np.array(thresholds(X, 0.5, 0.9)[1:-1])
    assert cuda.count(put(cuda, X), limits).tolist() == array.count(X, limits).tolist()


def keep(cuda):
    indices = np.arange(N, dtype=np.int32)
    found, expected = cuda.truncate(put(cuda, indices), put(cuda, X), 500), array.truncate(indices, X, 500)
    assert [part.get().tobytes() for part in found] == [part.tobytes() for part in expected]


BARRIER = "    if (lane == 0) counts[warp] = total;\n    __syncthreads();\n"
PLANTED = {  # the part of a source, what comes in its place, what runs, and what tells
    "no barrier before counts are added up": (BARRIER, BARRIER.replace("__syncthreads();", ""), select, "a race"),
    "no barrier before the start is read": (
        "    __syncthreads();\n\n    int64 position = start;",
        "    int64 position = start;",
        select,
        "a race|reads what nobody has written",
    ),
    "no barrier after a tile is taken": (
        "no deadlock\n    __syncthreads();",
        "no deadlock\n",
        select,
        "a race|reads what nobody has written",
    ),
    "a look-back that is not volatile": ("volatile uint64* found", "uint64* found", select, "a race|does not end"),
    "a tile beyond the end": ("if (at >= n) break;", "if (at > n) break;", select, "reads out of bounds"),
    "a whole tile where it is not": ("(tile + 1) * TILE <= n &&", "tile * TILE <= n &&", select, "reads out of bounds"),
    "one word of a state too few": ("preceding(state + 1,", "preceding(state + 2,", select, "out of bounds"),
    "vectors at any address": (
        "aligned(x, sizeof(Vector))",
        "aligned(x, sizeof(REAL))",
        lambda cuda: select(cuda, 1),
        "no multiple of 16",
    ),
    "a mask of half a warp": (
        "__shfl_up_sync(WARP, rounds, apart)",
        "__shfl_up_sync(0xffffu, rounds, apart)",
        select,
        "is not of its mask 0xffff",
    ),
    "a barrier for one warp": (
        "    if (warp == 0) {\n        uint64 own = 0;\n        for (int w = 0; w < WARPS; ++w) own += counts[w];\n",
        "    if (lane == 0) __syncthreads();\n    if (warp == 0) {\n        uint64 own = 0;\n"
        "        for (int w = 0; w < WARPS; ++w) own += counts[w];\n",
        select,
        "wait at different barriers",
    ),
    "bins that nobody clears": ("bins[bin][lane] = 0;", ";", count, "adds to what nobody has written"),
    "counters that are read while lanes add": (
        "        __syncthreads();\n\n        // Add up the lanes of each bin",
        "        // Add up the lanes of each bin",
        count,
        "a race",
    ),
    "a count that others read from their caches": (
        "told[i] = (int64)((volatile uint64*)counts)[i]",
        "told[i] = (int64)counts[i]",
        count,
        "a race",
    ),
    "digits that nobody clears": (
        "+= THREADS) counts[bin] = 0;",
        "+= THREADS) ;",
        keep,
        "adds to what nobody has written",
    ),
    "counts that others read from their caches": ("const volatile uint32* all", "const uint32* all", keep, "a race"),
}


ALWAYS = (  # of the others make test-all plants each
    "no barrier before counts are added up",
    "a look-back that is not volatile",
    "a whole tile where it is not",
    "vectors at any address",
    "bins that nobody clears",
)
REST = pytest.mark.full("as those")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in ALWAYS else REST) for name in PLANTED])
def test_what_is_planted_is_found(name, compiled_anew):
    old, new, work, match = PLANTED[name]
    with pytest.raises(Fault, match=match):
        work(compiled_anew({old: new}))


UNSEEN = (  # by the emulator, whose processor has one memory for all, and no bounds and no masks
    "a look-back that is not volatile",
    "a tile beyond the end",
    "one word of a state too few",
    "a mask of half a warp",
    "a count that others read from their caches",
    "counts that others read from their caches",
)


@pytest.mark.full("so that the list is true")
@pytest.mark.skipif(fake_cuda.COMPILER is None, reason="emulating CUDA needs g++")
@pytest.mark.parametrize("name", UNSEEN)
def test_what_the_emulator_lets_live(name, device, monkeypatch, tmp_path):
    old, new, work, _ = PLANTED[name]
    cuda = fake_cuda.install_kernels(monkeypatch)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    compiled = fake_cuda.compile_using_nvrtc
    changed = SimpleNamespace(compile_using_nvrtc=lambda code, *rest: compiled(code.replace(old, new), *rest))
    monkeypatch.setattr(cuda.cupy.cuda, "compiler", changed)
    work(cuda)


@pytest.mark.parametrize("work", [select, count, pytest.param(keep, marks=REST)])
def test_what_is_compiled_as_it_is_runs(work, compiled_anew):
    work(compiled_anew({}))


BY_FLOATS = {  # as it was once, for numbers that are not negative
    "    const uint32 sign = (uint32)(x.bits & 0x8000u) << 16, rest": "    const uint32 sign = 0, rest",
    "return real_of((int32)(sign | wide));": "return real_of((int32)(rest << 13)) * real_of((254 - 15) << 23);",
}


@pytest.mark.parametrize("ftz", [True, False])
@pytest.mark.parametrize("parts", [BY_FLOATS, {}], ids=["by-floats", "by-integers"])
def test_halves_are_lost_where_they_are_widened_by_way_of_subnormal_numbers(parts, ftz, compiled_anew):
    """And where CuPy's option takes these for zero: not by way of integers, nor without the option."""
    halves = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16)
    cuda = compiled_anew(parts, f"-ftz={str(ftz).lower()}")
    found = cuda.select(put(cuda, halves), 0, len(halves))[1].get()
    lost = (halves < 2.0**-14) & (ftz and parts is BY_FLOATS)
    assert (found == np.where(lost, 0, halves)).all()


def test_sums_lose_subnormal_numbers_by_that_option(compiled_anew):
    tiny = np.full(64, 1e-40, np.float32)
    cuda = compiled_anew({}, "-ftz=true")
    residual = put(cuda, tiny)
    cuda.accumulate(residual, put(cuda, tiny))
    assert not residual.get().any()


# Bytes of global memory that an entry of float32 costs: what is read and written of vectors, and of pairs
MOVED = {"select": (4, 8), "accumulate_select": (12, 8)}


@pytest.mark.parametrize("density", [pytest.param(0.001, marks=REST), 0.01, pytest.param(0.1, marks=REST)])
@pytest.mark.parametrize("name", MOVED)
def test_bytes_that_a_selection_moves(name, density, interpreted):
    """Where caches keep what is read twice: a vector as it is, and tiles that are read and written in whole sectors."""
    n = 8 * 8192
    x, gradient = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    acc = x + gradient if name == "accumulate_select" else x
    limit, given = thresholds(acc, 1 - density)[1], (x, gradient)[: 1 + (name == "accumulate_select")]
    getattr(interpreted, name)(*(put(interpreted, part) for part in given), limit, n)
    launch, (fixed, of_pairs) = RECORD[-1], MOVED[name]
    assert launch.kernel.name == "compact"
    assert fixed < launch.moved() / n <= 1.05 * (fixed + of_pairs * density)
    assert launch.sectors * 32 / n >= launch.moved() / n
