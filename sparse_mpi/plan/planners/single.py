"""Planners that treat all tensors alike: everything in one vector, reduced by one algorithm."""

from __future__ import annotations

from sparse_mpi.plan.base import Plan, Profile
from sparse_mpi.plan.planners.base import DENSE, Forecast


def dense(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Everything dense, in float32: what a job does without a plan."""
    forecast = Forecast(profile, overlap, cpu_lane)
    return forecast.plan("dense", forecast.whole(profile.option(DENSE)))


def sparse(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Everything sparse, by the algorithm with the shortest step."""
    forecast = Forecast(profile, overlap, cpu_lane)
    return forecast.plan("sparse", min(map(forecast.whole, forecast.sparse), key=forecast.step))
