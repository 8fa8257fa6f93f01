"""Train by local steps: exchange what the model has moved, every so many steps, instead of every gradient."""

from __future__ import annotations

from sparse_mpi.local.diloco import DiLoCo

__all__ = ["DiLoCo"]
