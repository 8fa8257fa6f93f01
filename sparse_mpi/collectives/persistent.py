"""Persistent collectives: keys are exchanged once, and then every round moves values only.

Set-up gives each key an owner, which learns the ranks that give a value for it and those that need the result. In a
round ranks send values to the owners, in the order of their keys, and the owners send back results, in the order of the
needed keys.
"""

from __future__ import annotations

from contextlib import nullcontext
from operator import index
from typing import Any

import numpy as np

from sparse_mpi.algorithms.quantiles import pooled
from sparse_mpi.arrays import to_host
from sparse_mpi.checks import check_choice, converted
from sparse_mpi.collectives.device import HostInput, to_host_input
from sparse_mpi.collectives.dictionary import Dictionary
from sparse_mpi.collectives.entries import Entries, Runs, canonical
from sparse_mpi.collectives.kinds import NUMBERS, here, integers_or_strings
from sparse_mpi.collectives.messages import Format
from sparse_mpi.collectives.operations import WRAPPING, check_exact, may_wrap, named, operation
from sparse_mpi.collectives.ownership import SAMPLES, counts_by_region, regions_of
from sparse_mpi.collectives.strings import NAMES, STRINGS, UNKNOWN, StringKeys, Text, ordered, type_of_all
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import Handle, in_turn, progress_thread_of
from sparse_mpi.comm.consistency import same_on_all_ranks

ALWAYS, FIRST = "always", "first"


def allreduce_init(
    keys: Any,
    needed: Any = None,
    op: str | np.ufunc = "sum",
    comm: Any = None,
    *,
    dtype: Any = None,
    shape: tuple[int, ...] = (),
    validate: str = ALWAYS,
) -> PersistentAllreduce:
    """Set up an allreduce of values with the same keys in every round. Collective.

    Args:
        keys: ``(m,)`` integers, for which this rank will have values; distinct, in any order. Or strings, all str or
            all bytes, in an array or a list.
        needed: ``(r,)`` keys of the results that this rank wants, in any order, possibly repeated; keys without a value
            on any rank get zeros. None: ``keys``. Integers may be CuPy arrays or tensors on a CUDA device.
        op: operation, see `allreduce`; values are combined in rank order.
        comm: mpi4py communicator, process group or `Comm`; None: all ranks of the job, see `as_comm`.
        dtype: type of the values; None: the first round's, the same on all ranks.
        shape: shape of each value, () for numbers.
        validate: ``"always"`` has ranks agree in every round that all have good values, or raise together; ``"first"``
            only in the first round: later a rank with bad values raises alone, and others wait.

    Returns:
        A request; its `start` and `wait` are a round.

    Raises:
        TypeError, ValueError: bad arguments, or op, dtype or shape differ between ranks; raised on every rank.
    """
    transport = as_comm(comm)
    given_keys, asked = to_host_input(keys, array=True), to_host_input(needed, array=True)

    def work() -> PersistentAllreduce:
        agreement = same_on_all_ranks(transport, 1)
        with agreement as say:
            number = (
                None if dtype is None else converted("dtype", "a dtype of NumPy", np.dtype, dtype).newbyteorder("=")
            )
            trailing = converted("shape", "whole numbers", lambda some: tuple(map(index, some)), shape)
            if (number is not None and number.kind not in "biufc") or 0 in trailing:
                raise TypeError(f"dtype must be of numbers, and shape of at least one, got {number} and {trailing}")
            of = named(op)
            ufunc = operation(of, number)
            (mine, kind), strings = _vector(given_keys.read(), "keys"), list[Text]()
            wanted, other = (mine, kind) if needed is None else _vector(asked.read(), "needed")
            if UNKNOWN not in (kind, other) and kind != other:
                raise TypeError(f"needed must be {NAMES[kind]} as keys are, got {NAMES[other]}")
            kind = max(kind, other)
            if kind in STRINGS:
                strings, places = ordered([*mine.tolist(), *wanted.tolist()])
                mine, wanted = np.split(places, [len(mine)])
            if len(np.unique(mine)) != len(mine):
                raise ValueError(f"keys must be distinct, got {len(mine)} with {len(np.unique(mine))} distinct ones")
            check_choice("validate", validate, (ALWAYS, FIRST))
            say(op=getattr(of, "__name__", of), dtype=number, shape=trailing, validate=validate)
            agreement.words[0] = kind
        kind = type_of_all(agreement.rows[:, 0], kind, transport)
        if kind in STRINGS:
            numbers = Dictionary(strings, StringKeys(kind), transport).numbers
            mine, wanted = numbers[mine], numbers[wanted]
        return PersistentAllreduce(mine, wanted, ufunc, number, trailing, transport, validate)

    return in_turn(transport, work)


