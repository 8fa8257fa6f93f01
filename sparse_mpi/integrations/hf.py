"""Hugging Face's Trainer: a callback that reduces its gradients sparsely.

    Trainer(model, args, train_dataset=..., callbacks=[SparseCallback(density=0.01)])

The Trainer has to wrap its model in DistributedDataParallel, as where torchrun starts a process a device.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any
from weakref import WeakSet

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.integrations.framework_state import restore, save

__all__ = ["SparseCallback"]

SENT = "sparse_bytes"  # the entry of a log with the bytes that this rank has sent in a step, on average

_HOOKED: WeakSet[DistributedDataParallel] = WeakSet()  # DDP takes one hook, once


class SparseCallback(TrainerCallback):
    """Registers the hook of `sparse_mpi.ddp` on the Trainer's DistributedDataParallel.

    With one process it does nothing. Logs have ``sparse_bytes``, this rank's mean bytes of a step since the last log.
    Every rank saves its state in the Trainer's checkpoints, as ``sparse_state.rank0.pt`` and so on; a run that resumes
    on the same number of ranks goes on with it.

    Args:
        with_optimizer: give the hook the Trainer's optimizer.
        arguments: options of `SparseState`, as ``density=0.01`` or ``momentum="global"``.

    Attributes:
        state: the hook's state; None before training.

    Raises:
        RuntimeError: a Trainer of several processes uses DeepSpeed, FSDP or another wrapper than DDP; raised on every
            rank when training begins.
    """

    def __init__(self, *, with_optimizer: bool = True, **arguments: Any) -> None:
        self.state: SparseState | None = None
        self._with_optimizer, self._arguments = with_optimizer, arguments
        self._sent: list[int] = []  # bytes of each step since the last log

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        **others: Any,
    ) -> None:
        if args.world_size == 1 or model is None:
            return
        wrapped = [ddp for ddp in _around(model) if ddp not in _HOOKED]
        if not wrapped and self.state is not None:
            return  # a second call of train() goes on with the same DDP
        if not wrapped:
            plugin = "deepspeed" if args.deepspeed else "fsdp" if args.fsdp else None
            raise RuntimeError(
                f"SparseCallback needs a Trainer that wraps its model in torch's DistributedDataParallel, got "
                f"{args.world_size} processes and {plugin or 'no DistributedDataParallel'}; make TrainingArguments "
                "without deepspeed= and fsdp=, and start one process a device, by torchrun"
            )
        # Accelerate has wrapped the optimizer
        inner, scaler = getattr(optimizer, "optimizer", optimizer), getattr(optimizer, "scaler", None)
        taken = inner if self._with_optimizer else None
        self.state = SparseState(model.named_parameters(), optimizer=taken, scaler=scaler, **self._arguments)
        for ddp in wrapped:  # earlier Trainers have no more steps
            ddp.register_comm_hook(self.state, sparse_hook)
            _HOOKED.add(ddp)
        if state.global_step:
            restore(self.state, _prefix(args, state, args.resume_from_checkpoint))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        if self.state is not None and self.state.report is not None:
            traffic = self.state.report.traffic
            self._sent.append(traffic.sent + traffic.control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        if self._sent and logs is not None:
            logs[SENT] = state.log_history[-1][SENT] = sum(self._sent) / len(self._sent)  # the latter is a copy
            self._sent.clear()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        if self.state is not None:
            save(self.state, _prefix(args, state))


def _around(model: nn.Module) -> list[DistributedDataParallel]:
    """Return the DDPs around ``model``: callbacks get the inner one."""
    # Not by isinstance, which would ask proxies of whatever kind for their class
    every = (thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel))
    return [ddp for ddp in every if ddp.module is model]


def _prefix(args: TrainingArguments, state: TrainerState, folder: str | None = None) -> Path:
    return Path(folder or f"{args.output_dir}/checkpoint-{state.global_step}") / "sparse_state"
