"""Ok-Topk (Li & Hoefler, PPoPP'22): `oktopk.py` is the algorithm, the other files are its phases."""

from __future__ import annotations

from sparse_mpi.algorithms.oktopk.oktopk import OkTopk

__all__ = ["OkTopk"]
