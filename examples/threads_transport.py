"""A transport of one's own in sixty lines: threads that share one blackboard.

    python examples/threads_transport.py --ranks 4

`CountingComm` checks arguments, counts traffic and measures time; what is left is to
move arrays. Each operation here is built upon one: every rank puts something on a
blackboard, and reads what the others have put there.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Barrier
from typing import Any

import numpy as np

from sparse_mpi import SparseAllreduce
from sparse_mpi.cli import values
from sparse_mpi.cli.values import Parser
from sparse_mpi.comm.counting import CountingComm


class Board:
    """What threads share: places, a barrier, and a queue from each to each."""

    def __init__(self, ranks: int) -> None:
        self.places: list[Any] = [None] * ranks
        self.barrier = Barrier(ranks)
        self.queues = {
            (a, b): SimpleQueue() for a in range(ranks) for b in range(ranks)
        }


class ThreadComm(CountingComm):
    """A communicator of the threads that share a board."""

    def __init__(self, rank: int, board: Board) -> None:
        super().__init__(rank, len(board.places))
        self._board = board

    def _swap(self, mine: Any) -> list[Any]:
        """Return what every rank gives, in rank order."""
        self._board.places[self.rank] = mine
        self._board.barrier.wait()
        everything = list(self._board.places)
        self._board.barrier.wait()
        return everything

    def _sendrecv(self, send, dest, source):
        if dest is not None:
            self._board.queues[self.rank, dest].put(send.copy())
        return None if source is None else self._board.queues[source, self.rank].get()

    def _allgather(self, send):
        return np.stack(self._swap(send.copy()))

    def _allgatherv(self, send, counts):
        parts = self._swap(send.copy())
        return np.concatenate(parts), np.array([len(part) for part in parts])

    def _alltoallv(self, send, counts, expected):
        parts = [
            row[self.rank]
            for row in self._swap(np.split(send.copy(), np.cumsum(counts)[:-1]))
        ]
        return np.concatenate(parts), np.array([len(part) for part in parts])

    def _allreduce(self, send, op):
        gathered = self._allgather(send)
        return (
            gathered.sum(axis=0, dtype=send.dtype)
            if op == "sum"
            else gathered.max(axis=0)
        )

    def _bcast(self, send, root):
        return self._swap(send.copy())[root].copy()

    def _barrier(self):
        self._swap(None)

    def duplicate(self, yield_cpu: bool = False) -> ThreadComm:
        return self._split(0)

    def _split(self, color: int) -> ThreadComm:
        colors = self._swap(color)
        members = [rank for rank, other in enumerate(colors) if other == color]
        boards = self._swap(Board(len(members)))
        return ThreadComm(members.index(self.rank), boards[members[0]])


class Threads:
    """So many threads, each of which is a rank."""

    def __init__(self, size: int) -> None:
        self.size = size

    def run(self, program: Callable[[ThreadComm], Any]) -> list[Any]:
        """Return what ``program(comm)`` returns on each of them."""
        board = Board(self.size)
        with ThreadPoolExecutor(self.size) as pool:
            comms = [ThreadComm(rank, board) for rank in range(self.size)]
            return list(pool.map(program, comms))


def main() -> None:
    """Train on as many threads as the command line says."""
    parser = Parser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--ranks",
        type=values.integer(1),
        default=4,
        help="how many threads (default: 4)",
    )
    args = parser.parse_args()

    def train(comm: ThreadComm) -> tuple[int, bytes]:
        reducer = SparseAllreduce(10_000, density=0.01, comm=comm)
        drawn = np.random.default_rng(comm.rank)
        for _ in range(5):
            total = reducer.step(drawn.standard_normal(10_000).astype(np.float32))
        return comm.traffic.sent, total.values.tobytes()

    outcomes = Threads(args.ranks).run(train)
    print(f"{args.ranks} ranks, {len({values for _, values in outcomes})} result")
    print(f"rank 0 sent {outcomes[0][0]} bytes in 5 steps, of 40000 bytes a gradient")


if __name__ == "__main__":
    main()
