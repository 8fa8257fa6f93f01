"""Frames of pandas, polars and Arrow: their groups as keys and sums, and results as frames of the same library.

None of them is imported here: whoever gives a frame has imported its library. Each groups the rows of its rank by
itself, so that values that are null, narrow integers and overflow are what they are without ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.arrays import describe
from sparse_mpi.checks import meant

KINDS = "a DataFrame of pandas or polars, or a Table of pyarrow"
Names = list[Hashable]


class Strings(NamedTuple):
    """A column of strings."""

    codes: np.ndarray  #: (m,) the place of each among the distinct ones
    distinct: list[str]


Column = np.ndarray | Strings  # integers or bool, in whose order keys are, or strings


class Groups(NamedTuple):
    """The groups of the rows of a rank, in any order, without those in whose key is a null."""

    facts: dict[Any, object]  #: what must be the same on all ranks, by name
    keys: list[Column]  #: ``(m,)`` each, by column
    sums: list[np.ndarray]  #: ``(m,)`` each
    narrow: list[np.dtype]  #: of each of them, the type that all of its sums become where it holds them
    leave: Callable[[list[Column], list[np.ndarray]], Any]  #: makes a frame of keys and sums


def grouped(frame: object, by: object, values: object) -> Groups:
    """Return the groups of a frame of pandas, polars or Arrow by columns ``by``, and sums of the columns ``values``.

    Raises:
        TypeError: it is no such frame, or columns are of types that make no keys, or no sums.
        ValueError: no columns are named, it does not have each of them once, or one is named twice.
    """
    found = ((name, kind, group, sys.modules.get(name)) for name, kind, group in LIBRARIES)
    for name, kind, group, library in found:
        if library is not None and isinstance(frame, getattr(library, kind, ())):
            there = list(getattr(frame, "column_names" if kind == "Table" else "columns"))
            keys, added = _names("by", by, there), _names("values", values, there)
            if twice := [one for one in dict.fromkeys(keys + added) if (keys + added).count(one) > 1]:
                raise ValueError(f"by and values must name each column once, got {twice[0]!r} twice")
            groups: Groups = group(library, frame, keys, added)
            facts = {f"column {one!r}": fact for one, fact in groups.facts.items()}
            return groups._replace(facts={"frame": f"{name}.{kind}", "by": keys, "values": added} | facts)
    raise TypeError(f"frame must be {KINDS}, got {describe(frame)}; collect() one that is lazy")


def _names(what: str, given: object, there: Names) -> Names:
    """Return a name, or a list of them, as a list; raise unless ``there`` are columns of each of these names."""
    names = list(given) if isinstance(given, (list, tuple)) else [given]
    if not names:
        raise ValueError(f"{what} must name at least one column, got none")
    for name in names:
        if (times := there.count(name)) != 1:
            hint = f"; frame has {', '.join(map(str, there)) or 'none'}{meant(name, map(str, there))}"
            raise ValueError(f"{what} must name columns of frame, got {name!r}, which {times or 'none'} has{hint}")
    return names


def _no_key(name: Hashable, dtype: object) -> TypeError:
    """Return the error about a column that makes no keys."""
    expected = "columns of strings, integers, bool, dates, times or categories"
    return TypeError(f"by must name {expected}, got {name!r} of type {dtype}; convert it, or number what it has")


def _check_sums(dtypes: dict[Hashable, Any], are_numbers: Callable[[Any], bool]) -> None:
    """Raise unless columns of these types make sums."""
    for name, dtype in dtypes.items():
        if not are_numbers(dtype):
            expected = "columns of bool or of numbers that NumPy has"
            raise TypeError(f"values must name {expected}, got {name!r} of type {dtype}; convert it")


def _of_pandas(pd: Any, frame: Any, by: Names, values: Names) -> Groups:
    types, dtypes = pd.api.types, {name: frame[name].dtype for name in by + values}
    # pandas would add up strings, too
    _check_sums({name: dtypes[name] for name in values}, lambda dtype: _plain(dtype).kind in "biufc")
    part = frame.groupby(by, sort=False, as_index=False, observed=True)[values].sum()

    def key(name: Hashable) -> Column:
        column, dtype = part[name], dtypes[name]
        if isinstance(dtype, pd.CategoricalDtype):
            return column.cat.codes.to_numpy()
        if types.is_bool_dtype(dtype) or types.is_integer_dtype(dtype):
            return column.to_numpy(_plain(dtype))
        if types.is_datetime64_any_dtype(dtype) or types.is_timedelta64_dtype(dtype):
            return column.astype("int64").to_numpy()
        codes, distinct = column.factorize()
        return _strings(name, dtype, codes, distinct.tolist())

    def sums(name: Hashable) -> np.ndarray:
        found = part[name].to_numpy(_plain(part[name].dtype))
        return found.astype(f"{found.dtype.kind}8") if found.dtype.kind in "iu" else found

    results = [_types_of_sums(dtypes[name]) for name in values]

    def leave(keys: list[Column], sums: list[np.ndarray]) -> Any:
        made = {}
        for name, column in zip(by, keys, strict=True):
            if isinstance(column, Strings):
                made[name] = pd.Series(column.distinct, dtype=dtypes[name]).take(column.codes).reset_index(drop=True)
            elif isinstance(dtypes[name], pd.CategoricalDtype):
                made[name] = pd.Categorical.from_codes(column, dtype=dtypes[name])
            else:  # numbers of times are of their own unit to NumPy, which not every pandas takes them for
                is_plain = isinstance(dtypes[name], np.dtype)
                made[name] = pd.Series(column.astype(dtypes[name]) if is_plain else column, dtype=dtypes[name])
        for name, (narrow, wide), column in zip(values, results, sums, strict=True):
            made[name] = pd.Series(column, dtype=narrow if column.dtype == _plain(narrow) else wide)
        return pd.DataFrame(made)

    def told(dtype: Any) -> str:
        is_category = isinstance(dtype, pd.CategoricalDtype)
        return f"{dtype!r} of {list(dtype.categories)}" if is_category else str(dtype)

    facts: dict[Any, object] = {name: told(dtype) for name, dtype in dtypes.items()}
    narrow = [_plain(narrow) for narrow, _ in results]
    return Groups(facts, [key(name) for name in by], [sums(name) for name in values], narrow, leave)


@lru_cache(maxsize=64)
def _types_of_sums(dtype: Any) -> tuple[Any, Any]:
    """Return the types that pandas gives to sums which the type of a column holds, and to others: it widens these."""
    pd, plain = sys.modules["pandas"], _plain(dtype)
    most = np.iinfo(plain).max if plain.kind in "iu" else 1
    tried: Any = (pd.Series([most] * rows, dtype=dtype) for rows in (1, 2))
    small, large = (column.groupby(np.zeros(len(column), int)).sum().dtype for column in tried)
    return small, large


def _plain(dtype: Any) -> np.dtype:
    """Return NumPy's type for the numbers of a type of pandas, object for what is none."""
    plain = getattr(dtype, "numpy_dtype", dtype)
    return plain if isinstance(plain, np.dtype) else np.dtype(object)


