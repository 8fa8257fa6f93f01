"""Lightning: the strategy "sparse_mpi", which is DDP with the hook.

    import sparse_mpi.integrations.lightning

    Trainer(strategy="sparse_mpi")
    Trainer(strategy=SparseDDPStrategy(density=0.01, static_graph=True))

Importing this registers the name. Lightning's own ``DDPStrategy(ddp_comm_hook=sparse_hook, ...)`` silently ignores the
hook on devices other than CUDA's.
"""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.integrations.framework_state import rank_file, restore, save

__all__ = ["SparseDDPStrategy"]


class SparseDDPStrategy(DDPStrategy):
    """Lightning's strategy for DistributedDataParallel, with sparsely reduced gradients.

    Every rank saves its state beside the checkpoint, as ``CHECKPOINT.rank0.pt`` and so on, in a local or shared folder.
    A fit that resumes on the same number of ranks goes on with it.

    Args:
        with_optimizer: give the hook the model's optimizer, where there is one.
        arguments: options of Lightning's ``DDPStrategy`` and DistributedDataParallel, as ``static_graph=True``; others
            are for `SparseState`, as ``density``.

    Attributes:
        sparse_state: the hook's state in the last fit; at first None.
    """

    strategy_name = "sparse_mpi"

    def __init__(self, *, with_optimizer: bool = True, **arguments: Any) -> None:
        theirs = {name for kind in (DDPStrategy, DistributedDataParallel) for name in signature(kind).parameters}
        super().__init__(**{name: arguments.pop(name) for name in [*arguments] if name in theirs})
        self.sparse_state: SparseState | None = None
        self._with_optimizer, self._arguments = with_optimizer, arguments
        self._checkpoint: str | Path | None = None  # the checkpoint that was read last

    def setup(self, trainer: Any) -> None:
        """Wrap the model in DDP, make its optimizers and, to fit it, register the hook. Collective."""
        super().setup(trainer)
        if not isinstance(self.model, DistributedDataParallel):  # tests and predictions have no gradients
            return
        optimizer = self.optimizers[0] if self._with_optimizer and len(self.optimizers) == 1 else None
        scaler = getattr(self.precision_plugin, "scaler", None)
        parameters = self.lightning_module.named_parameters()
        self.sparse_state = SparseState(parameters, optimizer=optimizer, scaler=scaler, **self._arguments)
        self.model.register_comm_hook(self.sparse_state, sparse_hook)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if self.sparse_state is not None:
            save(self.sparse_state, filepath)

    def remove_checkpoint(self, filepath: Any) -> None:
        super().remove_checkpoint(filepath)
        rank_file(filepath, self.global_rank).unlink(missing_ok=True)

    def load_checkpoint(self, checkpoint_path: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        self._checkpoint = checkpoint_path
        return dict(super().load_checkpoint(checkpoint_path, *arguments, **options))

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Restore optimizers, and the hook's state, from the checkpoint that was read. Collective."""
        super().load_optimizer_state_dict(checkpoint)
        if self.sparse_state is not None and self._checkpoint is not None:
            restore(self.sparse_state, self._checkpoint)


if SparseDDPStrategy.strategy_name not in StrategyRegistry:
    StrategyRegistry.register(
        SparseDDPStrategy.strategy_name, SparseDDPStrategy, description="DDP whose gradients are reduced sparsely"
    )
