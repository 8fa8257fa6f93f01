"""Elect: `elect.py` is the algorithm, the other files are its phases."""

from __future__ import annotations

from sparse_mpi.algorithms.elect.elect import Elect

__all__ = ["Elect"]
