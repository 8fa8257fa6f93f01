"""Measure a `Way`: bytes and seconds of an algorithm's step, among ranks in this one process.

Steps of short gradients are run on 2 to 16 ranks of a `World`. Bytes of each call are counted on each rank; the time
between two calls is measured, alone on a core. A line is fitted to these times: seconds an element, an entry, a
received byte, and a step, none below zero.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations

import numpy as np

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.predict.ways import DENSITIES, RANKS, SHARES, Sent, Way, arriving
from sparse_mpi.reduction.arguments import algorithm_spelled
from sparse_mpi_bench.analysis import gradients
from sparse_mpi_bench.analysis.recording import RecordedCall, watched

LENGTH = 1 << 20  # length of the gradients whose bytes are counted
TIMED = ((1 << 17, 0.01), (1 << 22, 0.01))  # lengths and densities that are timed as well
MOST_ELEMENTS = 1 << 24  # most elements of all ranks together
WARMUP, COUNTED = 10, 5  # steps: thresholds settle in the first, of the others the median one is taken
SAME = 1.001  # bytes at two densities that differ by less depend on the gradient's length alone

Recorded = list[tuple[list[RecordedCall], float]]  # one step: calls of each rank, seconds after the last


@cache
def measured(name: str) -> Way:
    return measure(algorithm_spelled(name), LENGTH >> 2, ())


def measure(algorithm: Algorithm, length: int = LENGTH, timed: Iterable[tuple[int, float]] = TIMED) -> Way:
    """Return the seconds and bytes of a step, of gradients of ``length`` elements; ``timed`` are further ones."""
    steps = {(length, d, ranks): recorded(algorithm, length, d, ranks) for d in DENSITIES for ranks in RANKS}
    counted = [[steps[length, density, ranks] for ranks in RANKS] for density in DENSITIES]
    for n, density in timed:
        for ranks in RANKS:
            if n * ranks <= MOST_ELEMENTS:
                steps[n, density, ranks] = recorded(algorithm, n, density, ranks)
    sent = tuple(_sent(counted, length))
    rows = [(n, n * d, arriving(sent, n, d, ranks), 1.0) for n, d, ranks in steps]
    return Way(sent, *fitted(rows, [computing(step) for step in steps.values()]))


def recorded(algorithm: Algorithm, n: int, density: float, ranks: int) -> Recorded:
    """Run some steps on the ranks of a `World`; return the run of median computing among the runs of median calls."""
    plain = isinstance(algorithm, ALGORITHMS["dense"])  # a sum without state
    seen = watched(
        algorithm,
        gradients.make("independent", n),
        ranks,
        WARMUP + COUNTED,
        lambda step: (list(step.comm.record), step.comm.computed()),
        density=density,
        feedback="none" if plain else "residual",
    )
    counted: list[Recorded] = [list(step) for step in zip(*seen, strict=True)][WARMUP:]
    return sorted(counted, key=lambda step: (sum(len(calls) for calls, _ in step), computing(step)))[COUNTED // 2]


def computing(step: Recorded) -> float:
    return statistics.fmean(tail + sum(call.computed for call in made) for made, tail in step)


def fitted(rows: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> list[float]:
    """Return the coefficients, none below zero, with the least sum of squares of relative errors."""
    columns = np.array(rows) / np.array(seconds)[:, None]
    best, least = np.zeros(columns.shape[1]), float(len(rows))
    for count in range(1, columns.shape[1] + 1):
        for chosen in map(list, combinations(range(columns.shape[1]), count)):
            found = np.zeros(columns.shape[1])
            found[chosen] = np.linalg.lstsq(columns[:, chosen], np.ones(len(rows)), rcond=None)[0]
            off = float(((columns @ found - 1) ** 2).sum())
            if (found >= 0).all() and off < least:
                best, least = found, off
    return best.tolist()


def _sent(counted: list[list[Recorded]], length: int) -> list[Sent]:
    # Steps may differ by one exchange of control: take the most usual number.
    controls = Counter(tuple(_controls(step)) for steps in counted for step in steps)
    found = [
        Sent(name, length, 0.0, (), "whole", announced) for name, announced, length in controls.most_common(1)[0][0]
    ]
    told = [[_payload(step) for step in steps] for steps in counted]
    for number, (name, announced, *_) in enumerate(told[0][0]):
        lengths = [[calls[number][2] for calls in steps] for steps in told]
        rounds = max(calls[number][3] / (ranks - 1).bit_length() for calls, ranks in zip(told[0], RANKS, strict=True))
        shares = {
            of: [[b / SHARES[of](ranks) for b, ranks in zip(row, RANKS, strict=True)] for row in lengths]
            for of in SHARES
        }
        share = min(shares, key=lambda of: max(shares[of][0]) / max(min(shares[of][0]), 1e-9))
        whole = shares[share]
        if max(whole[0]) < SAME * max(whole[1]):
            found.append(Sent(name, 0.0, max(whole[0]) / length, (), share, announced, rounds))
        else:
            entry = tuple(tuple(b / (length * d) for b in row) for row, d in zip(whole, DENSITIES, strict=True))
            found.append(Sent(name, 0.0, 0.0, entry, share, announced, rounds))
    return found


def _controls(step: Recorded) -> list[tuple[str, bool, float]]:
    return [(call.name, call.announced, float(call.bytes)) for call in step[0][0] if call.control]


def _payload(step: Recorded) -> list[tuple[str, bool, float, float]]:
    """Return of each call: name, announced, bytes of the busiest rank, rounds; all `sendrecv` together are one."""
    made = [[call for call in calls if not call.control] for calls, _ in step]
    found = []
    for calls in zip(*[[call for call in mine if call.name != "sendrecv"] for mine in made], strict=True):
        found.append((calls[0].name, calls[0].announced, _busiest([[call] for call in calls]), 0.0))
    pairs = [[call for call in mine if call.name == "sendrecv"] for mine in made]
    if any(pairs):
        found.append(("rounds", False, _busiest(pairs), float(max(map(len, pairs)))))
    return found


def _busiest(calls: list[list[RecordedCall]]) -> float:
    leaving = [sum(call.bytes for call in mine) for mine in calls]
    arriving = [sum(call.to.get(rank, 0) for mine in calls for call in mine) for rank in range(len(calls))]
    return float(max(leaving + arriving))
