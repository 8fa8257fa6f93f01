"""Muon, and AdamW beside it: torchrun --nproc-per-node 2 examples/with_muon.py."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.ddp import SparseState, sparse_hook

dist.init_process_group("gloo")
share = slice(dist.get_rank(), None, dist.get_world_size())  # images of this process
digits = load_digits(return_X_y=True)
pixels, labels = (torch.from_numpy(array[share]) for array in digits)
hidden = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
net = nn.Sequential(*hidden, nn.Linear(256, 10))
matrices = [p for p in net.parameters() if p.ndim == 2]
muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.0)
adamw = torch.optim.AdamW([p for p in net.parameters() if p.ndim != 2], lr=0.001)
model = DistributedDataParallel(net)
state = SparseState(net.named_parameters(), density=0.05)
model.register_comm_hook(state, sparse_hook)

losses = []
for _ in range(100):
    batch = torch.randint(len(labels), (32,))
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(pixels[batch].float() / 16), labels[batch])
    loss.backward()
    muon.step()
    adamw.step()
    losses.append(loss.item())

sent = state.report.traffic.sent
print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {sent} bytes in the last step")
print(f"weights add up to {sum(p.double().sum() for p in net.parameters()):.12f}")
dist.destroy_process_group()
