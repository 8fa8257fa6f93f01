"""Measure the quality of sparse sums in training: energy, Ok-Topk's assumption, waiting times.

Measuring a step costs two dense allreduces, counted as control traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.sparse import SparseVector

# Training within these bounds was compared with dense training, see docs/explanation/accuracy.md
LONGEST_WAIT = 300  # steps, on average
LEAST_CAPTURED = 0.1  # least share of the attainable energy


class Quality(NamedTuple):
    """The quality of a step's total, as sums over buckets or the gradient; the same on all ranks."""

    removed: float  # the energy (sum of squares) that leaves the summed acc with total
    attainable: float  # the energy of its largest entries, for the number of entries of total
    missed: float  # squared distance of top-k of the summed acc from top-k of the sum of local top-k's
    energy: float  # energy of the summed acc
    waited: float  # the waits, in steps, of the entries of all totals since the last measure, added up
    entries: float  # their number

    @property
    def captured(self) -> float:
        """Return total's share of the attainable energy; below 0 if total adds more than it removes."""
        return self.removed / self.attainable if self.attainable else 1.0

    @property
    def xi(self) -> float:
        """Return xi of Ok-Topk's Assumption 1 (Li and Hoefler, PPoPP'22), relative to the norm of the mean acc."""
        return float(np.sqrt(self.missed / self.energy)) if self.energy else 0.0

    @property
    def wait(self) -> float:
        """Return the average wait of a sent entry, in steps; 1 where everything is sent."""
        return self.waited / self.entries if self.entries else 0.0

    @property
    def advice(self) -> str:
        """Return a line of advice if the quality is outside the range compared with dense training, else ""."""
        if self.wait > LONGEST_WAIT:
            return (
                f"entries wait for {self.wait:.0f} steps, where evidence ends at {LONGEST_WAIT}: raise the density to "
                f"{self.wait / LONGEST_WAIT:.1f} times as much, or let residuals fade (leaky feedback)"
            )
        if self.captured < LEAST_CAPTURED:
            return (
                f"the sum has {self.captured:.0%} of the energy that so many entries can have, where evidence "
                f"ends at {LEAST_CAPTURED:.0%}: raise the density, or take algorithm='elect'"
            )
        return ""

    def __add__(self, other: Quality) -> Quality:  # type: ignore[override]
        return Quality(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(eq=False)
class Watch:
    """The quality of every Nth step of one reducer; for ``SparseAllreduce.watch``.

    Args:
        every: N, at least 1.
        step: steps before this watch; waits count from here.
    """

    every: int
    step: int = 0
    quality: Quality | None = None  # quality of the last measured step
    _last: Array | None = None  # (n,) int32, the step in which each entry was last part of total
    _waited: float = 0.0
    _entries: float = 0.0

    @property
    def due(self) -> bool:
        return (self.step + 1) % self.every == 0

    def note(
        self, acc: Array | None, total: SparseVector | Array, k: int, comm: Comm, squares: Array | None = None
    ) -> None:
        """Note the waits of a step that began with ``acc`` ``(n,)``, and measure it if due; collective then.

        Energy is in units of second moments, ``squares``, where ranks vote in these.
        """
        due = self.due
        at, size = (total.indices, total.size) if isinstance(total, SparseVector) else (slice(None), len(total))
        if self._last is None:
            values = total.values if isinstance(total, SparseVector) else total
            self._last = namespace(values).full(size, self.step, np.int32)
        self.step += 1
        # Waits: the steps that each entry of total was in a residual, counting this one
        waits = self.step - self._last[at]
        self._waited += float(waits.sum())
        self._entries += len(waits)
        self._last[at] = self.step
        # Measure: the waits are of all steps since the last measure
        if due:
            if acc is None:
                raise RuntimeError("a step that is measured must begin with a copy of acc")
            self.quality = Quality(*_measured(acc, total, k, comm, squares), self._waited, self._entries)
            self._waited = self._entries = 0.0


def _measured(
    acc: Array, total: SparseVector | Array, k: int, comm: Comm, squares: Array | None
) -> tuple[float, float, float, float]:
    taken, entries = (total.to_dense(), total.nnz) if isinstance(total, SparseVector) else (total, len(total))
    if squares is not None:
        of_all, standardized = comm.allreduce(squares, control=True), kernels.of(acc).standardized
        acc, taken = standardized(acc, of_all), standardized(taken, of_all)
    whole = comm.allreduce(acc, control=True).astype(np.float64)
    # The sum if each rank sent its own k largest entries
    pooled = comm.allreduce(_largest(acc, k), control=True).astype(np.float64)
    energy = _energy(whole)
    return (
        energy - _energy(whole - taken),  # removed
        attainable(whole, entries),
        _energy(_largest(whole, k) - _largest(pooled, k)),  # missed
        energy,
    )


def attainable(vector: Array, entries: int) -> float:
    return _energy(_largest(vector, entries))


def _largest(vector: Array, count: int) -> Array:
    if count >= len(vector):
        return vector
    xp = namespace(vector)
    chosen = xp.argpartition(-xp.abs(vector), count)[:count]
    kept = xp.zeros_like(vector)
    kept[chosen] = vector[chosen]
    return kept


def _energy(vector: Array) -> float:
    return float((vector * vector).sum())