def _strings(name: Hashable, dtype: object, codes: np.ndarray, distinct: list[Any]) -> Strings:
    """Return a column of strings; raise unless they are that."""
    if not all(isinstance(one, str) for one in distinct):
        raise _no_key(name, dtype)
    return Strings(codes, distinct)


def _of_polars(pl: Any, frame: Any, by: Names, values: Names) -> Groups:
    _check_sums({name: frame.schema[name] for name in values}, lambda dtype: str(dtype) in POLARS_NUMBERS)
    part = frame.select(by + values).drop_nulls(by).group_by(by).agg(pl.col(values).sum())

    def key(name: Hashable) -> Column:
        column, dtype = part[name], part.schema[name]
        if dtype.is_integer() or dtype == pl.Boolean:
            return column.to_numpy()
        if dtype.is_temporal() or dtype == pl.Enum:
            return column.to_physical().to_numpy()
        if dtype not in (pl.String, pl.Categorical):
            raise _no_key(name, dtype)
        strings = column.cast(pl.String)
        return Strings(strings.rank("dense").to_numpy() - 1, strings.unique().sort().to_list())

    def leave(keys: list[Column], sums: list[np.ndarray]) -> Any:
        made = []
        for name, column in zip(by + values, [*keys, *sums], strict=True):
            dtype = part.schema[name]
            if isinstance(column, Strings):
                column = pl.Series(column.distinct, dtype=pl.String).gather(column.codes)
            elif dtype == pl.Enum:
                column = dtype.categories.gather(column)
            made.append(pl.Series(name, column).cast(dtype))
        return pl.DataFrame(made)

    sums = [part[name].to_numpy() for name in values]
    facts: dict[Any, object] = {name: str(frame.schema[name]) for name in by + values}
    return Groups(facts, [key(name) for name in by], sums, [column.dtype for column in sums], leave)


