"""A message that was damaged on its way is refused, or its indices are where they may be, within the vector."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, SparseVector, World, kernels
from sparse_mpi.collectives.entries import Entries
from sparse_mpi.collectives.messages import WIDE, Format
from sparse_mpi.collectives.strings import BYTES, StringKeys
from sparse_mpi.comm.world import _WorldComm
from sparse_mpi.kernels import array, cpu
from sparse_mpi.kernels.base import MalformedMessage
from sparse_mpi.select.alldim import AllDim
from sparse_mpi.sparse import Layout
from sparse_mpi.wire import WIRES
from sparse_mpi.wire.packed import (
    pack_ballots,
    pack_positions,
    positions_lengths,
    unpack_ballots,
    unpack_positions,
)

SIZE = 1000
REGIONS = np.array([[0, 300], [300, 310], [310, 310], [310, SIZE]])
ENTRIES = np.array([20, 10, 0, 200])


@pytest.fixture(params=[cpu, array], ids=["compiled", "whole arrays"], autouse=True)
def _kernels(request, monkeypatch):
    monkeypatch.setattr(kernels, "host", lambda: request.param)


def vector():
    rng = np.random.default_rng(0)
    chosen = [
        start + np.sort(rng.choice(stop - start, entries, replace=False))
        for (start, stop), entries in zip(REGIONS, ENTRIES, strict=True)
    ]
    indices = np.concatenate(chosen).astype(np.int32)
    return SparseVector(indices, rng.standard_normal(len(indices)).astype(np.float32), SIZE)


def damages(buffer):
    """Yield copies of ``buffer`` with a byte changed, or all bytes of a part."""
    rng = np.random.default_rng(1)
    for at in range(0, buffer.nbytes, 1 + buffer.nbytes // 200):
        for value in (0, 0xFF, int(rng.integers(256))):
            bad = buffer.copy()
            bad.reshape(-1).view(np.uint8)[at] = value
            yield bad
    for width in (8, 40, buffer.nbytes):
        for start in range(0, buffer.nbytes, width):
            bad = buffer.copy()
            bad.reshape(-1).view(np.uint8)[start : start + width] = rng.integers(256)
            yield bad


def refused(buffer, read):
    """Read damaged copies of ``buffer``; return how many were refused. Indices of the others are in the vector."""
    number = 0
    for bad in damages(buffer):
        try:
            indices = read(bad)
        except MalformedMessage:
            number += 1
        else:
            assert not len(indices) or (indices.min() >= 0 and indices.max() < SIZE)
    return number


@pytest.mark.parametrize("name", WIRES)
def test_a_damaged_message_is_refused_or_harmless(name):
    wire = WIRES[name]
    packed = wire.pack(vector(), ENTRIES, REGIONS)
    assert wire.unpack(packed.buffer, packed.lengths, REGIONS, SIZE, np.float32).indices.tolist() == (
        vector().indices.tolist()
    )
    with np.errstate(all="ignore"):
        assert refused(packed.buffer, lambda bad: wire.unpack(bad, packed.lengths, REGIONS, SIZE, np.float32).indices)


@pytest.mark.parametrize("name", WIRES)
def test_a_damaged_sum_is_refused_or_harmless(name):
    wire, region = WIRES[name], np.array([0, SIZE])
    packed = wire.pack_sum(vector(), region)

    def read(bad):
        return wire.unpack_sums(bad, packed.lengths, region[None], SIZE, np.float32).indices

    with np.errstate(all="ignore"):
        assert refused(packed.buffer, read)


@pytest.mark.parametrize("name", WIRES)
def test_a_damaged_message_of_rows_is_refused_or_harmless(name):
    wire, layout, selector = WIRES[name], Layout.of([(10, 60), (400,)]), AllDim(dense=())
    state = selector.init(layout, 50)
    selected, _ = selector.select(np.random.default_rng(0).standard_normal(SIZE).astype(np.float32), 50, state)
    packed, pattern = wire.pack_rows(selected, selector.pattern(50, state)), selector.pattern(50, state)
    with np.errstate(all="ignore"):
        assert refused(packed.buffer, lambda bad: wire.unpack_rows(bad[None], pattern, SIZE, np.float32).indices)


def test_damaged_ballots_are_refused_or_harmless():
    buffer = pack_ballots(vector(), ENTRIES, REGIONS).buffer
    with np.errstate(all="ignore"):
        assert refused(buffer, lambda bad: unpack_ballots(bad, ENTRIES, REGIONS, SIZE, np.float32).indices)


def test_damaged_positions_are_refused_or_harmless():
    buffer = pack_positions(vector().indices, ENTRIES, REGIONS)
    assert len(buffer) == positions_lengths(ENTRIES, REGIONS).sum()
    assert refused(buffer, lambda bad: unpack_positions(bad, ENTRIES, REGIONS, SIZE))


@pytest.mark.parametrize("dtype", ["i8", "f4", "bool"])
@pytest.mark.parametrize("span", [SIZE, WIDE], ids=["packed", "wide"])
def test_a_damaged_message_of_keys_is_refused_or_harmless(span, dtype):
    form, (indices, values, _) = Format(np.dtype(dtype), (), span), vector()
    entries = Entries(indices.astype(np.int64), (1000 * values).astype(dtype))
    ranges = REGIONS[[0, 1, 3]] - [0, 1]
    buffer, lengths = form.pack(entries, ENTRIES[[0, 1, 3]], ranges)
    assert refused(buffer, lambda bad: form.unpacked(bad, lengths, ranges)[0].keys)


def test_a_damaged_message_of_strings_is_refused_or_has_as_many_bytes():
    keys = StringKeys(BYTES)
    message = keys.packed([b"a", b"", b"cde" * 9])
    for bad in damages(message):
        try:
            found, _ = keys.unpacked(bad, np.array([len(bad)]))
        except MalformedMessage:
            continue
        assert sum(map(len, found)) <= len(message)


def test_the_sender_is_named(monkeypatch):
    gather = _WorldComm._allgatherv

    def damaged(self, send, counts):
        received, lengths = gather(self, send, counts)
        received = received.copy()
        received.view(np.uint8).reshape(len(received), -1)[int(lengths[0]), :4] = 0xFF
        return received, lengths

    monkeypatch.setattr(_WorldComm, "_allgatherv", damaged)

    def run(comm):
        SparseAllreduce(SIZE, k=9, comm=comm, algorithm="topka").step(vector().to_dense())

    with pytest.raises(MalformedMessage, match="message 1 of 3, of rank 1 where each rank sent one, .* of one step"):
        World(3).run(run)
