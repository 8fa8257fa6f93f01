"""Training that survives the loss of ranks, by `ElasticAllreduce`."""

from __future__ import annotations

from sparse_mpi.comm.base import RankFailure
from sparse_mpi.fault_tolerance.allreduce import ElasticAllreduce
from sparse_mpi.fault_tolerance.team import Departure, Team, TooFewRanks
from sparse_mpi.fault_tolerance.team_comm import TeamComm, team_of, together

__all__ = [
    "Departure",
    "ElasticAllreduce",
    "RankFailure",
    "Team",
    "TeamComm",
    "TooFewRanks",
    "team_of",
    "together",
]
