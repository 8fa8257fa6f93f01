"""Group-by of frames spread over ranks: each adds up its own rows, then equal keys of all ranks meet.

A message has each key as one integer. All ranks number the values of strings, and of other columns if need be, in
order, and several columns' numbers make one as digits do: without checksums different keys stay different.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial, reduce
from typing import NamedTuple, TypeVar

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_switch
from sparse_mpi.collectives.calls import allreduce, reduce_scatter
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import in_turn
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.contrib.frames import Column, Strings, grouped

F = TypeVar("F")
MOST = 1 << 63  # numbers that keys may have


class Numbers(NamedTuple):
    """Keys as integers, in key order."""

    codes: np.ndarray  # (m,) of any integer type
    span: int  # one more than the largest that a rank may have, where they are numbered from 0
    columns: Callable[[np.ndarray], list[Column]]  # returns the values behind some codes, by column


def groupby_sum(
    frame: F,
    by: Hashable | Sequence[Hashable],
    values: Hashable | Sequence[Hashable],
    comm: object = None,
    *,
    scatter: bool = False,
) -> F:
    """Add up columns of a frame with rows spread over ranks, for each key. Collective.

    It is the sum of ``pandas.concat(frames).groupby(by, as_index=False, observed=True)[values].sum()``, and the same in
    polars and Arrow. Rows with a null in their key are left out. For means add a column of ones.

    Args:
        frame: the rows of this rank, perhaps none: a pandas DataFrame, polars DataFrame or pyarrow Table, with columns
            of the same types on all ranks (of categories the same ones, too). It is not modified.
        by: a column, or a list, the key: strings, real numbers, bool, dates, times or categories.
        values: a column, or a list, of numbers or bool. Nulls are left out.
        comm: mpi4py communicator, process group or `Comm`; None: all ranks of the job, see `as_comm`.
        scatter: return to each rank the groups of a range of keys, as `reduce_scatter` does; ranges ascend with ranks.

    Returns:
        A frame of the same library with the columns ``by`` and ``values``, a row for each key, in the order of keys
        (categories of pandas and an Enum of polars in their own, others by their texts): the same on all ranks, unless
        they ``scatter``. Keys keep their types. Sums have the library's own types, each column by itself.
        Floating-point numbers are added up on each rank as the library does it, and then in the order of ranks: equal
        to one process's sums where nothing is rounded, and to rounding elsewhere.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank, before any
            data moves. ValueError on every rank, too, where a sum of integers is outside of its type.
    """
    transport = as_comm(comm)

    def work() -> F:
        with same_on_all_ranks(transport) as say:
            check_switch("scatter", scatter)
            groups = grouped(frame, by, values)
            say(**groups.facts, scatter=scatter)
        numbers = _of_all(groups.keys, transport)
        order = np.argsort(numbers.codes, kind="stable")
        keys: np.ndarray = numbers.codes[order]
        sums = [column[order] for column in groups.sums]
        # Columns of one type travel together.
        exchange, found = reduce_scatter if scatter else allreduce, keys
        for dtype in dict.fromkeys(column.dtype for column in groups.sums):
            at = [place for place, column in enumerate(groups.sums) if column.dtype == dtype]
            found, added = exchange((keys, np.stack([sums[place] for place in at], axis=1)), comm=transport)
            for place, column in zip(at, added.T, strict=True):
                sums[place] = np.ascontiguousarray(column)
        # A column is narrow where all of its sums, on all ranks, fit.
        wide: Array = np.array([not _holds(*pair) for pair in zip(groups.narrow, sums, strict=True)], np.int64)
        if scatter:
            wide = transport.allreduce(wide, "max", control=True)
        sums = [s if stays else s.astype(narrow) for s, stays, narrow in zip(sums, wide, groups.narrow, strict=True)]
        return groups.leave(numbers.columns(found), sums)

    return in_turn(transport, work)


def _holds(dtype: np.dtype, sums: np.ndarray) -> bool:
    """Tell if a type holds all sums, of the same or a wider type."""
    if dtype == sums.dtype or not len(sums):
        return True
    return bool(np.iinfo(dtype).min <= sums.min() and sums.max() <= np.iinfo(dtype).max)


def _of_all(columns: list[Column], comm: Comm) -> Numbers:
    """Return this rank's keys of these columns. Collective, unless they are one column of integers."""
    if len(columns) == 1 and not isinstance(columns[0], Strings) and columns[0].dtype != bool:
        return Numbers(columns[0], MOST, lambda codes: [codes])
    return reduce(partial(_beside, comm=comm), [_of_column(column, comm) for column in columns])


def _of_column(column: Column, comm: Comm) -> Numbers:
    """Return a column's values as places among all ranks' values. Collective."""
    if isinstance(column, Strings):
        strings = list(allreduce(dict.fromkeys(column.distinct, True), "or", comm))
        place = dict(zip(strings, range(len(strings)), strict=True))
        places = np.fromiter(map(place.__getitem__, column.distinct), np.int64, len(column.distinct))
        return Numbers(places[column.codes], len(strings), lambda codes: [Strings(codes, strings)])
    if column.dtype == bool:
        return Numbers(column.astype(np.int64), 2, lambda codes: [codes.astype(bool)])
    return _of_integers(Numbers(column, MOST, lambda codes: [codes]), comm)


def _of_integers(numbers: Numbers, comm: Comm) -> Numbers:
    """Return keys as places among all ranks' keys. Collective."""
    keys, _ = allreduce((numbers.codes, np.ones(len(numbers.codes), bool)), "or", comm)
    return Numbers(np.searchsorted(keys, numbers.codes), len(keys), lambda codes: numbers.columns(keys[codes]))


def _beside(left: Numbers, right: Numbers, comm: Comm) -> Numbers:
    """Return keys of the columns of both, ordered by the left first. Collective where numbers run out."""
    if left.span * right.span >= MOST:
        left = _of_integers(left, comm)
    span = right.span
    return Numbers(
        left.codes * span + right.codes,
        left.span * span,
        lambda codes: [*left.columns(codes // span), *right.columns(codes % span)],
    )
