"""Fits a small model with Lightning and the strategy, straight and resumed; `test_lightning` starts it on two ranks.

    python tests/integrations/lightning_job.py FOLDER

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
from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.integrations.lightning import SparseDDPStrategy


class Small(LightningModule):
    """Two layers, by AdamW."""

    def __init__(self) -> None:
        super().__init__()
        seed_everything(1, verbose=False)
        self.net = nn.Sequential(nn.Linear(24, 10), nn.ReLU(), nn.Linear(10, 3))
        self.sent: list[int] = []

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_train_batch_end(self, *_):
        state = getattr(self.trainer.strategy, "sparse_state", None)
        if state is not None:
            self.sent.append(state.report.traffic.sent)
            self.log_dict(state.report.scalars())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def fit(folder: Path, epochs: int, strategy: DDPStrategy, start: Path | None = None) -> dict:
    """Fit anew, or from the checkpoint ``start``, and then test; what came of it."""
    model, draw = Small(), torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(96, 24, generator=draw), torch.randint(3, (96,), generator=draw))
    trainer = Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        max_epochs=epochs,
        logger=CSVLogger(folder.with_name(f"{folder.name} csv")),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.5,
        callbacks=[ModelCheckpoint(folder, filename="{epoch}")],
    )
    trainer.fit(model, DataLoader(data, batch_size=8), ckpt_path=start)
    dist.barrier()
    return {"weights": torch.cat([p.detach().flatten() for p in model.parameters()]), "sent": model.sent}


def sparse(folder: Path, epochs: int, start: Path | None = None) -> dict:
    strategy = SparseDDPStrategy(density=0.1)
    saw = fit(folder, epochs, strategy, start)
    left = torch.cat([torch.from_numpy(x) for x in strategy.sparse_state.residuals().values()])
    logged = [file.read_text().split("\n") for file in folder.parent.glob(f"{folder.name} csv/*/*/metrics.csv")]
    return saw | {"logged": logged, "residual": left, "files": sorted(file.name for file in folder.iterdir())}


def by_lightnings_own(folder: Path) -> dict:
    """Its DDPStrategy with the hook, whose state is made before the process group."""
    state = SparseState(Small().named_parameters(), density=0.1)
    return fit(folder, 1, DDPStrategy(ddp_comm_hook=sparse_hook, ddp_comm_state=state)) | {"steps": state.steps}


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    first = folder / "half" / "epoch=0.ckpt"
    runs = {
        "own": lambda: by_lightnings_own(folder / "own"),
        "straight": lambda: sparse(folder / "straight", 2),
        "half": lambda: sparse(folder / "half", 1),
        "resumed": lambda: sparse(folder / "resumed", 2, first),
    }
    for name, run in runs.items():
        torch.save(run(), folder / f"{name}-{rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    forked.run(2, partial(main, Path(sys.argv[1])))
