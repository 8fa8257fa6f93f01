"""Elect: who owns entries, the votes, and the algorithm."""

from __future__ import annotations

from sparse_mpi.algorithms.elect.elect import Elect, ElectState

__all__ = ["Elect", "ElectState"]
