"""What the collectives of sparse data refuse, on all ranks alike and before the first message."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import numba
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import SparseVector
from sparse_mpi.collectives import operations
from sparse_mpi.collectives.operations import NAMED, operation

from .conftest import refused

PAIR = np.array([1, 2]), np.array([1.0, 2.0])


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.zeros(3), "x must be a SparseVector, a scipy.sparse array.*got numpy float64"),
        ((np.array([1.0]), np.array([1.0])), "keys of x must be a vector of integers or strings, got numpy float64"),
        ((np.array([1]), np.array(["a"])), "values of x must be bool, integers"),
        ((np.array([1, 2]), np.array([1.0])), "x must have a value for each key, got 2 keys and values of shape"),
        ((np.array([1]), np.empty((1, 0))), "values of x must have a size"),
        ((np.array(["a"], object), np.array([1])), r"got numpy object \(1,\); convert them with astype\('U'\)"),
        ((np.array([["a"]]), np.array([1])), "keys of x must be a vector of integers or strings, got numpy <U1"),
        ((["a", "b\0"], np.array([1, 2])), "keys of x must be all str or all bytes, none of which ends in NUL"),
        ((["a", b"b"], np.array([1, 2])), "keys of x must be all str or all bytes"),
        ((np.array(["a", "b"]), np.array([1])), "x must have a value for each key, got 2 keys and values of shape"),
        ({("a", "b"): 1}, r"keys of x must be integers, str or bytes, got \('a', 'b'\); give repr\(key\) as the key"),
        ({"a": 1, b"a": 1}, "keys of x must be of one type, got str and bytes"),
        ({"a": 1, 1: 1}, "keys of x must be of one type, got integers and str"),
        ({"\ud800": "a"}, "values of x must be bool"),
        ((np.array([1]), np.ma.masked_array([1.0], [True])), "values of x must not be masked, got a MaskedArray; fill"),
        ({True: 1}, "keys of x must be integers, str or bytes, got True"),
        ({2**64: 1}, r"keys of x must be in \[-2\^63, 2\^63\)"),
        ({1: 2**70}, "values of x must be"),
        ({1: "a"}, "values of x must be bool"),
        (SparseVector(np.array([5]), np.array([1.0]), 5), r"indices of x must be in \[0, 5\), got 5 to 5"),
        (SparseVector(np.array([-1]), np.array([1.0]), 5), r"indices of x must be in \[0, 5\), got -1 to -1"),
        (scipy.sparse.coo_array((2**32, 2**32)), r"x must have fewer than 2\^63 elements"),
        (torch.eye(2).to_sparse().bfloat16(), "got bfloat16; convert them with x.float"),
    ],
    ids=str,
)
def test_bad_data(x, says):
    said = refused(lambda rank: x)
    assert all(re.search(says, text, re.DOTALL) for text in said), said


@pytest.mark.parametrize(
    ("other", "options", "says"),
    [
        ((PAIR[0], PAIR[1].astype(np.float32)), {}, "dtype=float32"),
        ((PAIR[0].astype(np.uint64), PAIR[1]), {}, "keys=uint64"),
        ((PAIR[0], np.ones((2, 3))), {}, r"values of shape=\(3,\)"),
        ({1: 1.0}, {}, "kind=dict"),
        ((np.array(["a", "b"]), PAIR[1]), {}, "keys=str"),
        (None, {"op": np.subtract}, "op must be commutative"),
        (None, {"op": "and"}, "op must combine values of float64, got 'and', which has no loop"),
        (None, {"op": np.equal}, "op must give float64"),
    ],
    ids=str,
)
def test_bad_arguments(other, options, says):
    said = refused(lambda rank: PAIR if other is None or rank == 0 else other, **options)
    assert all(re.search(says, text, re.DOTALL) for text in said)


def test_matrices_of_other_shapes_or_formats():
    x = scipy.sparse.eye_array(4, format="csr")
    for other, says in ((scipy.sparse.eye_array(5, format="csr"), "shape=(4, 4)"), (x.tocsc(), "csr_array")):
        assert all(says in text for text in refused(lambda rank, other=other: other if rank else x))


@given(st.sampled_from([np.add, np.multiply, np.maximum, np.logaddexp, np.hypot, np.gcd, np.lcm, np.fmin]))
def test_good_ufuncs_are_taken(ufunc):
    dtype = np.dtype(np.int64 if ufunc in (np.gcd, np.lcm) else np.float64)
    assert operation(ufunc, dtype) is ufunc


ORDERED = np.subtract, np.divide, np.power, np.arctan2, np.copysign, np.fmod, np.nextafter
UFUNCS = [(ufunc, ValueError, "be (commutative|associative)") for ufunc in ORDERED]
UFUNCS += [(numba.vectorize(["float64(float64, float64)"])(lambda a, b: (a + b) / 2), ValueError, "be associative")]
UFUNCS += [(np.frompyfunc(max, 2, 1), TypeError, "give float64 for values of float64")]  # it makes objects


@pytest.mark.parametrize(("ufunc", "error", "says"), UFUNCS, ids=str)
def test_other_ufuncs_are_refused(ufunc, error, says):
    with pytest.raises(error, match=f"op must {says}"):
        operation(ufunc, np.dtype(np.float64))


@pytest.mark.parametrize("name", NAMED)
def test_every_name_is_an_operation_on_integers_and_bool(name):
    for dtype in (np.int8, np.uint64, np.bool_):
        assert operation(name, np.dtype(dtype)) is NAMED[name]


def test_operations_of_mpi_are_known_by_name(monkeypatch):
    """`MPI.LOR` too: of bool values it is the bitwise one."""

    class Op:
        pass

    names = ["SUM", "PROD", "MIN", "MAX", "BAND", "LAND", "BOR", "LOR", "BXOR", "LXOR", "MAXLOC"]
    MPI = SimpleNamespace(Op=Op, **{name: Op() for name in names})
    assert operations.named(MPI.SUM) is MPI.SUM  # nobody has mpi4py's
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", MPI)
    found = [operations.named(getattr(MPI, name)) for name in names]
    assert found[:-1] == ["sum", "prod", "min", "max", "and", "and", "or", "or", "xor", "xor"]
    assert found[-1] is MPI.MAXLOC and operations.named("sum") == "sum" and operations.named(np.add) is np.add
    with pytest.raises(TypeError, match="op must be one of"):
        operations.operation(MPI.MAXLOC, np.dtype(float))
