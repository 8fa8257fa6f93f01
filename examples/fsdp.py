"""Two replicas of a sharded transformer: python -m torch.distributed.run --nproc-per-node 4 examples/fsdp.py."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from sparse_mpi.fsdp import attach

text = torch.frombuffer(bytearray(open(nn.functional.__file__, "rb").read()), dtype=torch.uint8).long()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)  # all processes begin with the same weights
layers = [nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)]
model = nn.Sequential(nn.Embedding(256, 64), *layers, nn.Linear(64, 256), nn.LogSoftmax(2))
for layer in (*layers, model):
    fully_shard(layer, mesh=mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
reduction = attach(model, mesh["replicate"], optimizer=optimizer, density=0.05)

torch.manual_seed(dist.get_rank())  # and draw samples of their own
steps = 40
for _ in range(steps):
    tokens = text[torch.randint(len(text) - 33, (16, 1)) + torch.arange(33)]
    optimizer.zero_grad()
    loss = nn.functional.nll_loss(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()

print(f"loss {loss:.2f}, {reduction.comm.traffic.sent / steps:,.0f} bytes a step to the other replica\n", end="")
dist.destroy_process_group()
