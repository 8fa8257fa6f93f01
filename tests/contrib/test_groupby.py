"""Frames whose rows are spread over ranks are grouped as all rows by their own library in one process."""

from __future__ import annotations

import decimal
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparse_mpi
from sparse_mpi import World
from sparse_mpi.contrib import groupby

DAYS = st.dates().map(np.datetime64)
TEXT = st.text("ab\0z\x7f\u00e9\ud7ff\uffff\U0001f600", max_size=3)  # NUL at the end, too
CITIES = pd.CategoricalDtype(["Rome", "Oslo", "Bonn"])
# What columns of keys have, by pandas' type; None is null where the type has nulls
KEYS = {
    "str": st.none() | TEXT,
    "object": st.none() | TEXT,
    "string": st.none() | TEXT,
    "int64": st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    "uint64": st.integers(0, 2**64 - 1) | st.integers(0, 2),
    "int8": st.integers(-128, 127),
    "Int32": st.none() | st.integers(-(2**31), 2**31 - 1),
    "float64": st.none() | st.sampled_from([-0.0, 0.0, 0.1, -1e300, 5e-324, float("inf"), float("-inf")]),
    "Float32": st.none() | st.sampled_from([0.0, 0.5, -(2.0**100), 2.0**-140]),
    "double[pyarrow]": st.none() | st.sampled_from([-1.5, 0.0, 0.1]),
    "bool": st.booleans(),
    "boolean": st.none() | st.booleans(),
    CITIES: st.none() | st.sampled_from(list(CITIES.categories)),
    pd.CategoricalDtype([30, 20, 10], ordered=True): st.none() | st.sampled_from([10, 20, 30]),
    "datetime64[s]": st.none() | DAYS,
    "datetime64[ns, Europe/Berlin]": st.none() | st.integers(0, 2**61),
    "timedelta64[us]": st.none() | st.integers(-(2**50), 2**50),
    "int16[pyarrow]": st.none() | st.integers(-3, 3),
    "string[pyarrow]": st.none() | TEXT,
    "bool[pyarrow]": st.none() | st.booleans(),
}
EIGHTHS = st.integers(-999, 999).map(lambda number: number / 8)  # sums of these are exact in any order
VALUES = {
    "int64": st.integers(-(2**59), 2**59),
    "uint64": st.integers(0, 2**60),
    "int8": st.integers(-128, 127),
    "uint8": st.integers(0, 255),
    "int32": st.integers(-(2**27), 2**27),  # polars adds them up as such
    "Int16": st.none() | st.integers(-(2**15), 2**15 - 1),
    "Int64": st.none() | st.integers(-9, 9),
    "int8[pyarrow]": st.none() | st.integers(-128, 127),
    "double[pyarrow]": st.none() | EIGHTHS,
    "bool": st.booleans(),
    "boolean": st.none() | st.booleans(),
    "float64": st.none() | EIGHTHS,
    "float32": st.none() | EIGHTHS,
    "Float64": st.none() | EIGHTHS,
    "complex128": EIGHTHS.map(lambda number: complex(number, -1)),
}


@st.composite
def tables(draw, keys, values):
    """Columns of keys, columns of values, and where the rows of 1 to 5 ranks end; some have none."""
    kinds = draw(st.lists(st.sampled_from([*keys]), min_size=1, max_size=3))
    sums = draw(st.lists(st.sampled_from([*values]), min_size=1, max_size=3))
    rows = draw(st.integers(0, 12))
    # Few of each, so that keys meet
    few = [draw(st.lists(keys[kind], min_size=1, max_size=3)) for kind in kinds]
    by = [draw(st.lists(st.sampled_from(each), min_size=rows, max_size=rows)) for each in few]
    added = [draw(st.lists(values[kind], min_size=rows, max_size=rows)) for kind in sums]
    ends = sorted(draw(st.lists(st.integers(0, rows), min_size=0, max_size=4)))
    by, added = list(zip(kinds, by, strict=True)), list(zip(sums, added, strict=True))
    return by, added, [slice(*pair) for pair in zip([0, *ends], [*ends, rows], strict=True)]


def grouped(frames, by, values, **options):
    def body(comm):
        return sparse_mpi.contrib.groupby_sum(frames[comm.rank], by, values, comm, **options)

    return World(len(frames)).run(body)


