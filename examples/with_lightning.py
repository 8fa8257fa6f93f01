"""Lightning with a strategy: torchrun --nproc-per-node 2 examples/with_lightning.py."""

import torch
from lightning import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sparse_mpi.integrations.lightning  # noqa: F401  # registers the strategy


class Digits(LightningModule):
    """Reads digits."""

    def __init__(self) -> None:
        super().__init__()
        hidden = nn.Linear(64, 256), nn.ReLU()
        self.net, self.losses = nn.Sequential(*hidden, nn.Linear(256, 10)), []

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.5)


pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
digits = TensorDataset(pixels.float() / 16, labels)
loader = DataLoader(digits, batch_size=32, shuffle=True)
model = Digits()
quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
cpus = {"accelerator": "cpu", "devices": 2}
trainer = Trainer(strategy="sparse_mpi", max_epochs=4, **cpus, **quiet)
trainer.fit(model, loader)

sent = trainer.strategy.sparse_state.report.traffic.sent
print(f"loss {model.losses[0]:.3f} to {model.losses[-1]:.3f}, {sent} bytes in a step")
print(f"weights add up to {sum(p.double().sum() for p in model.parameters()):.12f}")
