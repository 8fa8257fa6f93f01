"""The program of one step of an algorithm, recorded among ranks in this one process.

What the ranks compute is timed here, alone on a core; what they send is as long as it really is. Gradients of many
ranks need not fit together: then the program of a shorter gradient of the same density is scaled, payload by the ratio
of the lengths, and computing along a line through two short lengths, because part of it does not grow with the length.

How long a recorded training run takes to a score elsewhere: its steps, each as long as is predicted there.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.network.cluster import Cluster
from sparse_mpi.network.simulator import Program, simulate
from sparse_mpi.reduction.arguments import algorithm_spelled, takes
from sparse_mpi.tools.analysis import gradients
from sparse_mpi.tools.analysis.program import compiled
from sparse_mpi.tools.analysis.recording import Call, watched
from sparse_mpi.tools.analysis.volume import short_length

MOST_ELEMENTS = 1 << 24  # of all ranks together: what is recorded at full length
WARMUP, COUNTED = 10, 5  # steps: thresholds settle in the first, of the others the median one is taken
SHORTER = 4  # times is the second length shorter to which the line is drawn

Recorded = list[tuple[list[Call], float]]  # of one step: the calls of each rank, and what it computes after the last


@lru_cache(maxsize=1024)
def program(name: str, n: int, density: float, ranks: int, most_elements: int = MOST_ELEMENTS) -> Program:
    """Return a step of an algorithm, with error feedback, on independent normal gradients.

    Raises ValueError: there is no such algorithm.
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
    plain = isinstance(algorithm, ALGORITHMS["dense"])  # a sum that leaves nothing to remember
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
    """Return the seconds that all ranks together compute."""
    return sum(tail + sum(call.computed for call in made) for made, tail in step)


def scaled(step: Recorded, ratio: float, whole: float, shorter: float) -> Recorded:
    """Return a step of a gradient ``ratio`` times as long."""
    slope = min(max(whole - shorter, 0.0) / (1 - 1 / SHORTER), whole)  # seconds that grow with the length
    factor = (whole + (ratio - 1) * slope) / whole if whole else 1.0
    return [([_longer(call, ratio, factor) for call in made], tail * factor) for made, tail in step]


def _longer(call: Call, ratio: float, factor: float) -> Call:
    """Return a call with ``ratio`` times the payload, before which a rank computes ``factor`` times as long."""
    if call.control:
        return replace(call, computed=call.computed * factor)
    to = {dest: round(length * ratio) for dest, length in call.to.items()}
    return replace(call, computed=call.computed * factor, bytes=round(call.bytes * ratio), to=to)


LOWER_IS_BETTER = ("loss", "perplexity", "wer")


class Run(NamedTuple):
    """What `metrics.jsonl` of a training program tells of a run."""

    way: str  # the algorithm as a command line spells it
    n: int
    density: float
    ranks: int
    score: str  # what is tested after each epoch
    epochs: list[tuple[int, float]]  # last step and score of each
    batch: float  # run_seconds that a rank computes in a step, reducing apart

    def steps_to(self, target: float) -> int:
        """Return the number of steps to the end of the first epoch whose score is at least as good as ``target``.

        Raises ValueError: no epoch is.
        """
        lower = self.score in LOWER_IS_BETTER
        for step, score in self.epochs:
            if score <= target if lower else score >= target:
                return step
        best = (min if lower else max)(score for _, score in self.epochs)
        raise ValueError(f"target must be one that the run reaches, {self.score} {best:g} at best, got {target:g}")


def read_run(file: str | Path) -> Run:
    """Return the run that a training program recorded in ``file``.

    Raises ValueError: it is no such file, its algorithm is not known in advance, or no epoch has ended.
    """
    try:
        lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
        config = next(line for line in lines if line["event"] == "config")
        epochs = [line for line in lines if line["event"] == "epoch"]
        score = config.get("headline") or next(name for name in ("accuracy", *LOWER_IS_BETTER) if name in epochs[0])
        return Run(
            _way(config),
            int(config["parameters"]),
            float(config["k"]) / float(config["parameters"]) if config.get("k") else float(config["density"]),
            int(config["ranks"]),
            score,
            [(int(epoch["step"]), float(epoch[f"test_{score}"])) for epoch in epochs],
            statistics.median(epoch["compute_seconds"] + epoch["update_seconds"] for epoch in epochs),
        )
    except (OSError, LookupError, StopIteration, TypeError, ValueError) as error:
        raise ValueError(f"{file} must be metrics.jsonl of a training program with an epoch in it: {error!r}") from None


def _way(config: dict[str, Any]) -> str:
    """Return the algorithm of a run as a command line spells it.

    Raises ValueError: the length of the gradient alone does not tell what it sends.
    """
    name = config["algo"]
    wire = config.get("wire")
    way = f"{name}:wire={wire}" if wire and takes(name.split(":")[0], "wire", wire) else name
    algorithm_spelled(way)
    return way


def run_seconds(run: Run, target: float, cluster: Cluster, batch: float | None = None) -> float:
    """Return the run_seconds until the run reaches ``target`` on a cluster; those of tests are not in it.

    A rank computes ``batch`` seconds in a step there, reducing apart; None: as recorded.

    Raises ValueError: the run does not reach it.
    """
    count = run.steps_to(target)
    reducing = simulate(program(run.way, run.n, run.density, run.ranks), cluster).step
    return count * ((run.batch if batch is None else batch) + reducing)
