"""`plain.py` on any number of ranks: mpiexec -n 4 python distributed.py, or srun."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from sparse_mpi.optim import DistributedOptimizer, broadcast_parameters

pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
pixels = (pixels / 16).float()
model = nn.Sequential(
    nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
optimizer = DistributedOptimizer(optimizer, density=0.05)
broadcast_parameters(model.state_dict())

draw = np.random.default_rng()  # seeded by the system: every process draws its own
for _ in range(150):
    batch = torch.from_numpy(draw.integers(0, 1500, 32))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(pixels[batch]), labels[batch]).backward()
    optimizer.step()

accuracy = (model(pixels[1500:]).argmax(1) == labels[1500:]).float().mean()
weights = sum(p.double().sum() for p in model.parameters())
print(f"accuracy {accuracy:.3f}, weights add up to {weights:.12f}")