def names(by, added):
    return [f"key {place}" for place in range(len(by))], [f"sum {place}" for place in range(len(added))]


@given(tables(KEYS, VALUES), st.booleans())
def test_pandas_as_in_one_process(table, scatter):
    by, added, parts = table
    keys, sums = names(by, added)
    columns = {name: pd.Series(x, dtype=kind) for name, (kind, x) in zip(keys + sums, by + added, strict=True)}
    whole = pd.DataFrame({"other": np.arange(len(columns[keys[0]])), **columns})
    # Column by column: pandas widens narrow integers together that lie side by side in memory
    groups = whole.groupby(keys, as_index=False, observed=True)
    expected = groups[sums[:1]].sum().assign(**{name: groups[[name]].sum()[name] for name in sums})
    # Keys keep their types: of several, pandas makes new ones of what is object
    expected = expected.astype({name: kind for name, (kind, _) in zip(keys, by, strict=True) if kind == "object"})
    found = grouped([whole[part] for part in parts], keys, sums, scatter=scatter)
    for one in [pd.concat(found, ignore_index=True)] if scatter else found:
        pd.testing.assert_frame_equal(one, expected, check_exact=True)


def of_polars(kinds):
    """What polars has of these types, by its own type."""
    types = {"str": pl.String, "bool": pl.Boolean, CITIES: pl.Enum(list(CITIES.categories)), "int64": pl.Int64}
    types |= {"uint64": pl.UInt64, "int8": pl.Int8, "Int32": pl.Int32, "datetime64[s]": pl.Date, "int32": pl.Int32}
    types |= {"uint8": pl.UInt8, "Int16": pl.Int16, "float64": pl.Float64, "float32": pl.Float32, "Int64": pl.Int64}
    return {types[kind]: values for kind, values in kinds.items() if kind in types}


POLARS_KEYS = of_polars(KEYS) | {pl.Categorical: KEYS[CITIES], pl.Date: st.none() | st.dates()}
POLARS_KEYS |= {pl.Datetime("us", "UTC"): st.none() | st.datetimes(), pl.Duration("ms"): st.none() | st.timedeltas()}


@given(tables(POLARS_KEYS, of_polars(VALUES)), st.booleans())
def test_polars_as_in_one_process(table, scatter):
    by, added, parts = table
    keys, sums = names(by, added)
    columns = [pl.Series(name, x, dtype=kind) for name, (kind, x) in zip(keys + sums, by + added, strict=True)]
    whole = pl.DataFrame(columns)
    expected = whole.drop_nulls(keys).group_by(keys).agg(pl.col(sums).sum()).sort(keys)
    found = grouped([whole[part] for part in parts], keys, sums, scatter=scatter)
    for one in [pl.concat(found)] if scatter else found:
        assert one.schema == expected.schema and one.equals(expected)


ARROW_KEYS = {
    pa.string(): st.none() | TEXT,
    pa.large_string(): st.none() | TEXT,
    pa.dictionary(pa.int8(), pa.string()): st.none() | TEXT,
    pa.int64(): st.none() | KEYS["int64"],
    pa.uint64(): KEYS["uint64"],
    pa.int8(): KEYS["int8"],
    pa.bool_(): st.none() | st.booleans(),
    pa.float32(): KEYS["Float32"],
    pa.date32(): st.none() | st.dates(),
    pa.timestamp("us", "UTC"): st.none() | st.datetimes(),
    pa.time32("s"): st.none() | st.integers(0, 86399),
    pa.duration("ms"): st.integers(-9, 9),
}
ARROW_VALUES = {
    pa.int64(): st.none() | VALUES["int64"],
    pa.uint8(): VALUES["uint8"],
    pa.int16(): VALUES["Int16"],
    pa.bool_(): VALUES["boolean"],
    pa.float64(): st.none() | EIGHTHS,
    pa.float32(): st.none() | EIGHTHS,
}


