"""Adapters of input: all kinds of sparse data as keys and values, and results as the same kind."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from sparse_mpi.arrays import check_place, check_plain, describe, index_dtype, is_on_device
from sparse_mpi.checks import converted
from sparse_mpi.collectives import wide
from sparse_mpi.collectives.entries import Entries, canonical
from sparse_mpi.collectives.strings import BYTES, INTEGERS, NAMES, STR, STRINGS, UNKNOWN, WIDE, Text, ordered
from sparse_mpi.sparse import SparseVector

KINDS = (
    "a SparseVector, a scipy.sparse array, a COO, CSR or CSC matrix of cupyx.scipy.sparse (needs SciPy), "
    "a torch.sparse tensor, a pair of arrays (keys, values), or a dict"
)
SIGN = np.uint64(1 << 63)
BLOCK = (1 << 31) - 1  # the most rows of a block
TUPLES = "give repr(key) as the key, a str, of which ast.literal_eval makes the tuple again"
NUMBERS = "bool, integers, floating-point or complex numbers"
# The types of numbers in dicts, each of which holds all numbers of the types before
PLAIN = (np.dtype(bool), np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.complex128))
TYPES = {"U": STR, "S": BYTES}  # types of keys in arrays, by the kind of their dtype


@dataclass(frozen=True)
class InputAdapter:
    """A rank's input as keys and values, and the way back to its kind."""

    keys: np.ndarray  # (m,) int64, in any order, perhaps more than once; of strings the places in these
    values: np.ndarray  # (m, ...)
    facts: dict[str, Any]  # facts that must be the same on all ranks, by name
    leave: Callable[[Entries], Any]  # makes a result of the same kind, whose keys are objects where they are strings
    plain: int | None = None  # 1 + the place in `PLAIN` of a dict's numbers; 0 if it has none; None of all else
    type: int = INTEGERS  # type of keys
    strings: Any = ()  # the keys, distinct and in their order: a list, or of pairs an array
    word: int = 0  # this rank's fact for `leave`
    words: list[int] = field(default_factory=list)  # facts of all ranks, in their order, once exchanged


class Adaptable(ABC):
    """Data of an unknown kind, which makes its own `InputAdapter`."""

    @abstractmethod
    def adapt(self) -> InputAdapter:
        """Return the data as keys and values; an error is raised on every rank."""


def plain_type(plain: int) -> np.dtype:
    return PLAIN[plain - 1] if plain else np.dtype(np.int64)


def adapt(x: object) -> InputAdapter:
    """Return ``x``, in host memory by `device.to_host_input`, as keys and values."""
    if isinstance(x, SparseVector):
        return _of_vector(x)
    if isinstance(x, Adaptable):
        return x.adapt()
    scipy = sys.modules.get("scipy.sparse")
    if scipy is not None and scipy.issparse(x):  # a DOK is a dict, too
        return _of_scipy(x, scipy)
    if isinstance(x, dict):
        return _of_dict(x)
    if isinstance(x, tuple) and len(x) == 2:
        return _of_pairs(*x)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor) and x.layout in (torch.sparse_coo, torch.sparse_csr):
        return _of_torch(x, torch)
    remedy = "a dense array is for sparse_allreduce, or MPI's Allreduce"
    if hasattr(x, "index") and hasattr(x, "to_numpy"):
        remedy = "of a Series give (list(x.index), x.to_numpy())"
    raise TypeError(f"x must be {KINDS}, got {describe(x)}; {remedy}")


def integers(keys: object, what: str, expected: str = "integers") -> np.ndarray:
    """Return keys as an array; raise TypeError unless a vector of integers, or an empty list."""
    found = here(keys, what)
    if found.size == 0 and not isinstance(keys, np.ndarray):
        found = found.astype(np.int64)
    if found.dtype.kind not in "iu" or found.ndim != 1:
        remedy = "convert them with astype('U')" if found.dtype.kind in "OT" else "number them first"
        raise TypeError(f"{what} must be a vector of {expected}, got {describe(found)}; {remedy}")
    return found


