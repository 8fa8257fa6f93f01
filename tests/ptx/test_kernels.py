"""Every kernel as NVRTC compiles it runs without a fault; tests/kernels/test_nvrtc.py looks at its code."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sparse_mpi.kernels import base
from sparse_mpi.kernels.adam import ADAM, COLUMNS
from sparse_mpi.kernels.parts import EqualParts
from sparse_mpi.sparse import SparseVector, regions_of
from sparse_mpi.wire import WIRES, Int8
from sparse_mpi.wire.packed import Complete, pack_ballots, unpack_ballots

from ..fakes import fake_cuda
from ..kernels.on_cuda import back, put, thresholds
from . import device

SOURCES = Path(base.__file__).with_name("cuda")
pytestmark = [
    pytest.mark.full("the emulator runs the same sources in make test"),
    pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value"),
]


def everything(cuda) -> None:
    """Call all kernels; tests/kernels compares what they give with NumPy, on this interpreter too."""
    n, there = 8, partial(put, cuda)
    draw = np.random.default_rng(0)
    plain = np.sort(draw.choice(4 * n, n, replace=False)).astype(np.int32)
    numbers = draw.standard_normal(4 * n).astype(np.float32)
    indices, values, x, limit = there(plain), there(numbers[:n]), there(numbers), int(np.float32(0.5).view(np.int32))
    cuda.select(values, limit, n)
    cuda.largest(there(numbers[:n]), 4, limit, n, values, there(abs(numbers[:n])))
    cuda.accumulate(there(numbers[:n]), values)
    cuda.moments(values, 0)
    # of dense vectors
    cuda.subtract_dense(there(numbers[:n]), values)
    cuda.follow_squares(there(abs(numbers[:n])), values, 0.25)
    cuda.standardized(values, there(abs(numbers[:n])))
    table, state = np.ones((1, COLUMNS)), tuple(there(np.zeros(n, kind)) for kind in (np.float32, np.float32, np.int32))
    cuda.adam(ADAM, values, there(np.arange(4)), None, state, None, table, np.array([n]), there(numbers[:n]))
    cuda.top_k(values, 4)
    cuda.to_bfloat16(values)
    cuda.count(values, np.array([0, limit], np.int64))
    cuda.add_rows(there(numbers.reshape(4, n)))
    cuda.top_k_rows(there(numbers.reshape(4, n)), 2)
    cuda.sketch(values, 7)
    # of sparse vectors
    cuda.add(x, indices, values)
    cuda.subtract(x, indices, values)
    twice = there(np.concatenate([plain, plain // 2])), there(numbers[: 2 * n])
    cuda.add_in_order(x, *twice)
    cuda.add_in_order(x, *twice, lengths=np.array([n, n]))
    cuda.truncate(indices, values, 4)
    cuda.truncate_least(indices, values, 4)
    cuda.merge(*twice, 4 * n)
    *sums, first = cuda.merge_loosely(*twice, 4 * n, lengths=[n, n])
    cuda.count(sums[1], np.array([0, limit], np.int64), first)
    cuda.compress(*sums, first, threshold=limit)
    cuda.among(indices, there(plain[::2].copy()), there(numbers[: n // 2]))
    cuda.compress(indices, values, there(np.arange(n) % 3 == 1))
    cuda.contains(indices, there(plain[::2].copy()))
    cuda.from_pairs(cuda.to_pairs(indices, values, np.dtype(np.int32)), np.dtype(np.int32), np.dtype(np.float32))
    # of parts with quotas
    parts, hints = EqualParts(4 * n, 2, 3, 2), there(np.zeros(3, np.int64))
    rows = cuda.select_parts(x, parts, hints, there(numbers))
    sums = np.tile(back(cuda.add_parts(rows, parts, hints[:2], x.dtype)), (2, 1))
    cuda.from_parts(there(sums), parts, rows, there(numbers[:3]), 1, x.dtype)
    # of votes
    owned = np.array([2, n, 0])
    dealt, votes = cuda.cast_votes(x, indices, values, owned)
    for threshold in (limit, 1):  # the second one lets too many pass
        cuda.largest(x, 3, threshold, n // 2, there(numbers), abs(x))
    cuda.undeal(dealt, 4 * n, 3)
    cuda.add_dealt(x, dealt, votes, 4 * n, 3)
    cuda.split_counts(indices, np.array([0, n, 4 * n]))
    # of messages
    edges, halves = np.array([0, 3, n]), np.array([[0, 2 * n], [2 * n, 4 * n]])
    cuda.from_int8(*cuda.to_int8(values, indices, edges), edges)
    cuda.from_levels(*cuda.to_int4(values, indices, edges), edges, 4)
    cuda.to_int2(values, edges)
    cuda.from_log4(*cuda.to_log4(abs(values), edges), edges)
    counts = np.array([int((plain < 2 * n).sum()), int((plain >= 2 * n).sum())])
    for name in ("packed", "packed+int8", "packed+fp16"):
        packed = WIRES[name].pack(SparseVector(indices, values, 4 * n), counts, halves)
        WIRES[name].unpack(packed.buffer, packed.lengths, halves, 4 * n, np.dtype(np.float32))
    regions = regions_of((4 * n // 3 + 1) * np.arange(4))
    packed = pack_ballots(SparseVector(dealt, votes, 4 * n + 3), owned, regions)
    unpack_ballots(packed.buffer, owned, regions, 4 * n + 3, np.dtype(np.float32))
    every = SparseVector(there(np.arange(4 * n, dtype=np.int32)), x, 4 * n)
    packed = Complete(Int8()).pack(every, np.array([2 * n, 2 * n]), halves)
    Complete(Int8()).unpack(packed.buffer, packed.lengths, halves, 4 * n, np.dtype(np.float32))
    # of tensors of several shapes
    cuda.select_rows(values, (np.array([[0, 4, 1, 0]]), np.array([[4, 4, 2, 1]])), 3)


@pytest.mark.parametrize("seed", [0, 1])
def test_every_kernel_is_run(interpreted, monkeypatch, seed):
    """In an order of blocks that the seed draws."""
    monkeypatch.setattr(fake_cuda, "SEED", seed)
    everything(interpreted)
    sources = [re.sub(r"__launch_bounds__\(\w+\)", "", file.read_text()) for file in SOURCES.glob("*.cu")]
    names = {name for text in sources for name in re.findall(r"__global__\s+void\s+(\w+)\s*\(", text)}
    assert len(names) > 30 and {launch.kernel.name for launch in device.RECORD} == names


# Bytes of global memory that an entry of float32 costs: what is read and written of vectors, and of pairs
MOVED = {"select": (4, 8), "largest": (12, 8)}


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("name", MOVED)
def test_bytes_that_a_selection_moves(name, density, interpreted):
    """Where caches keep what is read twice: a vector as it is, and tiles that are read and written in whole sectors."""
    n = 8 * 8192
    x, gradient = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    limit, there = thresholds(x + gradient if name == "largest" else x, 1 - density)[1], put(interpreted, x)
    given = (there, limit, n) if name == "select" else (there, 9, limit, n, put(interpreted, gradient))
    getattr(interpreted, name)(*given)
    launch, (fixed, of_pairs) = device.RECORD[-1 if name == "select" else -2], MOVED[name]
    assert launch.kernel.name == "compact"
    assert fixed < launch.moved() / n <= 1.05 * (fixed + of_pairs * density)
    assert launch.sectors * 32 / n >= launch.moved() / n


def test_bytes_that_parts_move(interpreted):
    """A part stays in shared memory while its largest entries are searched."""
    n = 8 * 8192
    parts, (x, gradient) = EqualParts(n, 4, 164), np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    interpreted.select_parts(
        put(interpreted, x), parts, put(interpreted, np.zeros(5, np.int64)), put(interpreted, gradient)
    )
    assert 12 < device.RECORD[-1].moved() / n <= 1.01 * 12 + 6 * 4 * 164 / n