@given(tables(ARROW_KEYS, ARROW_VALUES), st.booleans())
def test_arrow_as_in_one_process(table, scatter):
    by, added, parts = table
    keys, sums = names(by, added)
    whole = pa.table({name: pa.array(x, kind) for name, (kind, x) in zip(keys + sums, by + added, strict=True)})
    there = np.logical_and.reduce([whole[key].is_valid().to_numpy() for key in keys])
    expected = whole.filter(pa.array(there)).group_by(keys).aggregate([(name, "sum") for name in sums])
    expected = expected.rename_columns(keys + sums)
    order = sorted(range(len(expected)), key=lambda row: [expected[key][row].as_py() for key in keys])
    frames = [whole.slice(part.start, part.stop - part.start) for part in parts]
    found = grouped(frames, keys, sums, scatter=scatter)
    for one in [pa.concat_tables(found)] if scatter else found:
        assert one.schema.equals(expected.schema)
        assert one.to_pylist() == [expected.slice(row, 1).to_pylist()[0] for row in order]


@pytest.mark.parametrize("most", [1, 5])
def test_numbers_run_out_at_every_column(most, monkeypatch):
    monkeypatch.setattr(groupby, "MOST", most)
    whole = pd.DataFrame({"a": [*"xyxyz"], "b": [3, 2, 3, 1, 2], "c": [True, False, True, True, False], "n": 1})
    expected = whole.groupby([*"abc"], as_index=False).sum()
    for found in grouped([whole[:2], whole[2:]], [*"abc"], ["n"]):
        pd.testing.assert_frame_equal(found, expected)


def test_a_frame_is_left_as_it_was_and_labels_may_be_any():
    frame = pd.DataFrame({0: ["b", "a", "b"], "x": [1, 2, 3], "y": [0.5, None, 2]}, index=[7, 7, 9])
    before = frame.copy(deep=True)
    found = grouped([frame], 0, ("y", "x"))[0]
    pd.testing.assert_frame_equal(frame, before)
    pd.testing.assert_frame_equal(found, frame.groupby(0, as_index=False)[["y", "x"]].sum())


FRAME = {"city": ["Rome"], "day": [1], "kWh": [0.5]}
MISTAKES = {
    "a column that is not there": (FRAME, "cty", "kWh", ValueError, "by must name .* got 'cty'.*did you mean city"),
    "twice": (FRAME, ["city", "day"], "day", ValueError, "each column once, got 'day' twice"),
    "sums of strings": (
        FRAME,
        "day",
        "city",
        TypeError,
        "columns of bool or of numbers.*got 'city' of type",
    ),
}


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_on_one_rank_is_an_error_on_all_before_data_moves(make, mistake):
    columns, by, values, kind, text = MISTAKES[mistake]

    def body(comm):
        wrong = comm.rank == 1
        with pytest.raises(kind if wrong else ValueError, match=text):
            sparse_mpi.contrib.groupby_sum(make(columns), by if wrong else "city", values if wrong else "kWh", comm)
        return comm.traffic.sent

    assert World(3).run(body) == [0] * 3


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (pl.DataFrame(FRAME), "frame=pandas.DataFrame.*rank 1: frame=polars.DataFrame"),
        (pd.DataFrame(FRAME | {"day": [1.5]}), "column 'day'=int64.*rank 1: .*column 'day'=float64"),
        (pd.DataFrame({"city": []}), "rank 1: ValueError: values must name"),
        ({"city": ["Rome"]}, "rank 1: TypeError: frame must be a DataFrame of pandas or polars.*got dict"),
        (pl.LazyFrame(FRAME), "got LazyFrame; collect"),
        (pd.DataFrame(FRAME | {"city": pd.Categorical(["Rome"])}), "rank 1: .*CategoricalDtype.*of \\['Rome'\\]"),
    ],
    ids=["library", "type", "empty", "dict", "lazy", "category"],
)
def test_frames_that_differ_between_ranks(other, text):
    def body(comm):
        with pytest.raises((ValueError, TypeError)) as told:
            sparse_mpi.contrib.groupby_sum(other if comm.rank == 1 else pd.DataFrame(FRAME), "city", ["day"], comm)
        return str(told.value), comm.traffic.sent

    found = World(3).run(body)
    assert [sent for _, sent in found] == [0] * 3
    assert all(re.search(text, told, re.DOTALL) for told, _ in (found[0], found[2])), found[0]


