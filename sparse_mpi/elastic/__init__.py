"""Training that survives the loss of ranks: `ElasticAllreduce` is the reducer, the other files are its parts."""

from __future__ import annotations

from sparse_mpi.comm.failure import RankFailure
from sparse_mpi.elastic.allreduce import ElasticAllreduce
from sparse_mpi.elastic.calls import TeamComm, comm_of, team_of, together
from sparse_mpi.elastic.departure import Departure, TooFewRanks
from sparse_mpi.elastic.team import Team

__all__ = [
    "Departure",
    "ElasticAllreduce",
    "RankFailure",
    "Team",
    "TeamComm",
    "TooFewRanks",
    "comm_of",
    "team_of",
    "together",
]
