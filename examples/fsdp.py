"""A sharded transformer, twice: torchrun --nproc-per-node 4 examples/fsdp.py."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from sparse_mpi.fsdp import attach

text = bytearray(open(nn.functional.__file__, "rb").read())
text = torch.frombuffer(text, dtype=torch.uint8).long()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)  # all processes begin with the same weights
sizes = {"dim_feedforward": 128, "dropout": 0.0, "batch_first": True}
layers = [nn.TransformerEncoderLayer(64, 4, **sizes) for _ in range(2)]
ends = nn.Linear(64, 256), nn.LogSoftmax(2)
model = nn.Sequential(nn.Embedding(256, 64), *layers, *ends)
for layer in (*layers, model):
    fully_shard(layer, mesh=mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
reduction = attach(model, mesh["replicate"], optimizer=optimizer, density=0.05)

torch.manual_seed(dist.get_rank())  # and draw samples of their own
steps = 40
for _ in range(steps):
    tokens = text[torch.randint(len(text) - 33, (16, 1)) + torch.arange(33)]
    optimizer.zero_grad()
    chances, following = model(tokens[:, :-1]), tokens[:, 1:]
    loss = nn.functional.nll_loss(chances.flatten(0, 1), following.flatten())
    loss.backward()
    optimizer.step()

sent = reduction.comm.traffic.sent / steps
print(f"loss {loss:.2f}, {sent:,.0f} bytes a step to the other replica\n", end="")
dist.destroy_process_group()
