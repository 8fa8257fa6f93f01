"""The hook's state, saved and restored rank by rank: frameworks save the first rank's alone."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.ddp import SparseState

LOGGER = logging.getLogger("sparse_mpi")


def rank_file(checkpoint: str | Path, rank: int) -> Path:
    return Path(f"{checkpoint}.rank{rank}.pt")


def save(state: SparseState, checkpoint: str | Path) -> None:
    file = rank_file(checkpoint, state.comm.rank)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.tmp")
    partial.unlink(missing_ok=True)  # a link, too, which is not followed
    with partial.open("xb") as written:
        torch.save(state.state_dict(), written)
    partial.replace(file)


def restore(state: SparseState, checkpoint: str | Path) -> None:
    """Read a file of `save`, or warn if there is none; before the first step. Collective."""
    file, beyond = (rank_file(checkpoint, rank) for rank in (state.comm.rank, state.comm.size))
    with same_on_all_ranks(state.comm) as say:
        if beyond.exists():
            raise ValueError(
                f"a checkpoint must be resumed by as many ranks as have saved it, got {state.comm.size} and {beyond}; "
                "without the files of its ranks it is resumed by any number, and their residuals are lost"
            )
        try:
            saved = torch.load(file, weights_only=True) if file.is_file() else None
        except Exception as error:  # torch's errors for damaged bytes are of many types
            raise ValueError(f"{file} must be what this rank has saved, got damaged data; resume without it") from error
        say(**{f"{Path(checkpoint).name}.rank*.pt": "found" if saved else "missing"})
    if saved is not None:
        state.load_state_dict(saved)
    elif state.comm.rank == 0:
        LOGGER.warning("sparse_mpi: there is no %s: what earlier steps had not sent yet is lost", file)
