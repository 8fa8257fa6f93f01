"""How long a recorded training run takes to a score elsewhere: its steps, each as long as is predicted there."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.predict.cluster import Cluster, step_time
from sparse_mpi.predict.ways import way_of
from sparse_mpi.reduction.arguments import algorithm_spelled, takes

LOWER_IS_BETTER = ("loss", "perplexity", "wer")


class RecordedRun(NamedTuple):
    """What `metrics.jsonl` of a training program tells of a run."""

    way: str  # the algorithm as a command line spells it
    n: int
    density: float
    ranks: int
    score: str  # what is tested after each epoch
    epochs: list[tuple[int, float]]  # last step and score of each
    batch: float  # seconds that a rank computes in a step, reducing apart

    def steps_to(self, target: float) -> int:
        """Return the number of steps to the end of the first epoch whose score is at least as good as ``target``.

        Raises ValueError: no epoch is.
        """
        lower = self.score in LOWER_IS_BETTER
        for last, score in self.epochs:
            if score <= target if lower else score >= target:
                return last
        best = (min if lower else max)(score for _, score in self.epochs)
        raise ValueError(f"target must be one that the run reaches, {self.score} {best:g} at best, got {target:g}")


def read_run(file: str | Path) -> RecordedRun:
    """Return the run that a training program recorded in ``file``.

    Raises ValueError: it is no such file, its algorithm is not known in advance, or no epoch has ended.
    """
    try:
        lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
        config = next(line for line in lines if line["event"] == "config")
        epochs = [line for line in lines if line["event"] == "epoch"]
        score = config.get("headline") or next(name for name in ("accuracy", *LOWER_IS_BETTER) if name in epochs[0])
        return RecordedRun(
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
    name = config["algo"]
    wire = config.get("wire")
    way = f"{name}:wire={wire}" if wire and takes(name.split(":")[0], "wire", wire) else name
    algorithm_spelled(way)
    return way


def run_seconds(run: RecordedRun, target: float, cluster: Cluster, batch: float | None = None) -> float:
    """Return the seconds until the run reaches ``target`` on a cluster; those of tests are not in it.

    A rank computes ``batch`` seconds in a step there, reducing apart; None: as recorded.

    Raises ValueError: the run does not reach it.
    """
    count = run.steps_to(target)
    reducing = step_time(run.way, way_of(run.way), run.n, run.density, run.ranks, cluster).seconds
    return count * ((run.batch if batch is None else batch) + reducing)
