"""Frames of pandas, polars and Arrow: their groups as keys and sums, and results as frames of the same library.

The caller has imported the frame's library, which groups each rank's rows, so that null values, narrow integers and
overflow are treated as without ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.checks import meant
from sparse_mpi.collectives.operations import check_exact, may_wrap

KINDS = "a DataFrame of pandas or polars, or a Table of pyarrow"
REMEDIES = (  # method of what is no frame, and what makes it one
    ("reset_index", "frame.reset_index() makes a DataFrame of a Series and its index"),
    ("to_frame", "frame.to_frame() makes a DataFrame of a Series"),
    ("collect", "collect() makes a DataFrame of a lazy one"),
    ("schema", "pyarrow.Table.from_batches([frame]) makes a Table of a RecordBatch"),
)
Names = list[Hashable]


class Strings(NamedTuple):
    """A column of strings."""

    codes: np.ndarray  #: (m,) the place of each among the distinct ones
    distinct: list[str]


Column = np.ndarray | Strings  # integers or bool, in whose order keys are, or strings


class _Groups(NamedTuple):
    """The groups of a rank's rows, in any order, without rows with a null in the key."""

    facts: dict[Any, object]  #: values that must be the same on all ranks, by name
    keys: list[Column]  #: ``(m,)`` each, by column
    sums: list[np.ndarray]  #: ``(m,)`` each
    narrow: list[np.dtype]  #: types of the sums if all of them fit
    leave: Callable[[list[Column], list[np.ndarray]], Any]  #: makes a frame of keys and sums


def grouped(frame: object, by: object, values: object) -> _Groups:
    """Return the groups of a frame of pandas, polars or Arrow by columns ``by``, and sums of the columns ``values``.

    Raises:
        TypeError: it is no such frame, or columns are of types that make no keys, or no sums.
        ValueError: no columns are named, the frame does not have each one once, or one is named twice.
    """
    found = ((name, kind, group, sys.modules.get(name)) for name, kind, group in LIBRARIES)
    for name, kind, group, library in found:
        if library is not None and isinstance(frame, getattr(library, kind, ())):
            there = list(getattr(frame, "column_names" if kind == "Table" else "columns"))
            keys, added = _names("by", by, there), _names("values", values, there)
            if twice := [one for one in dict.fromkeys(keys + added) if (keys + added).count(one) > 1]:
                raise ValueError(f"by and values must name each column once, got {twice[0]!r} twice")
            try:
                groups: _Groups = group(library, frame, keys, added)
            except (TypeError, ValueError):
                raise
            except Exception as error:  # error of the library's own kind
                what = f"frame must be one that {name} can group by {keys} to add up {added}"
                raise TypeError(f"{what}, got its error {type(error).__name__}: {error}") from error
            facts = {f"column {one!r}": fact for one, fact in groups.facts.items()}
            return groups._replace(
                facts={"frame": f"{name}.{type(frame).__qualname__}", "by": keys, "values": added} | facts
            )
    remedy = next(
        (text for name, text in REMEDIES if hasattr(frame, name)), "pandas.DataFrame or pyarrow.table make one"
    )
    raise TypeError(f"frame must be {KINDS}, got {type(frame).__name__}; {remedy}")


def _names(what: str, given: object, there: Names) -> Names:
    """Return a name or list of names as a list; raise unless ``there`` are columns of each name."""
    names = list(given) if isinstance(given, list) or isinstance(given, tuple) and not _times(given, there) else [given]
    if not names:
        raise ValueError(f"{what} must name at least one column, got none")
    for name in names:
        if (times := _times(name, there)) != 1:
            hint = f"; frame has {', '.join(map(str, there)) or 'none'}{meant(name, map(str, there))}"
            raise ValueError(f"{what} must name columns of frame, got {name!r}, which {times or 'none'} has{hint}")
    return names


def _times(name: object, there: Names) -> int:
    """Return the number of columns ``there`` of that name; an array as a name has none."""
    try:
        hash(name)
    except TypeError:
        return 0
    return there.count(name)


