"""Trains a small model with Hugging Face's Trainer and the callback; `test_hf` starts it on two ranks.

    python tests/integrations/hf_job.py FOLDER

Every rank saves what it saw in FOLDER/RUN-rank.pt.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import forked  # it lies beside this script
import torch
import torch.distributed as dist
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from sparse_mpi.integrations.hf import SparseCallback

STEPS = 6
SIZE = {"n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}


def small() -> nn.Module:
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(vocab_size=11, bos_token_id=0, eos_token_id=0, **SIZE))


def arguments(folder: Path, **more: object) -> TrainingArguments:
    return TrainingArguments(
        str(folder),
        **{
            "max_steps": STEPS,
            "per_device_train_batch_size": 4,
            "learning_rate": 0.01,
            "lr_scheduler_type": "constant",
            "gradient_accumulation_steps": 2,
            "logging_steps": 1,
            "save_steps": 3,
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            "ddp_find_unused_parameters": False,
        }
        | more,
    )


class Tracker(TrainerCallback):
    """What a tracker is told that stands behind our callback."""

    def __init__(self) -> None:
        self.told: list[set[str]] = []

    def on_log(self, *_: object, logs: dict, **__: object) -> None:
        self.told.append(set(logs))


def trainer_of(model: nn.Module, args: TrainingArguments) -> tuple[Trainer, SparseCallback]:
    draw = torch.Generator().manual_seed(1)
    words = torch.randint(11, (128, 8), generator=draw)
    data = [{"input_ids": row, "labels": row} for row in words]
    callback = SparseCallback(density=0.1)
    return Trainer(model, args, train_dataset=data, callbacks=[callback, Tracker()]), callback


def seen(trainer: Trainer, callback: SparseCallback) -> dict:
    left = torch.cat([torch.from_numpy(x) for x in callback.state.residuals().values()])
    dist.barrier()
    return {
        "weights": torch.cat([p.detach().flatten() for p in trainer.model.parameters()]),
        "residual": left,
        "logs": [log for log in trainer.state.log_history if "loss" in log],
        "steps": callback.state.steps,
        "tracked": next(one for one in trainer.callback_handler.callbacks if isinstance(one, Tracker)).told,
    }


def trained(folder: Path, start: Path | None = None) -> dict:
    trainer, callback = trainer_of(small(), arguments(folder))
    trainer.train(resume_from_checkpoint=start and str(start))
    return seen(trainer, callback)


def trained_again(folder: Path) -> dict:
    """A second call of ``train``, and then another Trainer of the same model, which has a DDP of its own."""
    args = arguments(folder, save_strategy="no")
    first, callback = trainer_of(small(), args)
    first.train()
    first.train()
    again = callback.state.steps
    second, callback = trainer_of(first.model, args)
    second.train()
    return seen(second, callback) | {"again": again}


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    place = folder / "straight"
    torch.save(trained(place), folder / f"straight-{rank}.pt")
    # A run resumes from a folder of its own
    torch.save(trained(place, place / "checkpoint-3"), folder / f"resumed-{rank}.pt")
    torch.save(trained_again(folder / "again"), folder / f"again-{rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    forked.run(2, partial(main, Path(sys.argv[1])))
