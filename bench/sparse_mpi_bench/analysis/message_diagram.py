"""A step of a few ranks on a short vector, exchange by exchange: who sends which entries to whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.comm.buffers import row_bytes
from sparse_mpi.reduction.arguments import algorithm_spelled
from sparse_mpi.sparse import SparseVector
from sparse_mpi_bench.analysis.gradients import Gradients
from sparse_mpi_bench.analysis.recording import RecordedCall, Step, watched

BARE = ("topka", "gtopk", "oktopk")  # algorithms whose messages are pairs of index and value, and nothing else


class Message(NamedTuple):
    source: int
    dest: int
    bytes: int
    entries: list[int] | None  # indices; None where the message has something else too


class MessageRound(NamedTuple):
    where: str  # file and function, for example "gtopk.climb"
    name: str  # name of the method of `Comm`
    messages: list[Message]  # none of a sum, or of an `allgather` of a few numbers
    told: int  # bytes of a rank's numbers in it


class MessageDiagram(NamedTuple):
    algorithm: str
    gradients: np.ndarray  # (P, n)
    exchanges: list[MessageRound]
    result: np.ndarray  # (n,)


def watch(name: str, made: Gradients, ranks: int, density: float, step: int) -> MessageDiagram:
    def see(step: Step) -> tuple[list[RecordedCall], np.ndarray, np.ndarray]:
        result = step.total.to_dense() if isinstance(step.total, SparseVector) else step.total
        return list(step.comm.record), step.gradient, np.asarray(result)

    seen = watched(algorithm_spelled(name), made, ranks, step, see, keep=True, density=density)
    records, gradients, results = zip(*(steps[-1] for steps in seen), strict=True)
    return MessageDiagram(name, np.stack(gradients), exchanges(records, name in BARE), results[0])


def exchanges(records: Sequence[Sequence[RecordedCall]], bare: bool) -> list[MessageRound]:
    """Return the exchanges of a step of which rank i recorded ``records[i]``; only ``bare`` messages have indices."""
    pending = [deque(calls) for calls in records]
    found = []
    while any(pending):
        if all(calls and calls[0].name != "sendrecv" for calls in pending):
            found.append(_collective([calls.popleft() for calls in pending]))
        else:
            found += _pairs(pending)
    if bare:
        return found
    return [each._replace(messages=[message._replace(entries=None) for message in each.messages]) for each in found]


def _collective(calls: Sequence[RecordedCall]) -> MessageRound:
    first, everyone = calls[0], range(len(calls))
    messages: list[Message] = []
    if first.name in ("alltoallv", "alltoall"):
        messages = [message for rank, call in enumerate(calls) for message in _parts(rank, call, len(calls))]
    elif first.name == "allgatherv":
        messages = [_message(rank, dest, call.sent) for rank, call in enumerate(calls) for dest in everyone]
    elif first.name == "bcast":
        messages = [_message(first.root, dest, calls[first.root].sent) for dest in everyone]
    return MessageRound(first.where, first.name, messages, 0 if messages else first.bytes)


def _parts(rank: int, call: RecordedCall, ranks: int) -> list[Message]:
    sent = np.asarray(call.sent)
    counts = [call.to.get(dest, 0) // row_bytes(sent) for dest in range(ranks)]
    counts[rank] = len(sent) - sum(counts)
    ends = np.cumsum([0, *counts])
    return [_message(rank, dest, sent[ends[dest] : ends[dest + 1]]) for dest in range(ranks)]


def _pairs(pending: Sequence[deque[RecordedCall]]) -> Iterator[MessageRound]:
    """Yield messages from rank to rank before the next call of all. Raises ValueError: ranks wait for each other."""
    sent: set[int] = set()  # ranks whose message has left
    came: set[int] = set()  # ranks whose message has arrived
    while heads := {rank: calls[0] for rank, calls in enumerate(pending) if calls and calls[0].name == "sendrecv"}:
        waiting = [(rank, dest) for rank, call in heads.items() for dest in call.to if rank not in sent]
        going = [(rank, dest) for rank, dest in waiting if dest in heads and heads[dest].source == rank]
        sent |= {rank for rank, _ in going}
        came |= {dest for _, dest in going}
        for rank, call in heads.items():
            if (rank in sent or not call.to) and (rank in came or call.source is None):
                pending[rank].popleft()
                sent.discard(rank)
                came.discard(rank)
        if going:
            messages = [_message(rank, dest, heads[rank].sent) for rank, dest in going]
            yield MessageRound(heads[going[0][0]].where, "sendrecv", messages, 0)
        elif heads == {rank: calls[0] for rank, calls in enumerate(pending) if calls and rank in heads}:
            raise ValueError(f"records must be of one step of all ranks, but ranks {list(heads)} wait for each other")


def _message(source: int, dest: int, sent: Array | None) -> Message:
    rows = np.asarray(sent)
    return Message(source, dest, rows.nbytes, rows[:, 0].tolist() if rows.ndim == 2 else None)
