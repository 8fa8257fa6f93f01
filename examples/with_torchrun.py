"""The hook without MPI: torchrun --nproc-per-node 2 examples/with_torchrun.py."""

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
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
state = SparseState(net.named_parameters(), density=0.05, optimizer=optimizer)
model.register_comm_hook(state, sparse_hook)

losses = []
for _ in range(100):
    batch = torch.randint(len(labels), (32,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(pixels[batch].float() / 16), labels[batch])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

sent = state.report.traffic.sent
print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {sent} bytes in the last step")
print(f"weights add up to {sum(p.double().sum() for p in net.parameters()):.12f}")
dist.destroy_process_group()
