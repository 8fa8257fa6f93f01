"""Sums over ranks of SciPy's sparse arrays and matrices are what SciPy's own sums of them are, or are refused."""

from __future__ import annotations

import operator
import re
from functools import reduce

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from sparse_mpi import World, collectives

from .conftest import refused

DTYPES = "? b h i l B H I L f d g F D G".split()
FLAT = [(1, 1), (4, 6), (7, 5), (0, 5), (5, 0), (1, 9), (9, 1)]
KINDS = [(form, old, shape) for form in "csr csc coo bsr dia lil dok".split() for old in (0, 1) for shape in FLAT]
KINDS = [each for each in KINDS if each[0] != "bsr" or 0 not in each[2]]
KINDS += [(form, old, (3, 2**33)) for form in ("csr", "coo", "lil") for old in (0, 1)] + [("csc", 0, (2**33, 3))]
KINDS += [("csr", 0, (8,)), ("coo", 0, (8,)), ("dok", 0, (8,)), ("coo", 0, (2, 3, 4))]
# The type of indices of a csr_matrix that SciPy adds up depends on memory that it has not written to
KINDS = [(each, wide) for each in KINDS for wide in ((0, 1) if not each[1] else (0,))]


def part(form, old, shape, dtype, rank, wide):
    """One rank's part: some entries that others have too; indices of 64 bits where they are ``wide``."""
    rng = np.random.default_rng(rank)
    coords = [np.minimum(rng.integers(0, 4, 6 * (0 not in shape)), d - 1) for d in shape]
    values = rng.integers(1, 9, len(coords[0])).astype(dtype)
    made = sp.coo_array((values, tuple(c.astype(np.int64 if wide else np.int32) for c in coords)), shape=shape)
    if len(shape) == 1:
        made.sum_duplicates()  # SciPy's own sum of vectors would count some of them twice
    made = made.tobsr((1 + (rank == 0 and shape[0] == 4), 1)) if form == "bsr" else made.asformat(form)
    return getattr(sp, f"{form}_matrix")(made) if old else made


def looks(x):
    indices = [getattr(x, name, np.empty(0)).dtype for name in ("indptr", "indices", "offsets", "row", "col")]
    return type(x), x.shape, x.dtype, getattr(x, "blocksize", None), *indices


def same(a, b):
    if 2**33 in a.shape:
        return (a.astype("G") != b.astype("G")).nnz == 0
    return a.toarray().tolist() == b.toarray().tolist()


FIFTHS = [  # of the types, one with each kind
    pytest.param(*kind, DTYPES[n::5], marks=() if number % 5 == n else pytest.mark.full("another fifth of the types"))
    for n in range(5)
    for number, kind in enumerate(KINDS)
]


@pytest.mark.parametrize(("kind", "wide", "dtypes"), FIFTHS, ids=str)
def test_sums_are_those_of_scipy(kind, wide, dtypes):
    parts = [[part(*kind, dtype, rank, wide and rank != 1) for rank in range(3)] for dtype in dtypes]

    def body(comm):
        wrong = []
        for each in parts:
            own = reduce(operator.add, each).asformat(kind[0])
            try:
                found = collectives.allreduce(each[comm.rank], comm=comm)
                if looks(found) != looks(own) or not same(found, own):
                    wrong.append(f"{looks(found)}, not {looks(own)}")
            except (TypeError, ValueError) as error:
                wrong.append(f"{looks(own)}: {error}")
        return wrong

    assert World(3).run(body) == [[]] * 3


def with_(x, **attributes):
    """``x`` with arrays that its constructor would not take, or has not looked at."""
    for name, value in attributes.items():
        setattr(x, name, value)
    return x


def compressed(make, starts, at, shape=(3, 5)):
    starts, at = np.array(starts), np.array(at)
    if make is torch.sparse_csr_tensor:
        return make(*map(torch.from_numpy, (starts, at)), torch.ones(len(at)), shape, check_invariants=False)
    good = make((len(starts) - 1, 99) if make is not sp.csc_array else (99, len(starts) - 1))
    return with_(good, indptr=starts, indices=at, data=np.ones(len(at)), _shape=shape)


def coordinates(make, rows, columns):
    if make is torch.sparse_coo_tensor:
        return make(torch.tensor([rows, columns]), torch.ones(len(rows)), (3, 5), check_invariants=False)
    return with_(make((3, 5)), coords=(np.array(rows), np.array(columns)), data=np.ones(len(rows)))


