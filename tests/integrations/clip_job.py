"""Trains a small GPT on characters with ``clip_grad_norm_`` left in, and with ``clip_norm=`` in its place.

    python tests/integrations/clip_job.py DOOR FILE

Rank 0 saves the losses of both on other text in FILE, by seed.
"""

from __future__ import annotations

import math
import os
import sys
from functools import partial
from pathlib import Path

import forked  # it lies beside this script
import torch
import torch.distributed as dist
from accelerate import Accelerator
from lightning import LightningModule
from lightning import Trainer as LightningTrainer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.fsdp import attach
from sparse_mpi.integrations.hf import SparseCallback
from sparse_mpi.integrations.lightning import SparseDDPStrategy
from sparse_mpi.optim import DistributedOptimizer

SEEDS, STEPS, WARM, BATCH, BLOCK, RATE, MOST = (1, 2), 200, 20, 8, 64, 3e-3, 1.0
SIZE = {"n_positions": BLOCK, "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 128, "bos_token_id": 0}
DROP = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
CLIP = torch.nn.utils.clip_grad_norm_


def texts(seed: int) -> tuple[list[dict], torch.Tensor]:
    """Rows of characters to train on, those of all ranks in turn, and others."""
    text = "".join(file.read_text() for file in sorted(Path(os.__file__).parent.glob("[a-d]*.py")))
    rows = torch.tensor(list(text.encode("ascii", "ignore"))).split(BLOCK)[:-1]
    order = torch.randperm(len(rows) - 400, generator=torch.Generator().manual_seed(seed)).tolist()
    chosen = [rows[number] for number in order[: 2 * STEPS * BATCH]]
    return [{"input_ids": row, "labels": row} for row in chosen], torch.stack(rows[-400:])


def stepping(net: torch.nn.Module) -> tuple[torch.optim.Optimizer, LambdaLR]:
    optimizer = torch.optim.AdamW(net.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.1)
    rates = LambdaLR(optimizer, lambda step: min((step + 1) / WARM, 0.55 + 0.45 * math.cos(math.pi * step / STEPS)))
    return optimizer, rates


def looped(net, optimizer, rates, data, *, model=None, backward=torch.Tensor.backward, clip=None) -> None:
    """A loop as in public scripts, over the rows of this rank."""
    model = model or net
    loader = DataLoader(data[dist.get_rank() :: 2], batch_size=BATCH)
    for batch in loader:
        optimizer.zero_grad()
        backward(model(**batch).loss)
        if clip is not None:
            clip(model.parameters(), MOST)
        optimizer.step()
        rates.step()


def given(line: bool) -> dict[str, float]:
    """Arguments of a door: none where the script clips by itself."""
    return {} if line else {"clip_norm": MOST}


def by_optimizer(net, data, line: bool) -> None:
    optimizer, rates = stepping(net)
    optimizer = DistributedOptimizer(optimizer, net.named_parameters(), **given(line))
    looped(net, optimizer, rates, data, clip=CLIP if line else None)


def by_hook(net, data, line: bool) -> None:
    optimizer, rates = stepping(net)
    model = DistributedDataParallel(net)
    model.register_comm_hook(SparseState(net.named_parameters(), optimizer=optimizer, **given(line)), sparse_hook)
    looped(net, optimizer, rates, data, model=model, clip=CLIP if line else None)


def by_fsdp(net, data, line: bool) -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    for part in (*net.transformer.h, net):
        fully_shard(part, mesh=mesh["shard"])
    optimizer, rates = stepping(net)
    attach(net, mesh["replicate"], optimizer=optimizer, **given(line))
    looped(net, optimizer, rates, data, clip=CLIP if line else None)


def by_accelerate(net, data, line: bool) -> None:
    accelerator, (optimizer, rates) = Accelerator(cpu=True), stepping(net)
    model, prepared = accelerator.prepare(net, optimizer)
    model.register_comm_hook(SparseState(net.named_parameters(), optimizer=optimizer, **given(line)), sparse_hook)
    clip = accelerator.clip_grad_norm_ if line else None
    looped(net, prepared, rates, data, model=model, backward=accelerator.backward, clip=clip)


class Module(LightningModule):
    def __init__(self, net) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch, _):
        return self.net(**batch).loss

    def configure_optimizers(self):
        optimizer, rates = stepping(self.net)
        return [optimizer], [{"scheduler": rates, "interval": "step"}]


def by_lightning(net, data, line: bool) -> None:
    trainer = LightningTrainer(
        strategy=SparseDDPStrategy(**given(line)),
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        gradient_clip_val=MOST if line else None,
    )
    trainer.fit(Module(net), DataLoader(data, batch_size=BATCH))


def by_hugging_face(net, data, line: bool) -> None:
    args = TrainingArguments(
        "unused",
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        max_grad_norm=MOST if line else 0.0,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    callback = SparseCallback(**given(line))
    Trainer(net, args, train_dataset=data, optimizers=stepping(net), callbacks=[callback]).train()


DOORS = {
    "optimizer": by_optimizer,
    "hook": by_hook,
    "FSDP2": by_fsdp,
    "Lightning": by_lightning,
    "Hugging Face": by_hugging_face,
    "Accelerate": by_accelerate,
}


def main(door: str, file: Path) -> None:
    torch.set_num_threads(1)
    if door not in ("Lightning", "Hugging Face", "Accelerate"):
        dist.init_process_group("gloo")
    found = []
    for seed in SEEDS:
        data, others = texts(seed)
        losses = []
        for line in (True, False):
            torch.manual_seed(seed)
            net = GPT2LMHeadModel(GPT2Config(eos_token_id=0, **SIZE, **DROP))
            DOORS[door](net, data, line)
            with torch.no_grad():
                losses.append(float(net.eval()(input_ids=others, labels=others).loss))
        found.append(losses)
    if os.environ["RANK"] == "0":
        torch.save(found, file)


if __name__ == "__main__":
    forked.run(2, partial(main, sys.argv[1], Path(sys.argv[2])))