def _no_key(name: Hashable, dtype: object) -> TypeError:
    expected = "columns of strings, real numbers, bool, dates, times or categories"
    return TypeError(f"by must name {expected}, got {name!r} of type {dtype}; convert it, or number its values")


def _check_sums(dtypes: dict[Hashable, Any], are_numbers: Callable[[Any], bool]) -> None:
    for name, dtype in dtypes.items():
        if not are_numbers(dtype):
            expected = "columns of bool or of numbers that NumPy has"
            raise TypeError(f"values must name {expected}, got {name!r} of type {dtype}; convert it")


def _ordered(floats: np.ndarray) -> np.ndarray:
    """Return floats as integers in order, NaN last; both zeros are one."""
    return _flipped(np.where(np.isnan(floats), np.nan, floats + 0.0).view(np.int64))


def _flipped(bits: np.ndarray) -> np.ndarray:
    """Turn bits of float64 into integers in order, or back."""
    return bits ^ (bits >> 63 & np.iinfo(np.int64).max)


def _may_wrap(low: Any, high: Any, rows: int, kind: str) -> bool:
    """Tell if sums of ``rows`` integers of type ``kind`` in [low, high] may be outside the type; not if nulls alone."""
    try:
        return may_wrap(np.array([low, high], kind), np.add, rows)
    except (TypeError, ValueError):  # nulls alone
        return False


def _of_pandas(pd: Any, frame: Any, by: Names, values: Names) -> _Groups:
    types, dtypes = pd.api.types, {name: frame[name].dtype for name in by + values}
    # pandas would add up strings, too
    _check_sums({name: dtypes[name] for name in values}, lambda dtype: _plain(dtype).str in PANDAS_NUMBERS)

    def summed(frame: Any, names: Names) -> Any:
        return frame.groupby(by, sort=False, as_index=False, observed=True)[names].sum()

    def key(name: Hashable) -> Column:
        column, dtype, plain = part[name], dtypes[name], _plain(dtypes[name])
        if isinstance(dtype, pd.CategoricalDtype):
            return column.cat.codes.to_numpy()
        if isinstance(dtype, pd.ArrowDtype):
            return _key_of_arrow(sys.modules["pyarrow"], name, dtype.pyarrow_dtype, column.array.__arrow_array__())
        if plain.kind in "biu":
            return column.to_numpy(plain)
        if plain.kind == "f":
            return _ordered(column.to_numpy(np.float64))
        if types.is_datetime64_any_dtype(dtype) or types.is_timedelta64_dtype(dtype):
            return column.astype("int64").to_numpy()
        codes, distinct = column.factorize()
        is_text = types.is_object_dtype(dtype) or isinstance(dtype, pd.StringDtype)
        if not is_text or not all(isinstance(one, str) for one in distinct):
            raise _no_key(name, dtype)
        return Strings(codes, distinct.tolist())

    # pandas groups by no float16
    strange = [name for name in by if (plain := _plain(dtypes[name])) == np.float16 or not plain.isnative]
    if strange:
        raise _no_key(strange[0], dtypes[strange[0]])
    part = summed(frame, values)
    sums = [part[name].to_numpy(_plain(part[name].dtype)) for name in values]
    sums = [column.astype(f"{column.dtype.kind}8") if column.dtype.kind in "iu" else column for column in sums]
    for name, column in zip(values, sums, strict=True):
        if column.dtype.kind in "iu" and _may_wrap(frame[name].min(), frame[name].max(), len(frame), column.dtype.str):
            floats = summed(frame.astype({name: "Float64"}), [name])[name]
            check_exact(column, floats.to_numpy(np.float64), np.add)
    results = [_types_of_sums(dtypes[name]) for name in values]

    def leave(keys: list[Column], sums: list[np.ndarray]) -> Any:
        made = part.reindex(pd.RangeIndex(len(sums[0])))  # frame of its class, with its names of columns
        for place, (name, column) in enumerate(zip(by, keys, strict=True)):
            dtype = dtypes[name]
            if isinstance(dtype, pd.ArrowDtype):
                found = dtype.__from_arrow__(_arrow_of_key(sys.modules["pyarrow"], column, dtype.pyarrow_dtype))
            elif isinstance(column, Strings):
                found = pd.Series(column.distinct, dtype=dtype).take(column.codes).reset_index(drop=True)
            elif _plain(dtype).kind == "f":
                found = pd.Series(_flipped(column).view(np.float64), dtype=dtype)
            elif isinstance(dtype, pd.CategoricalDtype):
                found = pd.Categorical.from_codes(column, dtype=dtype)
            else:  # numbers of times are of their own unit to NumPy, which not every pandas takes them for
                found = pd.Series(column.astype(dtype) if isinstance(dtype, np.dtype) else column, dtype=dtype)
            made.isetitem(place, found)
        for place, ((narrow, wide), column) in enumerate(zip(results, sums, strict=True), len(by)):
            made.isetitem(place, pd.Series(column, dtype=narrow if column.dtype == _plain(narrow) else wide))
        return made

    def told(dtype: Any) -> str:
        is_category = isinstance(dtype, pd.CategoricalDtype)
        return f"{dtype!r} of {list(dtype.categories)}" if is_category else str(dtype)

    facts: dict[Any, object] = {name: told(dtype) for name, dtype in dtypes.items()}
    narrow = [_plain(narrow) for narrow, _ in results]
    return _Groups(facts, [key(name) for name in by], sums, narrow, leave)