def damaged():
    """Data whose indices are outside of its shape, by what is wrong with it."""
    for make in (sp.csr_array, sp.csr_matrix, torch.sparse_csr_tensor):
        yield make, "inside of another row", compressed(make, [0, 1, 2, 2], [0, 7])
        yield make, "behind the last row", compressed(make, [0, 1, 1, 2], [0, 5])
        yield make, "negative", compressed(make, [0, 1, 2, 2], [-1, 0])
        yield make, "decreasing", compressed(make, [0, 2, 1, 2], [0, 1])
        yield make, "decreasing to none", compressed(make, [0, 2, 1, 0], [0, 1])
        yield make, "beyond the data", compressed(make, [0, 1, 2, 3], [0, 1])
        yield make, "another start", compressed(make, [1, 1, 2, 2], [0, 1])
        yield make, "too few rows", compressed(make, [0, 1, 2], [0, 1])
        yield make, "fractions", compressed(make, [0, 1, 2, 2], [0.5, 1.5])
    for at in ([0, 3], [-1, 0], [0.5, 1]):
        yield sp.csc_array, f"rows {at}", compressed(sp.csc_array, [0, 1, 2, 2, 2, 2], at)
    yield sp.csc_array, "decreasing", compressed(sp.csc_array, [0, 2, 1, 2, 2, 2], [0, 1])
    for make in (sp.coo_array, sp.coo_matrix, torch.sparse_coo_tensor):
        for rows, columns in (([0, 3], [0, 0]), ([0, -1], [0, 0]), ([0, 1], [0, 5]), ([0, 1], [-5, 0])):
            yield make, f"at {rows} {columns}", coordinates(make, rows, columns)
    yield sp.coo_array, "a column for two rows", with_(coordinates(sp.coo_array, [0, 1], [0, 1]), data=np.ones(3))
    yield sp.coo_array, "fewer columns than rows", coordinates(sp.coo_array, [0, 1], [0])
    blocks = sp.bsr_array(np.eye(4), blocksize=(2, 2))
    yield sp.bsr_array, "a block outside", with_(blocks.copy(), indices=np.array([0, 2], np.int32))
    yield sp.bsr_array, "negative", with_(blocks.copy(), indices=np.array([0, -1], np.int32))
    yield sp.bsr_array, "decreasing", with_(blocks.copy(), indptr=np.array([0, 3, 2], np.int32))
    for offset in (5, -3, 99):
        yield sp.dia_array, f"at {offset}", sp.dia_array((np.ones((2, 5)), [0, offset]), shape=(3, 5))
    rows = sp.lil_array((3, 5))
    rows[1, 1] = 1
    yield sp.lil_array, "a column outside", with_(rows.copy(), rows=np.array([[], [5], []], object))
    yield sp.lil_array, "fewer columns than values", with_(rows.copy(), rows=np.array([[], [], []], object))
    yield sp.dok_array, "a key outside", with_(sp.dok_array((3, 5)), _dict={(3, 0): 1.0})
    eye = torch.eye(3)
    for layout in ("csc", "bsr", "bsc"):
        yield torch, layout, getattr(eye, f"to_sparse_{layout}")(*[(1, 1)] * (layout != "csc"))


@pytest.mark.parametrize("x", [pytest.param(x, id=f"{make.__name__}: {what}") for make, what, x in damaged()])
@pytest.mark.parametrize("everywhere", [False, True])
def test_indices_outside_of_a_shape_are_refused_on_all_ranks(x, everywhere):
    good = sp.csr_array((3, 5))
    said = refused(lambda rank: x if everywhere or rank == 1 else good)
    assert re.match("(x|.* of x) must", said[1]) and all("x must" in text for text in said), said


@pytest.mark.parametrize("make", [sp.csr_array, sp.csc_matrix])
def test_what_is_behind_the_end_of_a_matrix_is_not_counted_and_stays(make):
    x = make((np.ones(2), [0, 1], [0, 1, 2]), shape=(2, 2))
    x.data, x.indices = np.array([1.0, 2, 99, 99]), np.array([0, 1, 7, -7], np.int32)
    for found in World(2).run(lambda comm: collectives.allreduce(x, comm=comm)):
        assert found.toarray().tolist() == [[2, 0], [0, 4]]
    assert len(x.data) == len(x.indices) == 4


@pytest.mark.parametrize("base", [sp.csr_array, sp.csc_matrix, sp.coo_array, sp.dok_array, sp.bsr_array])
def test_a_subclass_comes_back_as_itself(base):
    kind = type("Mine", (base,), {})
    found = World(2).run(lambda comm: collectives.allreduce(kind(np.eye(2)), comm=comm))[0]
    assert type(found) is kind and found.toarray().tolist() == [[2, 0], [0, 2]]


@pytest.mark.parametrize("order", "<>")
def test_numbers_of_either_byte_order_are_taken(order):
    keys, values = np.array([5, 1, 3], f"{order}i8"), np.array([1.5, 2.5, 3.5], f"{order}f8")
    matrix = with_(sp.csr_array(np.eye(3)), data=values)

    def body(comm):
        request = collectives.allreduce_init(keys, comm=comm, dtype=f"{order}f8")
        request.start(values)
        return (
            collectives.allreduce((keys, values), comm=comm),
            request.wait(),
            collectives.allreduce(matrix, comm=comm),
        )

    for (found, sums), again, total in World(2).run(body):
        assert found.tolist() == [1, 3, 5] and sums.tolist() == [5, 7, 3] and sums.dtype == "=f8"
        assert again.tolist() == [3, 5, 7] and total.diagonal().tolist() == [3, 5, 7]
