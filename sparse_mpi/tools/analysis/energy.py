"""What an algorithm removes of the summed gradient for the bytes it sends, from a cold start on the ranks of a `World`.

Algorithms with error feedback cannot be compared by one step: what one leaves behind makes its next steps easier. So
all of them start cold, and the energy is measured after some steps, each against the best that any entries could do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.comm import Comm
from sparse_mpi.comm.world import World
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.watch import attainable
from sparse_mpi.sparse import SparseVector
from sparse_mpi.tools.analysis.gradients import Gradients

SETTLED = 10  # steps before the first whose energy counts


@dataclass(frozen=True)
class EnergyCount:
    """The bytes and the energy of one algorithm. Bytes are those of a rank in a step, control included.

    Energy is the share of the summed acc's squared norm that ``total`` removes, over the share that as many of its
    largest entries would remove: 1 is the best there is.
    """

    ranks: int
    n: int
    k: int
    steps: int
    sent: float  # bytes, mean over ranks and steps
    control: float  # of these, bytes of control
    lowest: float  # bytes, 8k(P-1)/P
    largest_step: float  # bytes of the step in which ranks send most, over the mean of all steps
    busiest_sender: float  # bytes that one rank sends in all steps, over the mean of all ranks
    busiest_receiver: float  # payload that one rank receives in all steps, over the mean of all ranks
    worst: float  # bytes that any rank sends in any step, over the mean
    selected: float  # entries that a rank selects, over k; mean over steps from `SETTLED` on
    total: float  # entries of the result, over k; likewise
    messages: float  # of a rank in a step, mean
    energy: float  # mean over steps from `SETTLED` on

    @property
    def volume(self) -> float:
        """Return the mean bytes over 8k(P-1)/P."""
        return self.sent / self.lowest if self.lowest else 0.0

    def record(self) -> dict[str, Any]:
        """Return all numbers as a dict for JSON."""
        return asdict(self) | {"volume": self.volume}


class _Energy:
    """The acc summed over all ranks of a `World`, and the energy that each step removes from it.

    Every step begins with an agreement of all ranks, so no rank is two steps ahead of another: gradients of two steps
    are enough to keep.
    """

    def __init__(self, size: int) -> None:
        self.captured: list[float] = []
        self._acc = np.zeros(size)
        self._arriving = np.zeros((2, size))

    def add(self, step: int, gradient: np.ndarray) -> None:
        """Add the gradient of one rank; called by every rank before a step."""
        self._arriving[step % 2] += gradient

    def remove(self, step: int, total: SparseVector | np.ndarray) -> None:
        """Take away the result of a step, and keep the energy of it; called by one rank after the step."""
        self._acc += self._arriving[step % 2]
        self._arriving[step % 2] = 0
        before = float(self._acc @ self._acc)
        if isinstance(total, SparseVector):
            best = attainable(self._acc, total.nnz)
            self._acc[total.indices] -= total.values
        else:
            best = before
            self._acc -= total
        after = self._acc @ self._acc
        self.captured.append(float((before - after) / best) if best else 1.0)


def measure(
    algorithm: Algorithm,
    gradients: Gradients,
    ranks: int,
    k: int,
    steps: int,
    progress: Callable[[], None] = lambda: None,
) -> EnergyCount:
    """Run ``steps`` steps with error feedback from a cold start, and count all of them.

    Args:
        algorithm: to measure.
        gradients: of all steps and ranks.
        ranks: number of ranks P.
        k: entries wanted.
        steps: number of steps.
        progress: is called after each step.
    """
    energy = _Energy(gradients.size)

    def run(comm: Comm) -> np.ndarray:
        reducer, rows = SparseAllreduce(gradients.size, k=k, comm=comm, algorithm=algorithm), []
        for step in range(steps):
            gradient = gradients.at(step, comm.rank)
            energy.add(step, gradient)
            total = reducer.step(gradient)
            if comm.rank == 0:
                energy.remove(step, total)
                progress()
            assert reducer.report is not None
            traffic, found = reducer.report.traffic, reducer.report
            rows.append(
                (traffic.sent, traffic.control, traffic.received, traffic.messages, found.selected, found.total)
            )
        return np.array(rows, np.float64)

    counted = np.stack(World(ranks).run(run), axis=2)  # (steps, 6, ranks)
    payload, control, received, messages, selected, total = counted.transpose(1, 0, 2)
    sent, late = payload + control, slice(min(SETTLED, steps - 1), None)
    return EnergyCount(
        ranks,
        gradients.size,
        k,
        steps,
        sent=sent.mean(),
        control=control.mean(),
        lowest=8 * k * (ranks - 1) / ranks,
        largest_step=_peak(sent.mean(axis=1)),
        busiest_sender=_peak(sent.mean(axis=0)),
        busiest_receiver=_peak(received.mean(axis=0)),
        worst=_peak(sent),
        selected=selected[late].mean() / k,
        total=total[late].mean() / k,
        messages=messages.mean(),
        energy=float(np.mean(energy.captured[late])),
    )


def _peak(numbers: np.ndarray) -> float:
    """Return the largest number over the mean, 1 where all are zero."""
    return float(numbers.max() / numbers.mean()) if numbers.any() else 1.0