@lru_cache(maxsize=64)
def _types_of_sums(dtype: Any) -> tuple[Any, Any]:
    """Return the dtypes of a group sum that fits the column's dtype, and of one that does not."""
    pd, plain = sys.modules["pandas"], _plain(dtype)
    most = np.iinfo(plain).max if plain.kind in "iu" else 1
    tried: Any = (pd.Series([most] * rows, dtype=dtype) for rows in (1, 2))
    small, large = (column.groupby(np.zeros(len(column), int)).sum().dtype for column in tried)
    return small, large


def _plain(dtype: Any) -> np.dtype:
    """Return NumPy's type for the numbers of a pandas type, object for others."""
    plain = getattr(dtype, "numpy_dtype", dtype)
    return plain if isinstance(plain, np.dtype) else np.dtype(object)


def _of_polars(pl: Any, frame: Any, by: Names, values: Names) -> _Groups:
    _check_sums({name: frame.schema[name] for name in values}, lambda dtype: str(dtype) in POLARS_NUMBERS)
    part = frame.select(by + values).drop_nulls(by).group_by(by, maintain_order=True).agg(pl.col(values).sum())
    for name in values:
        dtype, column = part[name].to_numpy().dtype, frame[name]
        if dtype.kind in "iu" and _may_wrap(column.min(), column.max(), len(column), dtype.str):
            floats = pl.col(name).cast(pl.Float64).sum()
            found = frame.select(by + [name]).drop_nulls(by).group_by(by, maintain_order=True).agg(floats)
            check_exact(part[name].to_numpy(), found[name].to_numpy(), np.add)

    def key(name: Hashable) -> Column:
        column, dtype = part[name], part.schema[name]
        if str(dtype) in POLARS_NUMBERS:
            return _ordered(column.cast(pl.Float64).to_numpy()) if dtype.is_float() else column.to_numpy()
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
            elif dtype.is_float() and name in by:
                column = _flipped(column).view(np.float64)
            made.append(pl.Series(name, column).cast(dtype))
        return pl.DataFrame(made)

    sums = [part[name].to_numpy() for name in values]
    facts: dict[Any, object] = {name: str(frame.schema[name]) for name in by + values}
    return _Groups(facts, [key(name) for name in by], sums, [column.dtype for column in sums], leave)


