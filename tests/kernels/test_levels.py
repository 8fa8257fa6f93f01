"""Values in four and two bits, and powers of 4: kernel sets have the bits of the whole-array one; errors are small."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.kernels import array
from sparse_mpi.kernels.base import SCALED, code_places

from .on_cuda import flushed, inputs, put, same

COUNTS = [0, 1, 2, 3, 5, 127, 128, 129, 700]
pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")


def quantised(kernels, x, edges, bits):
    if bits == "log4":
        return kernels.to_log4(abs(x), edges)
    indices = put(kernels, np.arange(len(x), dtype=np.int32) * 3)
    return kernels.to_int4(x, indices, edges) if bits == 4 else kernels.to_int2(x, edges)


def restored(kernels, codes, scales, edges, bits):
    return [
        kernels.from_log4(codes, scales, edges) if bits == "log4" else kernels.from_levels(codes, scales, edges, bits)
    ]


def edges_of(n, rng):
    """Blocks of any length up to the longest."""
    lengths = [0]
    while lengths[-1] < n:
        lengths.append(min(n, lengths[-1] + int(rng.choice([1, 2, 3, 50, 127, SCALED]))))
    return np.array(lengths)


def cases():
    rng = np.random.default_rng(0)
    for n in COUNTS:
        edges = edges_of(n, rng)
        largest = np.finfo(np.float32).max * rng.choice([1, -1, 0.5], n) * (rng.random(n) > 0.1)
        yield from ((x, edges) for x in [*inputs(np.float32, n).values(), largest.astype(np.float32)])


@pytest.mark.thin(1)
@pytest.mark.parametrize("bits", [4, 2, "log4"])
def test_every_set_of_kernels_has_the_same_bits(passes, bits):
    for x, edges in ((flushed(x), edges) for x, edges in cases()):
        expected = quantised(array, x, edges, bits)
        found = quantised(passes, put(passes, x), edges, bits)
        assert same(found, expected)
        assert same(restored(passes, *found, edges, bits), restored(array, *expected, edges, bits))


@pytest.mark.parametrize("bits", [4, 2])
def test_codes_fill_bytes_and_every_block_begins_a_new_one(bits):
    for x, edges in cases():
        codes, scales = quantised(array, x, edges, bits)
        lengths = np.diff(edges)
        assert len(scales) == len(lengths) and scales.dtype == np.float32 and codes.dtype == np.uint8
        assert np.diff(code_places(edges, bits)).tolist() == [-(-each * bits // 8) for each in lengths.tolist()]
        assert len(codes) == code_places(edges, bits)[-1]


@pytest.mark.parametrize("bits", [4, 2])
def test_an_error_is_never_larger_than_what_it_is_of(bits):
    """Block by block, or what is owed could grow; and only what is not finite arrives as NaN."""
    for x, edges in cases():
        found = array.from_levels(*quantised(array, x, edges, bits), edges, bits)
        finite = np.isfinite(x)
        assert found.dtype == np.float32 and (np.isfinite(found) == finite).all()
        assert (found * x >= 0)[finite].all() and (found[x == 0] == 0).all()
        for start, stop in zip(edges[:-1], edges[1:], strict=True):
            own = slice(start, stop)
            values, arrived = (part[own][finite[own]].astype(np.float64) for part in (x, found))
            assert np.linalg.norm(values - arrived) <= np.linalg.norm(values) * (1 + 1e-6)
            assert np.abs(arrived).max(initial=0) <= np.abs(values).max(initial=0) * (1 + 2**-15) + 2**-140
