"""Checkpoints of a job of many ranks: written whole or not at all, and checked before use.

A checkpoint is a folder ``step-00000042`` on a file system that all ranks share. It holds ``model.bin``, which rank 0
writes, ``rank-00003-of-00004.npz`` with the state of each rank, and ``checkpoint.json``: its identity, and size and
SHA-256 of every file. Until it is complete and on the disk, the folder has another name, one that begins with a dot::

    facts, state = {"model": "vgg16"}, reducer.state_dict()
    save("run/checkpoints", step, facts, model_bytes, state, comm, keep=2)
    saved = load("run/checkpoints", comm)
    reducer.take_over(saved.states, saved.ranks)
"""

from __future__ import annotations

from sparse_mpi.checkpoint.manifest import latest
from sparse_mpi.checkpoint.reading import Checkpoint, load
from sparse_mpi.checkpoint.together import CheckpointError
from sparse_mpi.checkpoint.writing import save

__all__ = ["Checkpoint", "CheckpointError", "latest", "load", "save"]
