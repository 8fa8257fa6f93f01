"""Accelerate with the hook: torchrun --nproc-per-node 2 examples/with_accelerate.py."""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sparse_mpi.ddp import SparseState, sparse_hook

pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
accelerator = Accelerator(cpu=True)
digits = TensorDataset(pixels.float() / 16, labels)
loader = DataLoader(digits, batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(net, sgd, loader)
state = SparseState(net.named_parameters(), density=0.05, optimizer=sgd)
model.register_comm_hook(state, sparse_hook)

losses = []
for _ in range(4):
    for images, digits in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), digits)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())

sent = state.report.traffic.sent
print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {sent} bytes in the last step")
print(f"weights add up to {sum(p.double().sum() for p in net.parameters()):.12f}")
accelerator.end_training()