def integers_or_strings(keys: Any, what: str) -> tuple[np.ndarray, int]:
    """Return keys as an array, and their type; raise TypeError unless a vector of integers or strings."""
    is_list = isinstance(keys, (list, tuple)) or (isinstance(keys, np.ndarray) and keys.dtype == object and keys.ndim)
    if is_list and isinstance(first := next(iter(keys), None), tuple):
        raise TypeError(f"{what} must be integers or strings, got the tuple {first!r:.80}; {TUPLES}")
    found = here(keys, what)
    kind = TYPES.get(found.dtype.kind, INTEGERS)
    if kind == INTEGERS or found.ndim != 1:
        is_empty = found.size == 0 and not isinstance(keys, np.ndarray)
        return integers(keys, what, "integers or strings"), UNKNOWN if is_empty else INTEGERS
    if not isinstance(keys, np.ndarray) and found.tolist() != list(keys):
        raise TypeError(f"{what} must be all str or all bytes, none of which ends in NUL; a dict takes these")
    return found, kind


def here(x: object, what: str) -> np.ndarray:
    check_plain(x, what)
    check_place(x, what)
    if is_on_device(x):
        raise TypeError(f"{what} must be in host memory as the rest is, got {describe(x)} on a device; move either")
    return converted(what, "a vector", np.asarray, x)


def _numbers(values: object) -> np.ndarray:
    found = here(values, "values of x")
    if found.dtype.kind not in "biufc":
        raise TypeError(f"values of x must be {NUMBERS}, got dtype {found.dtype}; convert them first")
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def _of_vector(x: SparseVector) -> InputAdapter:
    values = _numbers(x.values)
    keys = _in_range(integers(x.indices, "indices of x"), x.size, "indices of x")

    def leave(result: Entries) -> SparseVector:
        return SparseVector(result.keys.astype(index_dtype(x.size), copy=False), result.values, x.size)

    return checked(keys, values, {"kind": "SparseVector", "size": x.size}, leave)


def _of_pairs(given: object, values: object) -> InputAdapter:
    found = _numbers(values)
    if isinstance(given, np.ndarray) and given.ndim == 2 and given.shape[1] == 2 and given.dtype.kind in "iu":
        return _of_wide(given, found)
    keys, kind = integers_or_strings(given, "keys of x")
    if kind in STRINGS:
        return _of_strings(keys, found, kind)
    unsigned = keys.dtype.newbyteorder("=") == np.uint64

    def leave(result: Entries) -> tuple[np.ndarray, np.ndarray]:
        back = result.keys.astype(np.int64, copy=False).view(np.uint64) ^ SIGN if unsigned else result.keys
        return back.astype(keys.dtype, copy=False), result.values

    # In the order of the keys
    numbers = (keys ^ SIGN).view(np.int64) if unsigned else keys.astype(np.int64, copy=False)
    return checked(numbers, found, {"kind": "(keys, values)", "keys": keys.dtype}, leave)


def _of_strings(keys: np.ndarray, values: np.ndarray, kind: int) -> InputAdapter:
    def leave(result: Entries) -> tuple[np.ndarray, np.ndarray]:
        return np.array(result.keys.tolist(), keys.dtype.kind), result.values  # type as wide as the longest

    strings, places = ordered(keys.tolist())
    adapter = checked(places, values, {"kind": "(keys, values)", "keys": NAMES[kind]}, leave)
    return replace(adapter, type=kind, strings=strings)


def _of_wide(keys: np.ndarray, values: np.ndarray) -> InputAdapter:
    def leave(result: Entries) -> tuple[np.ndarray, np.ndarray]:
        return wide.unpacked(result.keys, keys.dtype), result.values

    distinct, places = np.unique(wide.packed(keys), return_inverse=True)
    facts = {"kind": "(keys, values)", "keys": f"two columns of {keys.dtype}"}
    return replace(checked(places, values, facts, leave), type=WIDE, strings=distinct)


