"""`allreduce`, `reduce`, `reduce_scatter` and `allgather` of data that is sparse already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.costs.model import Network
from sparse_mpi.keyed.algorithms import ALGORITHMS, gathered, owned
from sparse_mpi.keyed.choice import USUAL, Choice, choose
from sparse_mpi.keyed.device import Given, given
from sparse_mpi.keyed.entries import Entries, combined, joined, nonzero
from sparse_mpi.keyed.kinds import Held, held
from sparse_mpi.keyed.messages import Format
from sparse_mpi.keyed.operations import operation
from sparse_mpi.keyed.ownership import Pool, pooled, regions_of
from sparse_mpi.keyed.turns import in_turn, together
from sparse_mpi.keyed.wires import codec_of
from sparse_mpi.wire import BitPacked
from sparse_mpi.wire.codecs import Codec

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
    wire: str | BitPacked | None = None,
) -> Any:
    """Combine the values that ranks have for the same keys, and return all of them on every rank. Collective.

    Args:
        x: sparse data: a `SparseVector`; a scipy.sparse array or matrix of any format and shape; a torch.sparse COO
            tensor, also with dense dimensions, or CSR tensor; a pair of arrays ``(keys, values)``, whose values may
            have a trailing shape; a dict or Counter of integers. The same kind, shape and dtype on all ranks, but that
            dicts may have other numbers: then all become the type that holds them. An entry that occurs more than once
            is combined first. x is not modified. On a device: COO, CSR and CSC matrices of cupyx.scipy.sparse, a
            `SparseVector` or a pair of CuPy arrays or CUDA tensors, torch.sparse tensors. These are copied to host
            memory, where all else is done, and results to the device: once each way, on the current stream, for which
            the host waits before data leaves. Either all ranks have theirs on a device, or none has.
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
        wire: how values travel, by name or as an instance: None or ``"packed"`` as they are; ``"packed+bf16"``,
            ``"packed+fp16"`` or ``"packed+int8"`` rounded, of float32 and float64 only. Values are rounded on their
            way to where they are combined, and results on their way back (by `gather` values only, by `doubling` what
            is sent in each round). What rounding loses is not kept: x is still the caller's. See docs/sparse.md.

    Returns:
        The same kind as x, on the same device, in the order of its keys and without duplicates; the same bytes on every
        rank. Keys may be negative; those of a matrix are in the order of its rows.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank, before any
            data moves.
    """
    transport = as_comm(comm)
    source = _given(x, transport)

    def work() -> Any:
        mine, ufunc, codec = _agreed(source, op, transport, zeros, algorithm, wire=wire)
        with together(transport):
            entries, pool, form = _prepared(mine, ufunc, codec, transport)
            chosen = algorithm
            if algorithm == AUTO:
                choice = choose(pool, form, network)
                chosen = choice.algorithm
                if tell is not None:
                    tell(choice)
            return mine.leave(_finished(ALGORITHMS[chosen](entries, ufunc, pool, form, transport), zeros))

    return source.back(in_turn(transport, work))


def reduce_scatter(
    x: Any, op: str | np.ufunc = "sum", comm: Any = None, *, zeros: str = "keep", wire: str | BitPacked | None = None
) -> Any:
    """Combine as `allreduce` does, in rank order, and return to each rank the entries of a range of keys. Collective.

    Ranges ascend with the ranks, and are such that each holds about as many of all ranks' entries. Results do not
    travel, so that no ``wire`` rounds them. See `allreduce` for arguments and errors.
    """
    transport = as_comm(comm)
    source = _given(x, transport)

    def work() -> Any:
        mine, ufunc, codec = _agreed(source, op, transport, zeros, wire=wire)
        with together(transport):
            entries, pool, form = _prepared(mine, ufunc, codec, transport)
            return mine.leave(
                _finished(owned(entries, ufunc, regions_of(pool, transport.size), form, transport), zeros)
            )

    return source.back(in_turn(transport, work))


def reduce(
    x: Any,
    root: int = 0,
    op: str | np.ufunc = "sum",
    comm: Any = None,
    *,
    zeros: str = "keep",
    wire: str | BitPacked | None = None,
) -> Any:
    """Combine as `allreduce` does, in rank order, and return the result on ``root``; None elsewhere. Collective.

    See `allreduce` for the other arguments and errors.
    """
    transport = as_comm(comm)
    source = _given(x, transport)

    def work() -> Any:
        mine, ufunc, codec = _agreed(source, op, transport, zeros, root=root, wire=wire)
        with together(transport):
            entries, pool, form = _prepared(mine, ufunc, codec, transport)
            rank, regions = transport.rank, regions_of(pool, transport.size)
            own = owned(entries, ufunc, regions, form, transport)
            message, lengths = form.pack(own, np.array([len(own.keys)]), regions[rank : rank + 1])
            received, lengths = transport.alltoallv(message, lengths * (np.arange(transport.size) == root))
            if rank != root:
                return None
            return mine.leave(_finished(joined(form.unpack(received, lengths, regions)), zeros))

    result = in_turn(transport, work)
    return result if result is None else source.back(result)


def allgather(x: Any, comm: Any = None, *, wire: str | BitPacked | None = None) -> list[Any]:
    """Return what every rank holds, in rank order, each without duplicates, which are added up. Collective.

    See `allreduce` for the arguments and errors.
    """
    transport = as_comm(comm)
    source = _given(x, transport)

    def work() -> list[Any]:
        mine, ufunc, codec = _agreed(source, "sum", transport, "keep", wire=wire)
        with together(transport):
            entries, pool, form = _prepared(mine, ufunc, codec, transport)
            return [mine.leave(part) for part in gathered(entries, pool, form, transport)]

    return [source.back(part) for part in in_turn(transport, work)]


def _given(x: Any, comm: Comm) -> Given:
    """Return what this rank has, in host memory; for the thread that calls, on whose streams a device works."""
    with together(comm):
        return given(x)


def _agreed(
    source: Given, op: Any, transport: Comm, zeros: str, algorithm: str = AUTO, root: int = 0, wire: Any = None
) -> tuple[Held, np.ufunc, Codec]:
    """Return what this rank holds, the operation and the codec, once all ranks have good and equal arguments."""
    with same_on_all_ranks(transport) as say:
        mine = held(source.host)
        if zeros not in ZEROS:
            raise ValueError(f"zeros must be {' or '.join(map(repr, ZEROS))}, got {zeros!r}")
        if algorithm not in (AUTO, *ALGORITHMS):
            raise ValueError(f"algorithm must be one of {', '.join((AUTO, *ALGORITHMS))}, got {algorithm!r}")
        if not isinstance(root, (int, np.integer)) or not 0 <= root < transport.size:
            raise ValueError(f"root must be a rank in [0, {transport.size}), got {root!r}")
        if mine.plain is None:
            codec_of(wire, operation(op, mine.values.dtype), mine.values.dtype)
        say(
            memory=source.memory,
            **mine.facts,
            op=getattr(op, "__name__", op),
            zeros=zeros,
            algorithm=algorithm,
            root=root,
            wire=wire,
        )
    if mine.plain is not None:
        needed = transport.allreduce(np.array([mine.plain]), "max", control=True)
        mine = mine.as_plain(int(needed[0]))
    ufunc = operation(op, mine.values.dtype)
    return mine, ufunc, codec_of(wire, ufunc, mine.values.dtype)


def _prepared(mine: Held, ufunc: np.ufunc, codec: Codec, comm: Comm) -> tuple[Entries, Pool, Format]:
    """Return this rank's entries, what is known of all ranks', and the format of messages."""
    entries = combined(mine.keys, mine.values, ufunc)
    pool = pooled(entries, comm)
    return entries, pool, Format(entries.values.dtype, entries.values.shape[1:], pool.span, codec)


def _finished(result: Entries, zeros: str) -> Entries:
    """Return the result as it is wanted."""
    return nonzero(result) if zeros == "drop" else result