def _of_arrow(pa: Any, frame: Any, by: Names, values: Names) -> Groups:
    types, table = pa.types, frame.select(by + values).unify_dictionaries()
    # Columns are named by their places, because Arrow makes the names of sums of those.
    places = [*map(str, range(len(by + values)))]
    keys, added, table = places[: len(by)], places[len(by) :], table.rename_columns(places)
    numbers = (types.is_integer, types.is_floating, types.is_boolean)
    _check_sums({name: frame[name].type for name in values}, lambda dtype: any(is_one(dtype) for is_one in numbers))
    there = np.logical_and.reduce([table[place].is_valid().to_numpy() for place in keys])
    wanted = [(place, what) for what in ("sum", "count") for place in added]
    part = table.filter(pa.array(there)).group_by(keys, use_threads=False).aggregate(wanted)

    def key(name: Hashable, place: str) -> Column:
        column, dtype = part[place], table[place].type
        if types.is_integer(dtype) or types.is_boolean(dtype):
            return column.to_numpy()
        if types.is_temporal(dtype):
            return column.cast(pa.int32() if dtype.bit_width == 32 else pa.int64()).to_numpy()
        encoded = column.dictionary_encode().combine_chunks()
        return _strings(name, dtype, encoded.indices.to_numpy(), encoded.dictionary.to_pylist())

    def leave(keys: list[Column], sums: list[np.ndarray]) -> Any:
        made = []
        for place, column in zip(places, keys, strict=False):
            dtype = table[place].type
            if isinstance(column, Strings):
                made.append(pa.array(column.distinct, dtype).take(pa.array(column.codes)))
            else:
                made.append(pa.array(column).cast(dtype))
        for column, count in zip(sums[: len(values)], sums[len(values) :], strict=True):
            made.append(pa.array(column, mask=count == 0))  # no sum of nulls alone
        return pa.table(made, names=by + values)

    sums = [part[f"{place}_sum"].fill_null(0).to_numpy() for place in added]
    sums += [part[f"{place}_count"].to_numpy() for place in added]
    facts: dict[Any, object] = {name: str(table[place].type) for name, place in zip(by + values, places, strict=True)}
    return Groups(facts, [*map(key, by, keys)], sums, [column.dtype for column in sums], leave)


POLARS_NUMBERS = ("Boolean", *(f"{kind}{8 * width}" for kind in ("Int", "UInt") for width in (1, 2, 4, 8)))
POLARS_NUMBERS += ("Float32", "Float64")
LIBRARIES = (  # by the name of the module, and of its class
    ("pandas", "DataFrame", _of_pandas),
    ("polars", "DataFrame", _of_polars),
    ("pyarrow", "Table", _of_arrow),
)
