"""torch's Muon on matrices, AdamW on the rest, with the hook: torchrun --nproc-per-node 2 examples/with_muon.py."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.ddp import SparseState, sparse_hook

dist.init_process_group("gloo")
share = slice(dist.get_rank(), None, dist.get_world_size())  # of the images, for this process
pixels, labels = (torch.from_numpy(array[share]) for array in load_digits(return_X_y=True))
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
muon = torch.optim.Muon([p for p in net.parameters() if p.ndim == 2], lr=0.02, weight_decay=0.0)
adamw = torch.optim.AdamW([p for p in net.parameters() if p.ndim != 2], lr=0.001)
model, state = DistributedDataParallel(net), SparseState(net.named_parameters(), density=0.05)
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

print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {state.report.traffic.sent} bytes in the last step")
print(f"weights add up to {sum(p.double().sum() for p in net.parameters()):.12f}")
dist.destroy_process_group()
