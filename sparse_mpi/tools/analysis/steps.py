"""The program of one step of an algorithm, recorded among ranks in this one process.

What the ranks compute is timed here, alone on a core; what they send is as long as it really is. Gradients of many
ranks need not fit together: then the program of a shorter gradient of the same density is scaled, payload by the ratio
of the lengths, and computing along a line through two short lengths, because part of it does not grow with the length.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.comm import Comm
from sparse_mpi.comm.world import World
from sparse_mpi.network.simulator import Program
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import algorithm_spelled
from sparse_mpi.tools.analysis import gradients
from sparse_mpi.tools.analysis.prediction import short_length
from sparse_mpi.tools.analysis.program import compiled
from sparse_mpi.tools.analysis.recording import Call, RecordingComm

MOST_ELEMENTS = 1 << 24  # of all ranks together: what is recorded at full length
WARMUP, COUNTED = 10, 5  # steps: thresholds settle in the first, of the others the median one is taken
SHORTER = 4  # times is the second length shorter to which the line is drawn

Recorded = list[tuple[list[Call], float]]  # of one step: the calls of each rank, and what it computes after the last


@lru_cache(maxsize=1024)
def program(name: str, n: int, density: float, ranks: int, most_elements: int = MOST_ELEMENTS) -> Program:
    """Return a step of an algorithm, with error feedback, on independent normal gradients.

    Args:
        name: of the algorithm, as a command line spells it.
        n: elements of the gradient.
        density: share of them that is sent.
        ranks: number of ranks.
        most_elements: of all ranks together; a longer gradient is scaled up from a shorter one.

    Raises:
        ValueError: there is no such algorithm.
    """
    algorithm = algorithm_spelled(name)
    length = min(n, max(short_length(n, density, ranks), most_elements // ranks))
    step = recorded(algorithm, length, density, ranks)
    if length == n:
        return compiled(*zip(*step, strict=True))
    shorter = recorded(algorithm, max(length // SHORTER, 1), density, ranks)
    return compiled(*zip(*scaled(step, n / length, computing(step), computing(shorter)), strict=True))


def recorded(algorithm: Algorithm, n: int, density: float, ranks: int) -> Recorded:
    """Run some steps on the ranks of a `World`; return the one of median calls and, of such, median computing."""
    made = gradients.make("independent", n)
    plain = isinstance(algorithm, ALGORITHMS["dense"])  # a sum that leaves nothing to remember
    feedback = "none" if plain else "residual"

    def run(comm: Comm) -> list[tuple[list[Call], float]]:
        recording = RecordingComm(comm)
        reducer = SparseAllreduce(n, density=density, comm=recording, algorithm=algorithm, feedback=feedback)
        steps = []
        for step in range(WARMUP + COUNTED):
            gradient = made.at(step, comm.rank)
            recording.restart()
            reducer.step(gradient)
            steps.append((list(recording.record), recording.computed()))
        return steps[WARMUP:]

    steps: list[Recorded] = [list(step) for step in zip(*World(ranks).run(run), strict=True)]
    return sorted(steps, key=lambda step: (calls(step), computing(step)))[COUNTED // 2]


def calls(step: Recorded) -> int:
    """Return the number of calls that all ranks together make."""
    return sum(len(made) for made, _ in step)


def computing(step: Recorded) -> float:
    """Return the seconds that all ranks together compute."""
    return sum(tail + sum(call.computed for call in made) for made, tail in step)


def scaled(step: Recorded, ratio: float, whole: float, shorter: float) -> Recorded:
    """Return a step of a gradient ``ratio`` times as long.

    Args:
        step: recorded.
        ratio: of the lengths.
        whole: seconds that all ranks compute in ``step``.
        shorter: and in a step of a gradient `SHORTER` times shorter.
    """
    slope = min(max(whole - shorter, 0.0) / (1 - 1 / SHORTER), whole)  # seconds that grow with the length
    factor = (whole + (ratio - 1) * slope) / whole if whole else 1.0
    return [([_longer(call, ratio, factor) for call in made], tail * factor) for made, tail in step]


def _longer(call: Call, ratio: float, factor: float) -> Call:
    """Return a call with ``ratio`` times the payload, before which a rank computes ``factor`` times as long."""
    if call.control:
        return replace(call, computed=call.computed * factor)
    to = {dest: round(length * ratio) for dest, length in call.to.items()}
    return replace(call, computed=call.computed * factor, bytes=round(call.bytes * ratio), to=to)
