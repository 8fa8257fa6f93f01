"""Packed messages on a device: the same bytes and the same entries as on the host, however many messages there are."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sparse_mpi.kernels.base import SCALED
from sparse_mpi.sparse import SparseVector
from sparse_mpi.wire import WIRES, BitPacked, Int8
from sparse_mpi.wire.codecs import Int4
from sparse_mpi.wire.packed import Complete, ShortComplete, ShortInt8, pack_ballots, unpack_ballots

from .on_cuda import put, same

pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, 1e-38]
COMPLETE = {
    "int8": Complete(Int8()),
    "short int8": ShortComplete(ShortInt8()),
    "int4": Complete(Int4()),
}
WIDTHS = [1, 3, SCALED, SCALED + 1, 300, 3 * SCALED, 9000]


class ShortScales(BitPacked):
    """With indices, unlike the formats of the library that have scales of two bytes."""

    scale_bytes = 2


PACKED = {name: wire for name, wire in WIRES.items() if wire.codec is not None} | {"short": ShortScales(ShortInt8())}


def made(messages: int, whole: bool, dtype: type, first: int = 0) -> tuple[SparseVector, np.ndarray, np.ndarray]:
    """Return entries of regions of many widths, and how many each has: all, none, few or most."""
    rng = np.random.default_rng(messages)
    widths = rng.choice(WIDTHS if whole else [*WIDTHS, 2**20], messages)
    shares = np.ones(messages) if whole else rng.choice([0, 0.01, 0.3, 0.99, 1], messages) * np.minimum(1, 300 / widths)
    ends = first + widths.cumsum()
    regions, counts = np.stack([ends - widths, ends], axis=1), np.ceil(shares * widths).astype(np.int64)
    if whole and messages > 1:  # one region is empty
        regions[1, 0], counts[1] = regions[1, 1], 0
    chosen = [
        start + np.sort(rng.choice(stop - start, count, replace=False))
        for (start, stop), count in zip(regions, counts, strict=True)
    ]
    indices = np.concatenate(chosen).astype(np.int64 if first else np.int32)
    values = rng.standard_normal(len(indices)) * 10.0 ** rng.integers(-3, 4, len(indices))
    values[: len(SPECIAL)] = SPECIAL[: len(values)]
    return SparseVector(indices, values.astype(dtype), int(ends[-1])), counts, regions


def assert_alike_on_both(cuda, wire, vector, counts, regions):
    dtype = vector.values.dtype
    packed = wire.pack(vector, counts, regions)
    there = wire.pack(SparseVector(*(put(cuda, x) for x in vector[:2]), vector.size), counts, regions)
    assert same((there.buffer, *there.vector[:2]), (packed.buffer, *packed.vector[:2]))
    assert there.lengths.tolist() == packed.lengths.tolist()
    found = wire.unpack(there.buffer, packed.lengths, regions, vector.size, dtype)
    expected = wire.unpack(packed.buffer, packed.lengths, regions, vector.size, dtype)
    assert same(found[:2], expected[:2])


@pytest.mark.parametrize("messages", [1, 5, 31, 32, 40])
@pytest.mark.parametrize("first", [0, 2**31])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", PACKED)
def test_messages_of_parts_of_their_regions(cuda, name, dtype, first, messages):
    assert_alike_on_both(cuda, PACKED[name], *made(messages, False, dtype, first))


@pytest.mark.parametrize("messages", [1, 5, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", COMPLETE)
def test_complete_messages(cuda, name, dtype, messages):
    assert_alike_on_both(cuda, COMPLETE[name], *made(messages, True, dtype))


@pytest.mark.parametrize("messages", [1, 5, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ballots(cuda, dtype, messages):
    vector, counts, regions = made(messages, False, dtype)
    # CuPy's cast of float64 makes 0 of what float32 has as a subnormal
    few = np.abs(vector.values) < np.finfo(np.float32).tiny
    vector.values[few | np.isnan(vector.values)] = 1
    ballots = SimpleNamespace(pack=pack_ballots, unpack=lambda buffer, _, *rest: unpack_ballots(buffer, counts, *rest))
    assert_alike_on_both(cuda, ballots, vector, counts, regions)


def test_each_complete_message_takes_one_launch(cuda, launches):
    vector, counts, regions = made(5, True, np.float32)
    there = SparseVector(*(put(cuda, x) for x in vector[:2]), vector.size)
    packed = COMPLETE["int8"].pack(there, counts, regions)
    COMPLETE["int8"].unpack(packed.buffer, packed.lengths, regions, vector.size, np.float32)
    assert len(launches) == 2
