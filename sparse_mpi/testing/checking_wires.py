"""Check a message format: entries come back as they were packed, in messages of the announced length."""

from __future__ import annotations

import numpy as np

from sparse_mpi.reduction.arguments import make_wire
from sparse_mpi.rows import quotas
from sparse_mpi.select.alldim import AllDim
from sparse_mpi.sparse import SparseVector, regions_of
from sparse_mpi.testing.checking_selectors import ON_ONE
from sparse_mpi.testing.steps import same_bytes
from sparse_mpi.testing.trials import Trial, Trials, demand
from sparse_mpi.wire import Packed, SizeBound, Wire


def check_wire(wire: Wire, trials: Trials = ON_ONE) -> None:
    """Raise `ConformanceError` unless the format does all that `Wire` says."""
    wire = make_wire(wire)
    trials.hold("check_wire", wire, lambda trial: _obey(wire, trial))


def _obey(wire: Wire, trial: Trial) -> None:
    rng, x, layout, k = np.random.default_rng(trial.seed), trial.gradient(0), trial.case.layout, trial.case.k
    size, whole = len(x), np.array([0, len(x)])
    indices = np.sort(rng.permutation(np.flatnonzero(x))[:k]).astype(np.int32)
    vector = SparseVector(indices, x[indices], size)
    # Messages of regions, some of which are empty
    cuts = np.sort([0, *rng.integers(0, size, rng.integers(6), endpoint=True), size])
    counts, regions = np.diff(np.searchsorted(indices, cuts)), regions_of(cuts)
    packed = wire.pack(vector, counts, regions)
    lengths, expected = np.asarray(packed.lengths), np.asarray(wire.lengths_of(counts, regions, size, x.dtype))
    demand((lengths == expected).all(), "lengths", f"{expected}, as lengths_of() has them", lengths)
    demand(len(packed.buffer) == sum(lengths), "lengths", f"a buffer of {sum(lengths)} items", len(packed.buffer))
    _compare(wire, vector, packed, wire.unpack(packed.buffer, lengths, regions, size, x.dtype))
    _bound(packed, wire.max_size(len(indices), size, len(counts)), x.itemsize)
    # A value that is no number stays none
    broken = vector._replace(values=np.where(np.arange(len(indices)) == 0, np.nan, vector.values).astype(x.dtype))
    packed = wire.pack(broken, counts, regions)
    came = wire.unpack(packed.buffer, np.asarray(packed.lengths), regions, size, x.dtype)
    demand(
        np.isnan(came.values[:1]).all(), "the way there and back", "NaN in place of the first value", came.values[:1]
    )
    # One message of a sum, from which values that are rounded to 0 are left out
    packed = wire.pack_sum(vector, whole)
    came = wire.unpack_sums(packed.buffer, np.asarray(packed.lengths), whole[None], size, x.dtype)
    _compare(wire, vector if wire.lossless else packed.vector, packed, came)
    _bound(packed, wire.max_size_of_sum(len(indices), size), x.itemsize)
    # One message of rows
    selector, pattern = AllDim(dense=()), quotas(layout, min(k, size), dense=())
    rows, _ = selector.select(x, min(k, size), selector.init(layout, min(k, size)))
    packed = wire.pack_rows(rows, pattern)
    _compare(wire, rows, packed, wire.unpack_rows(packed.buffer[None], pattern, size, x.dtype))


def _compare(wire: Wire, sent: SparseVector, packed: Packed, came: SparseVector) -> None:
    law = "the way there and back"
    demand(same_bytes(packed.vector, came), law, f"the entries of Packed.vector, {packed.vector}", came)
    demand(same_bytes(sent.indices, came.indices), law, f"the indices {sent.indices}", came.indices)
    demand(not wire.lossless or same_bytes(sent, came), law, f"without loss {sent.values}", came.values)


def _bound(packed: Packed, bound: SizeBound, itemsize: int) -> None:
    most, found = bound.bytes(itemsize), packed.buffer.nbytes
    demand(found <= most, "max_size() or max_size_of_sum()", f"at most {most:g} bytes", found)
