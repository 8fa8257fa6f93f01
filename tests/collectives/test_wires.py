"""Values that are rounded on their way: how far results are off, that all ranks have the same, and what is refused."""

from __future__ import annotations

import re
from math import ceil, log2

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import World, collectives
from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.wire import BitPacked, Float16

from .conftest import refused

WAYS = [*ALGORITHMS, "auto"]
ROUNDOFF = {"packed+bf16": 2.0**-8, "packed+fp16": 2.0**-11}
TINY = {"packed+bf16": 2.0**-134, "packed+fp16": 2.0**-25}  # half of the least magnitude: off by that near zero
KEYS = st.one_of(st.integers(-40, 40), st.integers(-(2**63), 2**63 - 1))
SETS = st.lists(st.lists(KEYS, max_size=15, unique=True), min_size=1, max_size=5)
SHAPES, FLOATS = st.sampled_from([(), (3,), (2, 70)]), st.sampled_from([np.float32, np.float64])


def drawn(sets, shape, dtype):
    """What each rank has; magnitudes from 1e-3 to 1e3."""
    rng = np.random.default_rng([len(part) for part in sets])
    found = []
    for part in sets:
        size = (len(part), *shape)
        found.append((np.array(part, np.int64), (rng.standard_normal(size) * 10 ** rng.uniform(-3, 3, size))))
    return [(keys, values.astype(dtype)) for keys, values in found]


def dense(pairs, combine):
    """The exact result in float64 at ascending keys, as one rank would combine what all have."""
    keys = np.unique(np.concatenate([keys for keys, _ in pairs]))
    return keys, np.array([combine([values[keys == key][0] for keys, values in pairs if key in keys]) for key in keys])


def same(found):
    """The result, of which every rank must have the same bytes."""
    assert all([a.tobytes() for a in one] == [a.tobytes() for a in found[0]] for one in found)
    return found[0]


def summed(mine, op="sum", **options):
    """What all ranks have of their parts, the same bytes on each."""
    return same(World(len(mine)).run(lambda comm: collectives.allreduce(mine[comm.rank], op, comm, **options)))


def sums(pairs):
    """Sums, and sums of magnitudes."""
    wide = [(keys, values.astype(np.float64)) for keys, values in pairs]
    return dense(wide, lambda parts: np.sum(parts, axis=0)), dense(wide, lambda parts: np.sum(np.abs(parts), axis=0))


