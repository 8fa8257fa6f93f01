"""Every kernel as NVRTC compiles it: the bytes of the emulator, which runs its source, and of NumPy; no fault."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sparse_mpi.arrays import magnitude_bits, widened
from sparse_mpi.kernels import array, base
from sparse_mpi.sparse import SparseVector
from sparse_mpi.wire import WIRES

from ..fakes import fake_cuda
from ..fakes.fake_array import install, select_rows
from ..kernels.on_cuda import put, thresholds
from . import device
from .instructions import IDLE
from .text import module

TILE = 8192  # entries of a selection's block; half as many of float64
LENGTHS = [0, 1, 31, 32, 33, TILE // 2 - 1, TILE // 2, TILE // 2 + 1, TILE - 1, TILE, TILE + 1, 20_011]
KINDS = ["float32", "float64", "float16", "bfloat16"]
SOURCES = Path(base.__file__).with_name("cuda")
pytestmark = [
    pytest.mark.full("the emulator runs the same sources in make test"),
    pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value"),
]


def numbers(kind: str, n: int, seed: int = 0) -> np.ndarray:
    """Of all magnitudes: large, common, subnormal and zero."""
    rng = np.random.default_rng([seed, n])
    x = rng.standard_normal(n) * rng.choice([1e4, 1, 1e-7, 1e-39, 0], n, p=[0.1, 0.6, 0.1, 0.1, 0.1])
    return array.to_bfloat16(x.astype(np.float32)) if kind == "bfloat16" else x.astype(kind)


def some(n: int, seed: int = 0) -> np.ndarray:
    """Ascending indices below 4 n."""
    return np.sort(np.random.default_rng([seed, n]).choice(4 * n, n, replace=False)).astype(np.int32)


def limit_of(x: np.ndarray, share: float = 0.9) -> int:
    bits = np.sort(magnitude_bits(widened(x) if x.itemsize == 2 else x))
    return int(bits[int(share * (len(bits) - 1))]) if len(bits) else 0


def selected(kernels, there, kind, n, start):
    x = numbers(kind, n + 1)
    here, wide = there(x)[start : start + n], x if x.itemsize > 2 or kernels is not array else widened(x)
    if kernels is array:
        here = wide[start : start + n]
    found = [kernels.select(here, limit_of(x[start : start + n], share), max(n, 1)) for share in (0.5, 0.99)]
    return [part for pair in found for part in pair]


def accumulated(kernels, there, kind, n, start, residual="float32"):
    if kind == "float64":
        residual = "float64"
    gradient, x = numbers(kind, n + 1, 1), there(numbers(residual, n))
    limit = limit_of(numbers(residual, n) + widened(gradient[start : start + n]))
    found = kernels.accumulate_select(x, there(gradient)[start : start + n], limit, max(n, 1))
    return [x, *found]


def added(kernels, there, kind, n, start):
    x = there(numbers("float64" if kind == "float64" else "float32", n))
    kernels.accumulate(x, there(numbers(kind, n + 1, 1))[start : start + n])
    return [x]


def passes(kernels, there, kind, n, start):
    """Of dense vectors."""
    x = numbers(kind, n + 1)[start : start + n]
    other, mean, here = there(numbers(kind, n, 1)), there(abs(numbers(kind, n, 2))), there(x)
    limits = np.sort(magnitude_bits(x))[[0, n // 2, -1]].astype(np.int64)
    kernels.subtract_dense(other, here)
    kernels.follow_squares(mean, here, 0.25)
    counts = kernels.histogram(here, 8 * x.itemsize - 1, 0, 9)
    rows = there(x.reshape(-1, n // 4)) if n % 4 == 0 else there(x.reshape(1, n))
    found = [other, mean, counts, there(np.array(int(kernels.smallest(here)))), kernels.to_bfloat16(here)]
    found += [there(np.asarray(kernels.count(here, limits))), there(np.array(kernels.kth_bin(counts, max(n // 2, 1))))]
    return [*found, kernels.add_rows(rows), *kernels.top_k_rows(rows, 2), there(kernels.sketch(here, 7))]


def pairs(kernels, there, kind, n, start):
    """Of sparse vectors."""
    plain, values = some(n), there(numbers(kind, n + 1)[start : start + n])
    indices, x, y = there(plain), there(numbers(kind, 4 * n, 1)), there(numbers(kind, 4 * n, 1))
    kernels.add(x, indices, values)
    kernels.subtract(x, indices, values)
    twice = there(np.concatenate([plain, plain // 2])), there(numbers(kind, 2 * n, 3))
    kernels.add_merged(y, *twice)
    chosen = there(np.arange(n) % 3 == 1)
    rows = kernels.to_pairs(indices, values, np.dtype(np.int32))
    found = [x, y, *kernels.truncate(indices, values, max(n // 2, 1)), *kernels.merge(*twice, 4 * n), rows]
    found += [*kernels.compress(indices, values, chosen), kernels.contains(indices, there(some(n, 1)))]
    return [*found, *kernels.from_pairs(rows, np.dtype(np.int32), np.dtype(kind))]


def votes(kernels, there, kind, n, start):
    plain, values = some(n), numbers(kind, n + 1)[start : start + n]
    indices, deltas = there(plain), kernels.changes(there(numbers(kind, 4 * n, 1)), there(plain), there(values))
    dealt = kernels.deal(indices, there(values), 4 * n, 3)
    coded = kernels.to_ballots(there(values.astype(np.float32)), indices, 4 * n)
    counts = [there(np.asarray(dealt[2])), there(np.asarray(kernels.split_counts(indices, np.array([0, n, 4 * n]))))]
    return [
        *dealt[:2],
        *counts,
        kernels.undeal(dealt[0], 4 * n, 3),
        *coded,
        *kernels.from_ballots(*coded[:2], 4 * n),
        *deltas,
    ]


def codes(kernels, there, kind, n, start):
    """Of messages: blocks of values in few bits, and packed indices."""
    x, plain = numbers("float32", n + 1)[start : start + n], some(n)
    here, indices, edges = there(x), there(plain), np.array([0, *range(1, n, 100), n])
    found = [
        *kernels.to_int8(here, indices, edges),
        *kernels.to_int4(here, indices, edges),
        *kernels.to_int2(here, edges),
    ]
    found += [kernels.from_int8(*found[:2], edges), kernels.from_levels(*found[2:4], edges, 4)]
    halves = np.array([[0, 2 * n], [2 * n, 4 * n]])
    counts = np.array([int((plain < 2 * n).sum()), int((plain >= 2 * n).sum())])
    given = numbers(kind, n)
    given[::5], given[1::5] = np.nan, -np.inf
    for name in ("packed", "packed+int8", "packed+fp16"):
        packed = WIRES[name].pack(SparseVector(indices, there(given), 4 * n), counts, halves)
        back = WIRES[name].unpack(packed.buffer, packed.lengths, halves, 4 * n, np.dtype(kind))
        found += [packed.buffer, back.indices, back.values]
    return found


def rows(kernels, there, kind, n, start):
    """Of tensors of several shapes, short and long rows."""
    x = there(numbers(kind, n + 1)[start : start + n])
    tables = np.array([[0, n // 2, 1, 0]]), np.array([[n // 2, n - n // 2, n // 4, 1]])
    return [*(kernels.select_rows if kernels is not array else select_rows)(x, tables, 1 + n // 4)]


def results(monkeypatch, where, function, *arguments):
    """Return the arrays that a function makes on a device, and NumPy on the host."""
    if where is None:
        return [np.asarray(part) for part in function(array, np.array, *arguments)]
    install(monkeypatch)
    cuda = where(monkeypatch)
    return [part.get() for part in function(cuda, partial(put, cuda), *arguments)]


def check(monkeypatch, function, *arguments):
    """Compare the three, to the byte."""
    expected = results(monkeypatch, None, function, *arguments)
    ways = [device.install] + [fake_cuda.install_kernels] * (fake_cuda.COMPILER is not None)
    for where in ways:
        found = results(monkeypatch, where, function, *arguments)
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes()), (where.__module__, i)


@pytest.mark.thin(1)
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("function", [selected, accumulated, added])
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", LENGTHS)
def test_selections_of_any_length_from_any_address(function, kind, n, start, monkeypatch):
    check(monkeypatch, function, kind, n, start)


@pytest.mark.thin(1)
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("function", [passes, pairs, votes, codes, rows])
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize(("n", "start"), [(8, 0), (33, 1), (600, 0)])
def test_other_kernels(function, kind, n, start, monkeypatch):
    check(monkeypatch, function, kind, n, start)


def fusible(kernel):
    """Sums of products of which the device's assembler may round the sum alone, unlike the host."""
    loose = [one for one in kernel.code if len(one.parts) == 2 and one.parts[1] in ("f32", "f64")]
    products = {one.operands[0] for one in loose if one.parts[0] == "mul"}
    return [one.text for one in loose if one.parts[0] in ("add", "sub") and products & set(one.operands[1:])]


