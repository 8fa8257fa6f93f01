"""`allreduce`, `reduce`, `reduce_scatter` and `allgather` of data that is sparse already."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from sparse_mpi.checks import present
from sparse_mpi.collectives import inline
from sparse_mpi.collectives.algorithms import ALGORITHMS, gathered, owned
from sparse_mpi.collectives.choice import INLINE, USUAL, Choice, choose, inlined
from sparse_mpi.collectives.device import to_host_input
from sparse_mpi.collectives.entries import Entries, merged_runs, nonzero, parted
from sparse_mpi.collectives.inputs import AUTO, Ready, ready
from sparse_mpi.collectives.network import Network, fit_network
from sparse_mpi.collectives.ownership import part_of, regions_of
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import in_turn
from sparse_mpi.wire import BitPacked

T = TypeVar("T")
NO_KEYS = (0, -1)  # range of no keys


def allreduce(
    x: T,
    op: str | np.ufunc = "sum",
    comm: object = None,
    *,
    algorithm: str = AUTO,
    zeros: str = "keep",
    network: Network | str = USUAL,
    tell: Callable[[Choice], None] | None = None,
    wire: str | BitPacked | None = None,
) -> T:
    """Combine the values that ranks have for the same keys; return all results on every rank. Collective.

    Args:
        x: sparse data: a `SparseVector`; a scipy.sparse array or matrix of any format and shape; a torch.sparse COO
            tensor, also with dense dimensions, or CSR tensor; a pair of arrays ``(keys, values)``, values perhaps with
            a trailing shape; a dict or Counter; an `Adaptable`, for example the `histogram_entries` of
            `sparse_mpi.contrib`. The same kind, shape and dtype on all ranks; numbers of dicts may differ and become
            the type that holds all. Entries of one key are combined first; x is not modified. Keys of pairs and dicts
            are integers, or strings: all str or all bytes, in NumPy arrays of type U or S, in host memory. Keys of
            pairs may have 128 bits: an array (m, 2) of integers in host memory.
        op: ``"sum"``, ``"prod"``, ``"min"``, ``"max"``, ``"and"``, ``"or"``, ``"xor"`` (bitwise; of bool logical), or a
            NumPy ufunc of two arguments that is associative and commutative and preserves the dtype. As in NumPy, sums
            of bool are "or", and NaN makes a minimum or maximum NaN. A missing key is no zero.
        comm: mpi4py communicator, process group or `Comm`; None: all ranks of the job, see `as_comm`.
        algorithm: ``"split"``, ``"doubling"``, ``"gather"``, or ``"auto"``, the fastest expected on ``network``.
            `split` and `gather` combine in rank order, ``((x0 + x1) + x2) + ...``, bit for bit; `doubling` in the order
            of a tree.
        zeros: ``"keep"`` entries of the result that are exactly zero, or ``"drop"`` them.
        network: latency and bandwidth, for ``"auto"``: a `Network`, by default 10 Gbit/s and 5 us, or ``"fitted"``,
            which measures them in the first call on a communicator: the next run may take another algorithm then.
        tell: called with the `Choice` of ``"auto"``.
        wire: the format of values, by name or as an instance: None or ``"packed"`` unrounded; ``"packed+bf16"``,
            ``"packed+fp16"``, ``"packed+int8"``, ``"packed+int4"`` or ``"packed+int2"`` rounded, of float32 and float64
            only. Values are rounded before they are combined, and results once more; rounding errors are lost. See
            docs/guides/sparse.md.

    Returns:
        The same kind as x, on the same device, in the order of its keys and without duplicates; the same bytes on every
        rank. Keys may be negative; a matrix's are in the order of its rows, strings in Python's order.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank, before any
            data moves. ValueError on every rank, too, if a sum or product of integers overflows their type.
    """
    transport = as_comm(comm)
    source = to_host_input(x)

    def work() -> object:
        call = ready(source, op, transport, zeros, algorithm, network=network, wire=wire, tell=tell)
        pool, chosen, choice = call.pool, algorithm, None
        if algorithm == AUTO:
            if call.few is not None:
                choice = inlined(pool)
            else:  # only now is it worth to know the network
                choice = choose(pool, call.form, network if isinstance(network, Network) else fit_network(transport))
            chosen = choice.algorithm

        def run(call: Ready) -> Entries:
            if call.few is not None and chosen == INLINE:
                return merged_runs(call.few[0], call.op)
            return ALGORITHMS[chosen](call.entries, call.op, pool, call.form, transport)

        result = call.exact(run, transport)
        if algorithm == AUTO:
            inline.expect(transport, call.words, apart=2 * len(result.keys) >= pool.counts.sum())
        left = call.leave([_finished(result, call.entries, zeros)], call.everywhere)[0]
        if tell is not None and choice is not None:  # tell may raise: no rank waits for this one any more
            tell(choice)
        return left

    return source.back(in_turn(transport, work))


def reduce_scatter(
    x: T, op: str | np.ufunc = "sum", comm: object = None, *, zeros: str = "keep", wire: str | BitPacked | None = None
) -> T:
    """Combine as `allreduce`, in rank order, and return to each rank the entries of a range of keys. Collective.

    Ranges ascend with ranks, and hold about equally many entries. Results do not travel, so no ``wire`` rounds them.
    See `allreduce` for arguments and errors.
    """
    transport = as_comm(comm)
    source = to_host_input(x)

    def work() -> object:
        call = ready(source, op, transport, zeros, wire=wire)
        regions = regions_of(call.pool, transport.size)
        own = call.exact(lambda call: _own(call, regions, transport), transport)
        return call.leave([_finished(own, call.entries, zeros)], regions)[0]

    return source.back(in_turn(transport, work))


def reduce(
    x: T,
    root: int = 0,
    op: str | np.ufunc = "sum",
    comm: object = None,
    *,
    zeros: str = "keep",
    wire: str | BitPacked | None = None,
) -> T | None:
    """Combine as `allreduce`, in rank order, and return the result on ``root``; None elsewhere. Collective."""
    transport = as_comm(comm)
    source = to_host_input(x)

    def work() -> object:
        call = ready(source, op, transport, zeros, root=root, wire=wire)
        rank, size, form = transport.rank, transport.size, call.form
        if call.few is None:
            regions = regions_of(call.pool, size)
            own = call.exact(lambda call: _own(call, regions, transport), transport)
            message, lengths = form.pack(own, np.array([len(own.keys)]), regions[rank : rank + 1])
            received, lengths = transport.alltoallv(message, lengths * (np.arange(size) == root))
            found = form.unpacked(received, lengths, regions)[0]  # all of them on the root
        else:
            found = call.exact(lambda call: merged_runs(present(call.few, "they are few")[0], call.op), transport)
        results = [_finished(found, call.entries, zeros)] if rank == root else []
        wanted = np.where(np.arange(size)[:, None] == root, call.everywhere, NO_KEYS)
        return next(iter(call.leave(results, wanted)), None)

    result = in_turn(transport, work)
    return result if result is None else source.back(result)


def allgather(x: T, comm: object = None, *, wire: str | BitPacked | None = None) -> list[T]:
    """Return every rank's entries, in rank order, duplicates added up; see `allreduce`. Collective."""
    transport = as_comm(comm)
    source = to_host_input(x)

    def work() -> list[object]:
        call = ready(source, "sum", transport, "keep", wire=wire)
        _, entries, pool, form, few, *_ = call
        parts = parted(*(gathered(entries, pool, form, transport) if few is None else few))
        return call.leave(parts, call.everywhere)

    return [source.back(part) for part in in_turn(transport, work)]


def _own(call: Ready, regions: np.ndarray, comm: Comm) -> Entries:
    if call.few is None:
        return owned(call.entries, call.op, regions, call.form, comm)
    return part_of(merged_runs(call.few[0], call.op), regions, comm.rank)


def _finished(result: Entries, given: Entries, zeros: str) -> Entries:
    if zeros == "drop":
        return nonzero(result)
    shared = any(map(np.may_share_memory, result, given))
    return Entries(result.keys.copy(), result.values.copy()) if shared else result
