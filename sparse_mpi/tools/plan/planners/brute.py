"""Exhaustive search: the oracle with which tests compare the other planners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import comb

from sparse_mpi.tools.plan.base import Plan, Profile
from sparse_mpi.tools.plan.planners.base import PARTITIONS, Forecast

MAX_TENSORS = 10
MAX_PLANS = 200_000


def brute(
    profile: Profile, overlap: bool = False, cpu_lane: bool = False, partitions: Sequence[int] = PARTITIONS
) -> Plan:
    """Return the best of all ways to fuse the tensors, with all choices for every part.

    Args:
        profile: of the job.
        overlap: whether reductions begin during the backward pass.
        cpu_lane: whether selections and merges run beside the compute stream.
        partitions: the numbers of pieces to try; without overlap one piece is best.

    Raises:
        ValueError: there are more than `MAX_TENSORS` tensors or `MAX_PLANS` plans.
    """
    forecast, tensors = Forecast(profile, overlap, cpu_lane), len(profile.tensors)
    remedy = "take greedy, or give brute fewer tensors, options or partitions"
    if tensors > MAX_TENSORS:
        raise ValueError(f"brute takes at most {MAX_TENSORS} tensors, got {tensors}; {remedy}")
    choices = [choice for choice in forecast.choices if choice.partitions in partitions]
    plans = sum(_ways(tensors, parts) * len(choices) ** parts for parts in range(1, tensors + 1))
    if plans > MAX_PLANS:
        raise ValueError(f"brute tries at most {MAX_PLANS:,} plans, got {plans:,} of them; {remedy}")
    candidates = (
        [forecast.part(group, choice) for group, choice in zip(groups, chosen, strict=True)]
        for groups in _groupings(tensors)
        for chosen in product(choices, repeat=len(groups))
    )
    return forecast.plan("brute", min(candidates, key=forecast.step))


def _ways(tensors: int, parts: int) -> int:
    """Count the ways to divide so many tensors into so many parts."""
    if parts in (0, tensors):
        return int(parts == tensors)
    return sum(comb(tensors - 1, kept) * _ways(kept, parts - 1) for kept in range(parts - 1, tensors))


def _groupings(tensors: int) -> Iterator[list[list[int]]]:
    """Yield all ways to group the numbers below ``tensors``, with the last one in each group of the others or alone."""
    if tensors == 0:
        yield []
        return
    for groups in _groupings(tensors - 1):
        for i, group in enumerate(groups):
            yield [*groups[:i], [*group, tensors - 1], *groups[i + 1 :]]
        yield [*groups, [tensors - 1]]
