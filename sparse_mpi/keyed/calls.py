"""`allreduce`, `reduce`, `reduce_scatter` and `allgather` of data that is sparse already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.quantiles import Pool
from sparse_mpi.costs.model import Network
from sparse_mpi.keyed.algorithms import ALGORITHMS, gathered, owned
from sparse_mpi.keyed.choice import USUAL, Choice, choose
from sparse_mpi.keyed.entries import Entries, combined, joined, nonzero
from sparse_mpi.keyed.kinds import Held, held
from sparse_mpi.keyed.messages import Format
from sparse_mpi.keyed.operations import operation
from sparse_mpi.keyed.ownership import pooled, regions_of
from sparse_mpi.keyed.turns import in_turn, together

AUTO = "auto"
ZEROS = ("keep", "drop")


def allreduce(
    x: Any,
    op: str | np.ufunc = "sum",
    comm: Any = None,
    *,
    algorithm: str = AUTO,
    zeros: str = "keep",
    network: Network = USUAL,
    tell: Callable[[Choice], None] | None = None,
) -> Any:
    """Combine the values that ranks have for the same keys, and return all of them on every rank. Collective.

    Args:
        x: sparse data: a `SparseVector`; a scipy.sparse array or matrix of any format and shape; a torch.sparse COO
            tensor, also with dense dimensions, or CSR tensor; a pair of arrays ``(keys, values)``, whose values may
            have a trailing shape; a dict or Counter of integers. The same kind, shape and dtype on all ranks, but that
            dicts may have other numbers: then all become the type that holds them. An entry that occurs more than once
            is combined first. x is not modified.
        op: ``"sum"``, ``"prod"``, ``"min"``, ``"max"``, ``"and"``, ``"or"``, ``"xor"`` (bitwise; of bool logical), or a
            NumPy ufunc of two arguments that is associative and commutative and keeps the dtype. As in NumPy, integers
            wrap around, sums of bool are "or", and NaN makes a minimum or maximum NaN. Keys that a rank lacks are not
            combined: they are no zeros.
        comm: mpi4py communicator or `Comm`; ``MPI.COMM_WORLD`` if None.
        algorithm: ``"split"``, ``"doubling"``, ``"gather"``, or ``"auto"``, which takes the one that should be done
            first on ``network``. `split` and `gather` combine in rank order, ``((x0 + x1) + x2) + ...``, so
            that sums of floating-point numbers have the bits of that; `doubling` in the order of a tree.
        zeros: ``"keep"`` entries of the result that are exactly zero, or ``"drop"`` them.
        network: latency and bandwidth, for ``"auto"``: 10 Gbit/s and 5 us unless told.
        tell: called with the `Choice` of ``"auto"``, to learn what was chosen and why.

    Returns:
        The same kind as x, in the order of its keys and without duplicates; the same bytes on every rank. Keys may be
        negative; those of a matrix are in the order of its rows.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank, before any
            data moves.
    """
    transport = as_comm(comm)

    def work() -> Any:
        mine, ufunc = _agreed(x, op, transport, zeros, algorithm)
        with together(transport):
            entries, pool, form = _prepared(mine, ufunc, transport)
            chosen = algorithm
            if algorithm == AUTO:
                choice = choose(pool, form, network)
                chosen = choice.algorithm
                if tell is not None:
                    tell(choice)
            return mine.leave(_finished(ALGORITHMS[chosen](entries, ufunc, pool, form, transport), zeros))

    return in_turn(transport, work)


def reduce_scatter(x: Any, op: str | np.ufunc = "sum", comm: Any = None, *, zeros: str = "keep") -> Any:
    """Combine as `allreduce` does, in rank order, and return to each rank the entries of a range of keys. Collective.

    Ranges ascend with the ranks, and are such that each holds about as many of all ranks' entries. See `allreduce` for
    arguments and errors.
    """
    transport = as_comm(comm)

    def work() -> Any:
        mine, ufunc = _agreed(x, op, transport, zeros)
        with together(transport):
            entries, pool, form = _prepared(mine, ufunc, transport)
            return mine.leave(
                _finished(owned(entries, ufunc, regions_of(pool, transport.size), form, transport), zeros)
            )

    return in_turn(transport, work)


def reduce(x: Any, root: int = 0, op: str | np.ufunc = "sum", comm: Any = None, *, zeros: str = "keep") -> Any:
    """Combine as `allreduce` does, in rank order, and return the result on ``root``; None elsewhere. Collective.

    See `allreduce` for the other arguments and errors.
    """
    transport = as_comm(comm)

    def work() -> Any:
        mine, ufunc = _agreed(x, op, transport, zeros, root=root)
        with together(transport):
            entries, pool, form = _prepared(mine, ufunc, transport)
            rank, regions = transport.rank, regions_of(pool, transport.size)
            own = owned(entries, ufunc, regions, form, transport)
            message, lengths = form.pack(own, np.array([len(own.keys)]), regions[rank : rank + 1])
            received, lengths = transport.alltoallv(message, lengths * (np.arange(transport.size) == root))
            if rank != root:
                return None
            return mine.leave(_finished(joined(form.unpack(received, lengths, regions)), zeros))

    return in_turn(transport, work)


def allgather(x: Any, comm: Any = None) -> list[Any]:
    """Return what every rank holds, in rank order, each without duplicates, which are added up. Collective.

    See `allreduce` for the arguments and errors.
    """
    transport = as_comm(comm)

    def work() -> list[Any]:
        mine, ufunc = _agreed(x, "sum", transport, "keep")
        with together(transport):
            entries, pool, form = _prepared(mine, ufunc, transport)
            return [mine.leave(part) for part in gathered(entries, pool, form, transport)]

    return in_turn(transport, work)


def _agreed(
    x: Any, op: Any, transport: Comm, zeros: str, algorithm: str = AUTO, root: int = 0
) -> tuple[Held, np.ufunc]:
    """Return what this rank holds, and the operation, once all ranks have good and equal arguments."""
    with same_on_all_ranks(transport) as say:
        mine = held(x)
        if zeros not in ZEROS:
            raise ValueError(f"zeros must be {' or '.join(map(repr, ZEROS))}, got {zeros!r}")
        if algorithm not in (AUTO, *ALGORITHMS):
            raise ValueError(f"algorithm must be one of {', '.join((AUTO, *ALGORITHMS))}, got {algorithm!r}")
        if not isinstance(root, (int, np.integer)) or not 0 <= root < transport.size:
            raise ValueError(f"root must be a rank in [0, {transport.size}), got {root!r}")
        if mine.plain is None:
            operation(op, mine.values.dtype)
        say(**mine.facts, op=getattr(op, "__name__", op), zeros=zeros, algorithm=algorithm, root=root)
    if mine.plain is not None:
        needed = transport.allreduce(np.array([mine.plain]), "max", control=True)
        mine = mine.as_plain(int(needed[0]))
    return mine, operation(op, mine.values.dtype)


def _prepared(mine: Held, ufunc: np.ufunc, comm: Comm) -> tuple[Entries, Pool, Format]:
    """Return this rank's entries, what is known of all ranks', and the format of messages."""
    entries = combined(mine.keys, mine.values, ufunc)
    pool = pooled(entries, comm)
    return entries, pool, Format(entries.values.dtype, entries.values.shape[1:], pool.span)


def _finished(result: Entries, zeros: str) -> Entries:
    """Return the result as it is wanted."""
    return nonzero(result) if zeros == "drop" else result