def _of_dict(x: dict[Any, Any]) -> InputAdapter:
    kind, strings, numbers = _type_of_keys(x), list[Text](), [*x.values()]
    if kind in STRINGS and {*map(type, x)} <= {str, bytes}:
        strings, keys = sorted(x), np.arange(len(x))
        numbers = [*map(x.__getitem__, strings)]
    elif kind in STRINGS:
        strings, keys = ordered([*map(_plain_string, x)])
    else:
        try:
            keys = np.fromiter(x, np.int64, len(x))
        except OverflowError:
            raise ValueError("keys of x must be in [-2^63, 2^63); take (keys, values) with uint64 keys") from None
    values = _numbers(numbers) if x else np.empty(0, bool)
    if values.dtype not in PLAIN or values.ndim != 1:
        raise TypeError(f"values of x must be Python's numbers below 2^63, got {describe(values)}")
    made = Counter if isinstance(x, Counter) else dict

    def leave(result: Entries) -> dict[Any, Any]:
        found: Counter[Text] | dict[Text, Text] = made()
        dict.update(found, zip(result.keys.tolist(), result.values.tolist(), strict=True))  # a Counter's own would copy
        return found

    plain = PLAIN.index(values.dtype) + 1 if x else 0
    return InputAdapter(keys, values, {"kind": made.__name__}, leave, plain, kind, strings)


def _type_of_keys(x: dict[Any, Any]) -> int:
    types, kinds = {*map(type, x)}, set()
    for one in types:
        if one is bool or not issubclass(one, (int, np.integer, str, bytes)):
            key = next(key for key in x if type(key) is one)
            remedy = TUPLES if isinstance(key, tuple) else "number them first"
            raise TypeError(f"keys of x must be integers, str or bytes, got {key!r:.80}; {remedy}")
        kinds.add(STR if issubclass(one, str) else BYTES if issubclass(one, bytes) else INTEGERS)
    if len(kinds) > 1:
        raise TypeError(f"keys of x must be of one type, got {' and '.join(NAMES[kind] for kind in sorted(kinds))}")
    return kinds.pop() if kinds else UNKNOWN


def _plain_string(key: str | bytes) -> str | bytes:
    """Return a key of a subclass, perhaps in another order, as plain str or bytes."""
    return str.__str__(key) if isinstance(key, str) else bytes.__getitem__(key, slice(None))


def _of_scipy(x: Any, scipy: Any) -> InputAdapter:
    shape, form = tuple(x.shape), x.format
    try:
        keys, values, indices = _entries_of_scipy(x, shape)
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"x must be a valid {type(x).__name__} of shape {shape}, got one in which {error}") from None
    words = list[int]()
    needs_long = (form != "coo" or len(keys) > 0) and any(not np.can_cast(each.dtype, np.int32) for each in indices)

    def leave(result: Entries) -> Any:
        # As in SciPy's own sums: indices of 64 bits if some rank has them, or needs them, and blocks of the first rank
        kind = np.int64 if any(word & 1 for word in words) else index_dtype(max(shape))
        coords = tuple(at.astype(kind, copy=False) for at in np.unravel_index(result.keys, shape))
        make = scipy.coo_array if isinstance(x, scipy.sparray) else scipy.coo_matrix
        found = make((result.values, coords), shape=shape)
        found.has_canonical_format = True
        found = found.tobsr((words[0] >> 1 & BLOCK, words[0] >> 32)) if form == "bsr" else found.asformat(form)
        if form in ("csr", "csc", "bsr", "dia"):  # SciPy has copied these, number by number
            found.data = canonical(found.data)
        return found if type(found) is type(x) else type(x)(found)

    adapter = checked(keys, _numbers(values), {"kind": f"scipy.sparse.{type(x).__name__}", "shape": shape}, leave)
    rows, columns = getattr(x, "blocksize", (0, 0))
    return replace(adapter, word=needs_long | rows << 1 | columns << 32, words=words)


def _entries_of_scipy(x: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, Sequence[np.ndarray]]:
    if x.format == "csr":  # keys of csr ascend as they are, as a rule
        keys = _keys_of_rows(x.indptr, x.indices, shape)
        return keys, x.data[: len(keys)], (x.indptr, x.indices)
    indices = [integers(getattr(x, name), name) for name in ("indptr", "indices", "offsets") if hasattr(x, name)]
    if x.format in ("csc", "bsr"):
        x = copy(x)  # a shallow one, for the check cuts off spare room
        x.check_format()
    if x.format == "dia" and len(x.offsets):
        _in_range(x.offsets + shape[0] - 1, sum(shape) - 1, "offsets, counted from the lowest diagonal,")
    if x.format == "lil" and [*map(len, x.rows)] != [*map(len, x.data)]:
        raise ValueError("rows and data differ in length")
    coo = x.tocoo()
    coords = getattr(coo, "coords", None) or (coo.row, coo.col)
    return _flattened(coords, shape), coo.data, indices or coords