def roundings(way, ranks):
    """How often a value, or a sum that it is in, is rounded at most."""
    return {"gather": 1, "split": 2}.get(way, 2 + ceil(log2(ranks)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wire", ROUNDOFF)
@given(SETS, SHAPES, FLOATS)
def test_sums_are_off_by_the_roundoff_of_the_format_each_time(way, wire, sets, shape, dtype):
    mine = drawn(sets, shape, dtype)
    keys, values = summed(mine, algorithm=way, wire=wire)
    assert values.dtype == dtype and values.shape == (len(keys), *shape)
    if len(keys):
        (expected, exact), (_, magnitudes) = sums(mine)
        times, unit = roundings(way, len(sets)), ROUNDOFF[wire] + 8 * np.finfo(np.float32).eps
        assert keys.tolist() == expected.tolist()
        limit = ((1 + unit) ** times - 1) * magnitudes + times * len(sets) * TINY[wire]
        assert (abs(values - exact) <= limit).all()


@pytest.mark.parametrize("way", WAYS)
@given(SETS, SHAPES, FLOATS)
def test_in_eight_bits_they_are_off_by_a_127th_of_the_largest_magnitude_each_time(way, sets, shape, dtype):
    mine = drawn(sets, shape, dtype)
    keys, values = summed(mine, algorithm=way, wire="packed+int8")
    if len(keys):
        (_, exact), _ = sums(mine)
        # A rounding adds at most a step to each of the values that are in a sum; none then exceeds this.
        largest = len(sets) * max(abs(values).max(initial=0) for _, values in mine) * 1.1
        assert (abs(values - exact) <= roundings(way, len(sets)) * len(sets) * largest / 127).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("wire", "kind"), [("packed+bf16", torch.bfloat16), ("packed+fp16", torch.float16)])
@pytest.mark.parametrize("op", ["min", "max"])
@given(SETS, FLOATS)
def test_extremes_are_the_exact_ones_rounded_once(way, wire, kind, op, sets, dtype):
    mine = drawn(sets, (), dtype)
    keys, values = summed(mine, op, algorithm=way, wire=wire)
    expected = dense(mine, lambda parts: getattr(np, op)(parts, axis=0))[1].astype(np.float32)
    if len(sets) > 1:
        assert values.tolist() == torch.from_numpy(expected).to(kind).to(torch.float32).tolist()


@pytest.mark.thin(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bits", [4, 2])
@given(SETS, SHAPES, FLOATS)
def test_in_fewer_bits_all_ranks_have_the_same_bytes_and_no_sum_grows(way, bits, sets, shape, dtype):
    mine = drawn(sets, shape, dtype)
    keys, values = summed(mine, algorithm=way, wire=f"packed+int{bits}")
    assert values.dtype == dtype and values.shape == (len(keys), *shape)
    largest = sum(abs(values).max(initial=0) for _, values in mine)
    assert (abs(values) <= 1.001 * largest).all()


@given(SETS, st.integers(0, 4), st.sampled_from(["packed+bf16", "packed+int8"]))
def test_other_collectives_round_alike(sets, root, wire):
    """The result is rounded on the way to the root, and not where it stays with its owner."""
    ranks = len(sets)
    mine = drawn(sets, (), np.float32)

    def body(comm):
        x = mine[comm.rank]
        whole = collectives.allreduce(x, comm=comm, algorithm="split", wire=wire)
        parts = collectives.reduce_scatter(x, comm=comm, wire=wire)
        return (
            whole,
            parts,
            collectives.reduce(x, root % ranks, comm=comm, wire=wire),
            collectives.allgather(x, comm, wire=wire),
        )

    found = World(ranks).run(body)
    whole, reduced = same([one[0] for one in found]), found[root % ranks][2]
    assert [a.tobytes() for a in reduced] == [a.tobytes() for a in whole]
    everything = [same([one[3][rank] for one in found]) for rank in range(ranks)]
    for (keys, values), (given_keys, given_values) in zip(everything, mine, strict=True):
        order = np.argsort(given_keys)
        assert keys.tolist() == given_keys[order].tolist()
        sizes = abs(given_values[order])
        step = ROUNDOFF[wire] * sizes if wire in ROUNDOFF else sizes.max(initial=0) / 127
        assert (abs(values - given_values[order]) <= 1.001 * step).all()
    scattered = [np.concatenate([one[1][place] for one in found]) for place in (0, 1)]
    assert scattered[0].tolist() == whole[0].tolist()
    if wire == "packed+bf16":  # rounded by itself each value is the same in every message
        assert scattered[1].tobytes() == summed(mine, algorithm="gather", wire=wire)[1].tobytes()


def test_values_take_two_bytes_or_one_or_less():
    """And keys what they took before."""
    rng = np.random.default_rng(0)
    mine = [(np.sort(rng.choice(10**6, 10**4, replace=False)), rng.standard_normal(10**4)) for _ in range(4)]
    mine = [(keys, values.astype(np.float32)) for keys, values in mine]

    def sent(wire):
        def body(comm):
            collectives.allreduce(mine[comm.rank], comm=comm, algorithm="gather", wire=wire)
            return comm.traffic.sent

        return sum(World(4).run(body))

    exact, of_values = sent(None), 4 * 3 * 4 * 10**4
    assert sent("packed") == exact
    shares = {"bf16": 1 / 2, "fp16": 1 / 2} | {f"int{bits}": bits / 32 + 1 / 128 for bits in (8, 4, 2)}
    for wire, share in ((f"packed+{codec}", share) for codec, share in shares.items()):
        assert exact - sent(wire) == pytest.approx((1 - share) * of_values, rel=1e-3)


def test_what_is_no_number_arrives_and_what_is_too_large_becomes_the_largest():
    x = np.arange(4), np.array([np.nan, -np.inf, 1e300, 1e5])
    for wire, largest in (("packed+fp16", 65504), ("packed+bf16", float(torch.finfo(torch.bfloat16).max))):
        _, values = summed([x, x], "max", wire=wire)
        assert np.isnan(values[0]) and values[1:3].tolist() == [-np.inf, largest]


@pytest.mark.parametrize(
    ("values", "options", "says"),
    [
        ([1.0, 2.0], {"wire": "fp16"}, "wire must be None or one of packed, packed.bf16, .*got 'fp16'; keys are"),
        ([1.0, 2.0], {"wire": "coo32"}, "wire must be None or one of packed, .*got 'coo32'"),
        ([1.0, 2.0], {"wire": Float16()}, "wire must be None, one of packed.*or a BitPacked, got Float16"),
        ([1, 2], {"wire": "packed+fp16"}, "wire must be None or 'packed' for values of int64, got 'packed.fp16'"),
        ([True, False], {"wire": "packed+int8"}, "wire must be None or 'packed' for values of bool"),
        ([1j, 2], {"wire": BitPacked(Float16())}, "wire must be None or 'packed' for values of complex128"),
        (np.ones(2, np.float16), {"wire": "packed+bf16"}, "for values of float16"),
        ([1.0, 2.0], {"wire": "packed+int8", "op": "prod"}, "relative for op='prod', got 'packed.int8'"),
        ([1.0, 2.0], {"wire": "packed+int2", "op": "prod"}, "relative for op='prod', got 'packed.int2'"),
        ([1.0, 2.0], {"wire": "packed+fp16", "op": "xor"}, "no loop for them"),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["pair", "dict"])
def test_what_cannot_be_rounded_is_refused_on_all_ranks(values, options, says, form):
    numbers = np.asarray(values)
    if form == "dict" and numbers.dtype == np.float16:
        pytest.skip("a dict has Python's numbers")
    x = (np.arange(2), numbers) if form == "pair" else dict(enumerate(numbers.tolist()))
    said = refused(lambda rank: x, **options)
    assert all(re.search(says, text, re.DOTALL) for text in said), said
