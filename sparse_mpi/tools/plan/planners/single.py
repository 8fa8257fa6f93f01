"""Planners that treat all tensors alike: one algorithm reduces them as one vector."""

from __future__ import annotations

from sparse_mpi.tools.plan.base import Plan, Profile
from sparse_mpi.tools.plan.planners.base import DENSE, Forecast


def dense(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Reduce everything densely, in float32, as a job without a plan does."""
    forecast = Forecast(profile, overlap, cpu_lane)
    return forecast.plan("dense", forecast.whole(profile.option(DENSE)))


def sparse(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Reduce everything sparsely, by the algorithm with the shortest step."""
    forecast = Forecast(profile, overlap, cpu_lane)
    return forecast.plan("sparse", min(map(forecast.whole, forecast.sparse), key=forecast.step))
