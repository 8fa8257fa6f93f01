"""The planners. To add one, write its file and add a line here; the command line and the tests will find it."""

from __future__ import annotations

from collections.abc import Callable

from sparse_mpi.tools.plan.base import Plan, Profile
from sparse_mpi.tools.plan.planners.base import ROUNDING
from sparse_mpi.tools.plan.planners.brute import brute
from sparse_mpi.tools.plan.planners.greedy import greedy
from sparse_mpi.tools.plan.planners.partial import partial
from sparse_mpi.tools.plan.planners.secopa import secopa
from sparse_mpi.tools.plan.planners.single import dense, sparse

PLANNERS: dict[str, Callable[[Profile, bool, bool], Plan]] = {  # the simpler ones first
    "dense": dense,
    "sparse": sparse,
    "secopa": secopa,
    "partial": partial,
    "greedy": greedy,
    "brute": brute,
}
ORACLES = ("brute",)  # for small problems only


def best(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Return the plan with the shortest step of all planners but the oracles, on a tie that of the simplest planner."""
    chosen = dense(profile, overlap, cpu_lane)
    for name, planner in PLANNERS.items():
        if name not in ORACLES:
            plan = planner(profile, overlap, cpu_lane)
            if plan.predicted < chosen.predicted * (1 - ROUNDING):
                chosen = plan
    return chosen