def _of_arrow(pa: Any, frame: Any, by: Names, values: Names) -> _Groups:
    types, table = pa.types, frame.select(by + values).unify_dictionaries()
    # Columns are named by their places, because Arrow derives the names of sums from them.
    places = [*map(str, range(len(by + values)))]
    keys, added, table = places[: len(by)], places[len(by) :], table.rename_columns(places)
    numbers = (types.is_integer, types.is_float32, types.is_float64, types.is_boolean)  # Arrow adds up no halffloat
    _check_sums({name: frame[name].type for name in values}, lambda dtype: any(is_one(dtype) for is_one in numbers))
    there = np.logical_and.reduce([table[place].is_valid().to_numpy() for place in keys])
    wanted = [(place, what) for what in ("sum", "count") for place in added]
    part = table.filter(pa.array(there)).group_by(keys, use_threads=False).aggregate(wanted)

    for place in added:
        dtype, ends = part[f"{place}_sum"].type, sys.modules["pyarrow.compute"].min_max(table[place]).as_py()
        if types.is_integer(dtype) and _may_wrap(ends["min"], ends["max"], len(table), str(dtype)):
            rows = table.set_column(table.column_names.index(place), place, table[place].cast(pa.float64(), safe=False))
            floats = rows.filter(pa.array(there)).group_by(keys, use_threads=False).aggregate([(place, "sum")])
            found, exact = (column[f"{place}_sum"].fill_null(0).to_numpy() for column in (part, floats))
            check_exact(found, exact, np.add)

    def leave(keys: list[Column], sums: list[np.ndarray]) -> Any:
        made = [_arrow_of_key(pa, column, table[place].type) for place, column in zip(places, keys, strict=False)]
        for column, count in zip(sums[: len(values)], sums[len(values) :], strict=True):
            made.append(pa.array(column, mask=count == 0))  # no sum of nulls alone
        return pa.table(made, names=by + values)

    sums = [part[f"{place}_sum"].fill_null(0).to_numpy() for place in added]
    sums += [part[f"{place}_count"].to_numpy() for place in added]
    facts: dict[Any, object] = {name: str(table[place].type) for name, place in zip(by + values, places, strict=True)}
    columns = [_key_of_arrow(pa, name, table[place].type, part[place]) for name, place in zip(by, keys, strict=True)]
    return _Groups(facts, columns, sums, [column.dtype for column in sums], leave)


def _key_of_arrow(pa: Any, name: Hashable, dtype: Any, column: Any) -> Column:
    types = pa.types
    if types.is_integer(dtype) or types.is_boolean(dtype):
        return column.to_numpy(zero_copy_only=False)
    if types.is_float32(dtype) or types.is_float64(dtype):
        return _ordered(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    if types.is_temporal(dtype) and not types.is_interval(dtype):
        return column.cast(pa.int32() if dtype.bit_width == 32 else pa.int64()).to_numpy(zero_copy_only=False)
    if str(dtype.value_type if types.is_dictionary(dtype) else dtype) not in ARROW_STRINGS:
        raise _no_key(name, dtype)
    encoded = column.dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return Strings(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())


def _arrow_of_key(pa: Any, column: Column, dtype: Any) -> Any:
    if isinstance(column, Strings):
        return pa.array(column.distinct, dtype).take(pa.array(column.codes))
    return pa.array(_flipped(column).view(np.float64) if pa.types.is_floating(dtype) else column).cast(dtype)


PANDAS_NUMBERS = tuple(np.dtype(kind).str for kind in "? b h i q B H I Q e f d F D".split())  # this byte order only
POLARS_NUMBERS = ("Boolean", *(f"{kind}{8 * width}" for kind in ("Int", "UInt") for width in (1, 2, 4, 8)))
POLARS_NUMBERS += ("Float32", "Float64")
ARROW_STRINGS = ("string", "large_string")
LIBRARIES = (  # name of the module and of its class, and the function that groups it
    ("pandas", "DataFrame", _of_pandas),
    ("polars", "DataFrame", _of_polars),
    ("pyarrow", "Table", _of_arrow),
)