FENCES = {"count": 1, "keep_largest": 2}  # of kernels whose blocks tell others by one word that many are there


def check_code(kernel):
    """Check what no run shows: on a device sums may be fused, and other blocks see words in another order."""
    assert not fusible(kernel), f"may be fused: {fusible(kernel)}"
    fences = sum(one.parts[0] in IDLE for one in kernel.code)
    assert fences == FENCES.get(kernel.name, 0), f"a fence too few or too many: {fences}"


def test_what_may_be_fused():
    code = "{} add.f32 %f3, %f2, %f1; ret;"
    for product, count in (("mul.f32 %f2, %f1, %f1;", 1), ("mul.rn.f32 %f2, %f1, %f1;", 0)):
        kernel = module(f".visible .entry k() {{ .reg .f32 %f<4>; {code.format(product)} }}")["k"]
        assert len(fusible(kernel)) == count


@pytest.mark.parametrize("seed", [0, 1])
def test_every_kernel_is_run(interpreted, monkeypatch, seed):
    """In an order of blocks that the seed draws; what its instructions give does not depend on the assembler."""
    monkeypatch.setattr(fake_cuda, "SEED", seed)
    for function in (selected, accumulated, added, passes, pairs, votes, codes, rows):
        function(interpreted, partial(put, interpreted), "float32", 8, 1)
    assert np.isfinite(interpreted.moments(put(interpreted, numbers("float32", 8)), 0)).all()
    sources = [re.sub(r"__launch_bounds__\(\w+\)", "", file.read_text()) for file in SOURCES.glob("*.cu")]
    names = {name for text in sources for name in re.findall(r"__global__\s+void\s+(\w+)\s*\(", text)}
    assert len(names) > 30 and {launch.kernel.name for launch in device.RECORD} == names
    for kernel in {launch.kernel.name: launch.kernel for launch in device.RECORD}.values():
        check_code(kernel)
        assert kernel.name == "moments" or all(one.parts[0] != "fma" for one in kernel.code)


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


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("name", MOVED)
def test_bytes_that_a_selection_moves(name, density, interpreted):
    """Where caches keep what is read twice: a vector as it is, and tiles that are read and written in whole sectors."""
    n = 8 * 8192
    x, gradient = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    acc = x + gradient if name == "accumulate_select" else x
    limit, given = thresholds(acc, 1 - density)[1], (x, gradient)[: 1 + (name == "accumulate_select")]
    getattr(interpreted, name)(*(put(interpreted, part) for part in given), limit, n)
    launch, (fixed, of_pairs) = device.RECORD[-1], MOVED[name]
    assert launch.kernel.name == "compact"
    assert fixed < launch.moved() / n <= 1.05 * (fixed + of_pairs * density)
    assert launch.sectors * 32 / n >= launch.moved() / n