def _of_torch(x: Any, torch: Any) -> InputAdapter:
    check_place(x, "x")
    shape = tuple(x.shape)
    if x.layout == torch.sparse_csr:
        if x.dim() != 2:
            raise ValueError(f"x must have two dimensions as a CSR tensor, got {x.dim()}; convert it with to_sparse()")
        keys, sparse = _keys_of_rows(x.crow_indices().numpy(), x.col_indices().numpy(), shape), shape
        values = x.values()[: len(keys)]
    else:
        sparse = shape[: x.sparse_dim()]
        keys, values = _flattened(tuple(x._indices().numpy()), sparse), x._values()  # coalescing would add duplicates
    if values.dtype == torch.bfloat16:
        raise TypeError("values of x must be of a type that NumPy has, got bfloat16; convert them with x.float()")

    def leave(result: Entries) -> Any:
        numbers = torch.from_numpy(np.ascontiguousarray(result.values))
        indices = torch.from_numpy(np.stack(np.unravel_index(result.keys, sparse)))
        made = torch.sparse_coo_tensor(indices, numbers, shape, is_coalesced=True, check_invariants=False)
        return made.to_sparse_csr() if x.layout == torch.sparse_csr else made

    facts = {"kind": str(x.layout), "shape": shape, "sparse dimensions": len(sparse)}
    return checked(keys, _numbers(values.detach().numpy()), facts, leave)


def _keys_of_rows(starts: np.ndarray, columns: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    _check_size(shape)
    starts, columns = integers(starts, "row pointers of x"), integers(columns, "columns of x")
    rows, counts = prod(shape[:-1]), np.diff(starts)
    if len(counts) != rows or starts[0] != 0 or (counts < 0).any() or starts[-1] > len(columns):
        expected = f"{rows + 1} that ascend from 0 to {len(columns)} at most"
        raise ValueError(f"row pointers of x must be {expected}, got {starts}")
    columns = _in_range(columns[: starts[-1]], shape[-1], "columns of x")
    return np.repeat(shape[-1] * np.arange(rows), counts) + columns


def _flattened(coords: tuple[np.ndarray, ...], shape: tuple[int, ...]) -> np.ndarray:
    _check_size(shape)
    found = [_in_range(integers(at, "indices of x"), d, "indices of x") for at, d in zip(coords, shape, strict=True)]
    if len({*map(len, found)}) > 1:
        raise ValueError(f"indices of x must be as many in each dimension, got {[*map(len, found)]}")
    return np.ravel_multi_index(found, shape) if len(found[0]) else np.empty(0, np.int64)


def _check_size(shape: tuple[int, ...]) -> None:
    if prod(shape) >= 1 << 63:
        raise ValueError(f"x must have fewer than 2^63 elements, zeros too, got shape {shape}; cut it in two")


def _in_range(keys: np.ndarray, size: int, what: str) -> np.ndarray:
    if len(keys) and not (0 <= keys.min() and keys.max() < size):
        raise ValueError(f"{what} must be in [0, {size}), got {keys.min()} to {keys.max()}")
    return keys.astype(np.int64, copy=False)


def checked(
    keys: np.ndarray, values: np.ndarray, facts: dict[str, Any], leave: Callable[[Entries], object]
) -> InputAdapter:
    if values.ndim < 1 or len(values) != len(keys):
        raise ValueError(f"x must have a value for each key, got {len(keys)} keys and values of shape {values.shape}")
    if 0 in values.shape[1:]:
        raise ValueError(f"values of x must have a size, got values of shape {values.shape[1:]} each")
    facts = facts | {"dtype": values.dtype, "values of shape": values.shape[1:]}
    return InputAdapter(keys, values, facts, leave)
