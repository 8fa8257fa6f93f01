"""`plain.py` by local steps: python -m sparse_mpi run -n 4 examples/local_steps.py."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from sparse_mpi.training.diloco import DiLoCo

pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
pixels = (pixels / 16).float()
model = nn.Sequential(
    nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
)
inner = torch.optim.AdamW(model.parameters(), lr=2e-3)
outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
local = DiLoCo(model, inner, outer, sync_every=15, density=0.05, feedback="leaky")

draw = np.random.default_rng()  # seeded by the system: every process draws its own
for _ in range(150):
    batch = torch.from_numpy(draw.integers(0, 1500, 32))
    inner.zero_grad()
    nn.functional.cross_entropy(model(pixels[batch]), labels[batch]).backward()
    inner.step()  # every 15th is followed by an exchange
local.synchronize()

accuracy = (model(pixels[1500:]).argmax(1) == labels[1500:]).float().mean()
weights = sum(p.double().sum() for p in model.parameters())
print(f"accuracy {accuracy:.3f}, weights add up to {weights:.12f}")