def test_object_columns_that_hold_more_than_strings():
    with pytest.raises(TypeError, match="got 'k' of type object"):
        grouped([pd.DataFrame({"k": pd.Series(["a", 1], dtype=object), "n": 1})], "k", "n")


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("rows", [1, 3], ids=["over ranks", "on a rank"])
@pytest.mark.parametrize(
    "kind", ["int64", "uint64", "Int64", "int64[pyarrow]", pl.Int64, pl.UInt64, pl.Int32, pa.int64()]
)
def test_a_sum_beyond_its_type_is_an_error_on_all_ranks(kind, rows, scatter):
    most = (2**31 if kind is pl.Int32 else 2**64 if "u" in str(kind).lower() else 2**63) - 1

    def frame(*numbers):
        columns = {"k": [*range(len(numbers))] * rows, "n": list(numbers) * rows}
        if isinstance(kind, str):
            return pd.DataFrame(columns).astype({"n": kind})
        return (
            pl.DataFrame(columns, {"k": pl.Int8, "n": kind}) if not isinstance(kind, pa.DataType) else pa.table(columns)
        )

    def body(comm):
        good = sparse_mpi.contrib.groupby_sum(frame(*[most // 3 // rows] * comm.size), "k", "n", comm)
        with pytest.raises(ValueError, match="results of op='add' must be in"):
            sparse_mpi.contrib.groupby_sum(frame(0, most, 1), "k", "n", comm, scatter=scatter)
        return good["n"].to_numpy().tolist()

    assert World(3).run(body) == [[most // 3 // rows * rows * 3] * 3] * 3


class Own(pd.DataFrame):
    @property
    def _constructor(self):
        return Own


DAY = pd.Timestamp("2024-03-30")
MORE_KEYS = {
    "date32[pyarrow]": [DAY.date(), None, DAY.date()],
    "date64[pyarrow]": [DAY.date(), None, DAY.date()],
    "time32[s][pyarrow]": [DAY.time(), DAY.time(), None],
    "time64[us][pyarrow]": [DAY.time(), DAY.time(), None],
    "duration[ms][pyarrow]": [DAY - DAY, None, DAY - DAY],
    "timestamp[ns][pyarrow]": [DAY, None, DAY],
    "large_string[pyarrow]": ["b", None, "a"],
}
REFUSED = {
    "decimal": pd.Series([decimal.Decimal(1)] * 3, dtype=pd.ArrowDtype(pa.decimal128(5, 2))),
    "binary": pd.Series([b"a"] * 3, dtype=pd.ArrowDtype(pa.binary())),
    "big-endian": pd.Series(np.arange(3).astype(">i8")),
    "period": pd.Series(pd.period_range("2024", periods=3, freq="M")),
    "sparse": pd.Series(pd.arrays.SparseArray([1, 2, 1])),
    "complex": pd.Series([1.5j] * 3),
    "Int128": pl.Series([1, 2, 1], dtype=pl.Int128),
    "Decimal": pl.Series([1, 2, 1]).cast(pl.Decimal(9, 2)),
    "decimal256": pa.array([decimal.Decimal(1)] * 3, pa.decimal256(40, 2)),
    "interval": pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval()),
    "list": pa.array([[1]] * 3),
}
LOOKS = {
    "a subclass": Own,
    "a name of columns": lambda frame: frame.rename_axis(columns="what"),
    "a name of the index": lambda frame: frame.rename_axis(index="row"),
    "two levels": lambda frame: frame.set_axis(
        pd.MultiIndex.from_tuples([("k", ""), ("n", "x")], names=[*"ab"]), axis=1
    ),
    "dates": lambda frame: frame.set_axis(pd.to_datetime(["2024", "2025"]), axis=1),
    "numbers": lambda frame: frame.set_axis([1, 0], axis=1),
    "attributes": lambda frame: frame.set_flags(allows_duplicate_labels=False),
}


def as_pandas(frame, cut=1):
    """Check that two ranks get what pandas makes of the rows of both."""
    by, values = frame.columns[0], list(frame.columns[1:])
    expected = frame.groupby(by, as_index=False, observed=True)[values].sum()
    for found in grouped([frame[:cut], frame[cut:]], by, values):
        pd.testing.assert_frame_equal(found, expected)
        assert type(found) is type(expected) and found.flags == expected.flags


@pytest.mark.parametrize("kind", MORE_KEYS)
def test_keys_of_arrow_s_in_pandas(kind):
    as_pandas(pd.DataFrame({"k": pd.Series(MORE_KEYS[kind]).astype(kind), "n": [1, 2, 3]}))


@pytest.mark.parametrize("look", LOOKS)
def test_a_frame_of_pandas_looks_as_pandas_own_sum(look):
    as_pandas(LOOKS[look](pd.DataFrame({"k": ["b", "a", "b"], "n": [1, 2, 3]})))


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("rows", [0, 3])
def test_keys_that_are_refused_are_named(kind, rows):
    make = pd.DataFrame if isinstance(REFUSED[kind], pd.Series) else pl.DataFrame
    make = pa.table if isinstance(REFUSED[kind], pa.Array) else make

    def body(comm):
        with pytest.raises(TypeError, match="by must name columns of strings.*got 'k' of type|can group by ..k"):
            sparse_mpi.contrib.groupby_sum(make({"k": REFUSED[kind][:rows], "n": np.arange(rows)}), "k", "n", comm)
        return comm.traffic.sent

    assert World(2).run(body) == [0, 0]


@pytest.mark.parametrize("kind", [">f8", ">i4", "g", "m8[s]", "O"])
def test_sums_that_are_refused_are_named(kind):
    frame = pd.DataFrame({"k": [1, 2], "n": pd.Series(np.array([1, 2], kind))})
    with pytest.raises(TypeError, match="values must name columns of bool.*got 'n' of type "):
        grouped([frame, frame], "k", "n")


def test_float16_is_added_up_as_in_one_process():
    frame = pd.DataFrame({"k": [1, 2, 1, 3, 1], "n": np.array([1.5, 2, 3, 2048, 0.25], np.float16)})
    as_pandas(frame, 2)


@pytest.mark.parametrize(
    ("make", "kind", "column", "text"),
    [
        (pd.DataFrame, "f2", "k", "by must name .*'k' of type float16"),
        (pd.DataFrame, ">f8", "k", "by must name .*'k' of type >f8"),
        (pd.DataFrame, ">f8", "n", "values must name .*'n' of type >f8"),
        (pa.table, "f2", "k", "by must name .*'k' of type halffloat"),
        (pa.table, "f2", "n", "values must name .*'n' of type halffloat"),
    ],
)
def test_strange_floats_on_one_rank_are_named_on_all(make, kind, column, text):
    plain = {"k": [1.0, 2.0], "n": [1.0, 2.0]}

    def body(comm):
        columns = plain | {column: np.array([1, 2], kind)} if comm.rank == 1 else plain
        with pytest.raises((TypeError, ValueError), match=text):
            sparse_mpi.contrib.groupby_sum(make(columns), "k", "n", comm)
        return comm.traffic.sent

    assert World(3).run(body) == [0] * 3


SERIES = pd.Series([1, 2], pd.Index([1, 2], name="k"), name="n")
NO_FRAMES = {
    "a Series": (SERIES, r"got Series; frame.reset_index\(\)", SERIES.reset_index),
    "a Series of polars": (pl.Series("n", [1, 2]), r"got Series; frame.to_frame\(\)", None),
    "a batch": (
        pa.record_batch({"k": [1, 2], "n": [1, 2]}),
        "got RecordBatch; pyarrow.Table.from_batches",
        lambda: pa.Table.from_batches([pa.record_batch({"k": [1, 2], "n": [1, 2]})]),
    ),
}


@pytest.mark.parametrize("given", NO_FRAMES)
def test_what_is_no_frame_is_named_and_its_remedy_works(given):
    wrong, text, remedy = NO_FRAMES[given]

    def body(comm):
        with pytest.raises(TypeError, match=f"frame must be a DataFrame .*{text}"):
            sparse_mpi.contrib.groupby_sum(wrong, "k", "n", comm)
        if remedy is not None:
            assert sparse_mpi.contrib.groupby_sum(remedy(), "k", "n", comm)["n"].to_numpy().tolist() == [2, 4]

    World(2).run(body)


def test_a_series_is_no_sparse_data_but_its_index_and_values_are():
    series = pd.Series([1, 2], ["a", "b"])
    with pytest.raises(TypeError, match=r"x must be .*; of a Series give \(list\(x.index\), x.to_numpy\(\)\)"):
        World(1).run(lambda comm: sparse_mpi.allreduce(series, comm=comm))
    pair = list(series.index), series.to_numpy()
    keys, sums = World(2).run(lambda comm: sparse_mpi.allreduce(pair, comm=comm))[0]
    assert keys.tolist() == ["a", "b"] and sums.tolist() == [2, 4]
