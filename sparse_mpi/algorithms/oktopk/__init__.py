"""Ok-Topk (Li & Hoefler, PPoPP'22), in the pieces of which its paper's page is made up."""

from __future__ import annotations

from sparse_mpi.algorithms.oktopk.oktopk import OkTopk

__all__ = ["OkTopk"]