class PersistentAllreduce:
    """A reusable request of `allreduce_init`; `found` ``(r,)`` is a mask of needed keys with a value."""

    def __init__(
        self,
        keys: np.ndarray,
        needed: np.ndarray,
        op: np.ufunc,
        dtype: np.dtype | None,
        shape: tuple[int, ...],
        comm: Comm,
        validate: str,
    ) -> None:
        self._validate, self._rounds = validate, 0
        self._comm, self._op, self._dtype, self._shape = comm, op, dtype, shape
        self._origin = "in the first round" if dtype is None else "dtype= of allreduce_init says"
        self._started: tuple[Handle[np.ndarray], HostInput] | None = None  # a round, and its values
        self._order = np.argsort(keys, kind="stable")
        sought, self._places = np.unique(needed, return_inverse=True)
        # Owners: regions with about equally many of all keys, given or needed. All ranks send them their keys.
        pool = pooled(np.union1d(keys, sought), SAMPLES, comm)
        regions, form = regions_of(pool, comm.size), Format(np.dtype(np.bool_), (), pool.span)
        self._given, given = _told(_flags(keys[self._order]), regions, form, comm)
        _, asked = _told(_flags(sought), regions, form, comm)
        self._come = np.array([len(part) for part in given])
        self._runs = Runs(np.concatenate(given))
        # Needed keys with a value: their place in the result, and the number for each rank.
        there = [np.isin(part, self._runs.keys) for part in asked]
        present = [part[mask] for part, mask in zip(asked, there, strict=True)]
        self._answers, self._asked = np.array([len(part) for part in present]), np.concatenate(present)
        self._asked = np.searchsorted(self._runs.keys, self._asked)
        told, _ = comm.alltoallv(np.concatenate(there), np.array([len(part) for part in asked]))
        self._got = np.flatnonzero(told)
        self._sought = len(sought)
        self.found: np.ndarray = told[self._places]
        self._wanted = np.diff(np.append(np.searchsorted(sought[self._got], regions[:, 0]), len(self._got)))

    def start(self, values: object) -> None:
        """Begin a round with this rank's ``values`` ``(m, ...)``, in the order of its keys. Collective.

        The round runs in the background if the transport allows. Until `wait` has returned, ``values`` must not change;
        other reductions over the communicator wait their turn, which must be the same on all ranks. Values on a device,
        on all ranks or none, are copied to host memory here, and may change afterwards.
        """
        if self._started is not None:
            raise RuntimeError("a round must be waited for before the next one starts; call wait()")
        source = to_host_input(values, array=True)
        self._started = progress_thread_of(self._comm).start(lambda: self._round(source)), source

    def wait(self) -> Any:
        """Return the results ``(r, ...)`` of the round, in the order of the needed keys; zeros where none is `found`.

        They are in the memory of the values; wrong dtypes and shapes raise on every rank.
        """
        if self._started is None:
            raise RuntimeError("a round must be started before it is waited for; call start(values)")
        (handle, source), self._started = self._started, None
        return source.back(handle.wait())

    def _round(self, source: HostInput) -> np.ndarray:
        checked, agreement = self._validate == ALWAYS or self._rounds == 0, same_on_all_ranks(self._comm)
        if checked:
            with agreement as say:
                say(memory=source.memory)
                first = self._good(source.read())
                operation(self._op, first.dtype)
                say(dtype=first.dtype)
                agreement.flag = self._op in WRAPPING and may_wrap(first, self._op, self._comm.size)
        self._rounds += 1
        mine = self._good(source.read())
        self._dtype = mine.dtype
        received = to_host(self._comm.alltoallv(mine[self._order], self._given, self._come)[0])
        results = self._runs.combined(received, self._op)
        with same_on_all_ranks(self._comm) if agreement.flag else nullcontext():
            if self._op in WRAPPING and may_wrap(received, self._op, self._comm.size):
                with np.errstate(all="ignore"):
                    check_exact(results, self._runs.combined(received.astype(np.float64), self._op), self._op)
        answers, _ = self._comm.alltoallv(results[self._asked], self._answers, self._wanted)
        result = np.zeros((self._sought, *self._shape), self._dtype)
        result[self._got] = answers
        return canonical(result[self._places])

    def _good(self, values: object) -> np.ndarray:
        mine, expected = here(values, "values"), (len(self._order), *self._shape)
        got = mine.dtype.newbyteorder("=")
        if got.kind not in "biufc":
            raise TypeError(f"values must be {NUMBERS}, got dtype {got}; convert them first")
        if self._dtype is not None and got != self._dtype:
            remedy = f"convert them by astype({str(self._dtype)!r}), or set up a request with dtype={str(got)!r}"
            raise TypeError(f"values must be {self._dtype}, as {self._origin}, got {got}; {remedy}")
        if mine.shape != expected:
            raise ValueError(f"values must have shape {expected}, a value for each key, got {mine.shape}")
        return mine.astype(got, copy=False)


def _flags(keys: np.ndarray) -> Entries:
    return Entries(keys, np.ones(len(keys), bool))


def _told(entries: Entries, regions: np.ndarray, form: Format, comm: Comm) -> tuple[np.ndarray, list[np.ndarray]]:
    counts = counts_by_region(entries, regions)
    received, lengths = comm.alltoallv(*form.pack(entries, counts, regions))
    own = np.tile(regions[comm.rank], (comm.size, 1))
    return counts, [part.keys for part in form.unpack(received, lengths, own)]


def _vector(keys: object, argument: str) -> tuple[np.ndarray, int]:
    found, kind = integers_or_strings(keys, argument)
    if kind in STRINGS:
        return found, kind
    if found.dtype.newbyteorder("=") == np.uint64 and (found >> np.uint64(63)).any():
        raise TypeError(f"{argument} must be a vector of integers below 2^63, got {found.max()}")
    return found.astype(np.int64), kind
