"""How long recorded runs would take on a network: by alpha and beta, and until they are as accurate as is wanted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sparse_mpi.comm import Traffic
from sparse_mpi.network.model import Network

LOWER_IS_BETTER = ("perplexity", "wer")  # of headlines, see `Task.headline`


def with_steps(epochs: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Return each epoch's record with the number of its steps."""
    ends = [0, *(epoch["step"] for epoch in epochs)]
    return [(epoch, end - start) for epoch, (start, end) in zip(epochs, pairwise(ends), strict=True)]


def seconds(record: dict[str, Any], network: Network, compute: float, target: float | None = None) -> float | None:
    """Return the seconds that a run takes on ``network``, or that it takes to reach a score.

    Nothing is hidden behind the backward pass, and a rank receives as much as it sends.

    Args:
        record: of a run of a study, with the messages and bytes of each epoch's steps.
        network: alpha a message, beta a byte.
        compute: seconds that a rank computes in a step.
        target: the score of an epoch at whose end to stop; None: that of the last one.

    Returns:
        The seconds, or None if no epoch reaches the target.
    """
    last = len(record["epochs"]) - 1 if target is None else reached(record, target)
    if last is None:
        return None
    spent = 0.0
    for epoch, steps in with_steps(record["epochs"][: last + 1]):
        step = Traffic(sent=epoch["mb_sent"] * 1e6, messages=epoch["messages"])
        spent += steps * (compute + network.seconds(step))
    return spent


def reached(record: dict[str, Any], target: float) -> int | None:
    """Return the index of the first epoch whose test is as good as ``target``; None if there is none."""
    name = record["headline"]
    scores = enumerate(epoch[f"test_{name}"] for epoch in record["epochs"])
    return next((index for index, score in scores if reaches(score, target, name)), None)


def reaches(score: float, target: float, headline: str) -> bool:
    """Tell if a score is at least as good as the target."""
    return score <= target if headline in LOWER_IS_BETTER else score >= target


def table(records: Sequence[dict[str, Any]], name: str, network: Network, compute: float, target: float | None) -> str:
    """Return a table of seconds on the network ``name``, means over the seeds, and of those until the target.

    Seeds that do not reach the target are left out of the mean, and counted.
    """
    head, line = f"| shards | way | s on {name} |", "| --- | --- | ---: |"
    if target is not None:
        head, line = f"{head} s until {records[0]['headline']} {target:g} | reached by |", f"{line} ---: | ---: |"
    lines = [head, line]
    for shards, way in dict.fromkeys((record["shards"], record["way"]) for record in records):
        of = [record for record in records if (record["shards"], record["way"]) == (shards, way)]
        cells = [f"{statistics.mean(seconds(record, network, compute) or 0 for record in of):.4g}"]
        if target is not None:
            until = [spent for record in of if (spent := seconds(record, network, compute, target)) is not None]
            cells += [f"{statistics.mean(until):.4g}" if until else "-", f"{len(until)} of {len(of)}"]
        lines.append(f"| {shards} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines)
