"""The state of the hook in the hands of a framework: made for its optimizer, saved and restored rank by rank.

Frameworks save what all ranks share, on the first rank. The state of the hook is another one on each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.ddp import SparseState
from sparse_mpi.feedback import Feedback
from sparse_mpi.reduction.arguments import can_carry
from sparse_mpi.training.optimizer_momentum import default_mode
from sparse_mpi.training.staleness_adam import TRAVELLING

LOGGER = logging.getLogger("sparse_mpi")


def make_state(
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    optimizer: Optimizer | None,
    *,
    algorithm: str | Algorithm,
    feedback: str | Feedback,
    options: dict[str, Any],
    **arguments: Any,
) -> SparseState:
    """Return the state for a framework's optimizer, which it takes over if it can; see `SparseState`. Collective."""
    mode = "local" if optimizer is None else default_mode(optimizer, feedback, can_carry(algorithm, options))
    taken = optimizer if isinstance(optimizer, SGD) or mode == TRAVELLING else None
    return SparseState(
        named_parameters, algorithm=algorithm, feedback=feedback, optimizer=taken, **arguments, **options
    )


def rank_file(checkpoint: str | Path, rank: int) -> Path:
    return Path(f"{checkpoint}.rank{rank}.pt")


def save(state: SparseState, checkpoint: str | Path) -> None:
    file = rank_file(checkpoint, state.comm.rank)
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state.state_dict(), file)


def restore(state: SparseState, checkpoint: str | Path) -> None:
    """Read what `save` wrote, or warn if it wrote nothing; before the first step. Collective."""
    file, beyond = (rank_file(checkpoint, rank) for rank in (state.comm.rank, state.comm.size))
    with same_on_all_ranks(state.comm) as say:
        if beyond.exists():
            raise ValueError(
                f"a checkpoint must be resumed by as many ranks as have saved it, got {state.comm.size} and {beyond}; "
                "without the files of its ranks it is resumed by any number, and what these had not sent yet is lost"
            )
        saved = torch.load(file) if file.exists() else None
        say(**{f"{Path(checkpoint).name}.rank*.pt": "found" if saved else "missing"})
    if saved is not None:
        state.load_state_dict(saved)
    elif state.comm.rank == 0:
        LOGGER.warning("sparse_mpi: there is no %s: what earlier steps had not sent yet is lost", file)
