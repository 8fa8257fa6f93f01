"""SeCoPa, selective compression and partitioning (HiPress: Bai et al., SOSP'21), in closed form for each tensor."""

from __future__ import annotations

from collections import defaultdict

from sparse_mpi.tools.plan.base import Plan, Profile
from sparse_mpi.tools.plan.planners.base import Choice, Forecast


def secopa(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Compress each tensor if, taken by itself, that is cheaper than leaving it dense; fuse tensors of one choice.

    K pieces are pipelined where reductions overlap: they take all phases of a piece, and K - 1 times its slowest phase.
    """
    forecast = Forecast(profile, overlap, cpu_lane)
    candidates = [Choice(option.name, 1) for option in forecast.dense]  # first, so that a tie leaves it dense
    candidates += [Choice(option.name, p) for option in forecast.sparse for p in forecast.partitions]
    groups: dict[Choice, list[int]] = defaultdict(list)
    for number in range(len(profile.tensors)):
        groups[min(candidates, key=lambda choice: _alone(forecast, number, choice))].append(number)
    return forecast.plan("secopa", [forecast.part(numbers, choice) for choice, numbers in groups.items()])


def _alone(forecast: Forecast, number: int, choice: Choice) -> float:
    """Return the seconds that reducing one tensor by itself takes."""
    _, pieces, *phases = forecast.load(forecast.part([number], choice))
    return sum(phases) + (pieces - 1) * max(phases)
