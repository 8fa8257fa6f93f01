"""Training in checkpoints of torch.distributed.checkpoint: `TrainingState`.

    state = {"training": TrainingState(model, optimizer, optimizer.reduction)}
    torch.distributed.checkpoint.save(state, checkpoint_id=folder)
    ...
    state = {"training": TrainingState(model, optimizer, optimizer.reduction, folder)}
    torch.distributed.checkpoint.load(state, checkpoint_id=folder)

Residuals differ between ranks: each has its own key. Sharded models: `sparse_mpi.fsdp`.
"""

from __future__ import annotations

import re
from typing import Any

from torch import from_numpy, nn, uint8, zeros
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.storage import StorageReader
from torch.optim import Optimizer

from sparse_mpi.training.broadcasts import packed, unpacked
from sparse_mpi.training.door import Door

RANK = re.compile(r"(?:.*\.)?rank (\d+) of (\d+)")  # keys of what a rank owes, behind that of the training


class TrainingState(Stateful):
    """Model, optimizer and residuals of a run over a process group, for ``save`` and ``load`` of torch.

    On the same number of ranks training goes on bit for bit; on others residuals are dealt out as by ``take_over``.

    Args:
        model: the module, or its DDP.
        optimizer: torch's or `DistributedOptimizer`; None for `DiLoCo`, which has its own.
        door: the reduction: ``optimizer.reduction``, a `SparseState` or a `DiLoCo`.
        reader: checkpoint to be loaded, as folder or torch's reader; None to save.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | None, door: Door, reader: StorageReader | str | None = None
    ) -> None:
        self._model, self._optimizers = model, [] if optimizer is None else [optimizer]
        self._door, self._reader = door, FileSystemReader(reader) if isinstance(reader, str) else reader

    def state_dict(self) -> dict[str, object]:
        """Return this rank's part; with a ``reader``, room for the states that it takes over."""
        model, optimizer = get_state_dict(self._model, self._optimizers)
        shared: dict[str, object] = {"model": model, "optimizer": optimizer} if self._optimizers else {"model": model}
        comm = self._door.comm
        if self._reader is None:
            own = from_numpy(packed(self._door.state_dict()).copy())
            return shared | {f"rank {comm.rank} of {comm.size}": own}
        known: Any = self._reader.read_metadata().state_dict_metadata
        saved = {match[0]: match for match in map(RANK.fullmatch, known) if match}
        if not saved:
            raise ValueError(f"reader must be a checkpoint with a TrainingState, got {self._reader}")
        self._saved = int(next(iter(saved.values()))[2])
        mine = [key for key, match in saved.items() if int(match[1]) % comm.size == comm.rank]
        return shared | {key.rpartition(".")[2]: zeros(known[key].size, dtype=uint8) for key in mine}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``load`` has read, before the first step. Collective.

        Raises:
            ValueError: no ``reader`` was given, or the states are of another reduction.
        """
        found = sorted((int(match[1]), int(match[2]), key) for key in state_dict if (match := RANK.fullmatch(key)))
        if self._reader is None:
            raise ValueError("reader must be the checkpoint to be loaded, got None: TrainingState(..., reader=folder)")
        set_state_dict(
            self._model,
            self._optimizers,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict.get("optimizer", {}),
        )
        states = [unpacked(state_dict[key].numpy()) for _, _, key in found]
        self._door.take_over(states, self._saved)
