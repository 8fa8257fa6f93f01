"""Small models and their data, by the names that a `Program` has for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from . import embedding_net


class Net(nn.Module):
    """Three layers, of which a loss uses all or the first alone, and one that may be added."""

    def __init__(self, wide: int = 6, rows: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(4, wide), nn.Linear(wide, rows), nn.Linear(rows, 2)])
        self.more: nn.Linear | None = None

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        first, second, last = self.layers
        hidden = torch.tanh(first(x))
        if which == 1:
            return hidden
        return last(torch.tanh(second(hidden))) + (0 if self.more is None else self.more(x))

    def loss(self, model: Callable, draw: torch.Generator, which: int) -> torch.Tensor:
        x, y = torch.randn(6, 4, generator=draw), torch.randn(6, self.layers[0].out_features, generator=draw)
        x, y = (part.to(self.layers[0].weight.dtype) for part in (x, y))
        out = model(x.requires_grad_(), which)  # so that there is a backward pass, whatever is frozen
        return nn.functional.mse_loss(out, y[:, : out.shape[1]])


class Tables(embedding_net.Net):
    """Embeddings whose gradients are sparse tensors, and a layer."""

    def forward(self, tokens: torch.Tensor, which: int) -> torch.Tensor:
        return super().forward(tokens)

    def loss(self, model: Callable, draw: torch.Generator, which: int) -> torch.Tensor:
        return model(torch.randint(40, (4, 5), generator=draw), which)


class Recomputed(nn.Module):
    """Layers whose activations are computed anew in the backward pass, the middle one ``times`` over.

    One parameter has no elements.
    """

    def __init__(self, times: int, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)])
        self.times, self.reentrant = times, reentrant
        self.none = nn.Parameter(torch.ones(0, 3))

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        first, middle, last = self.layers
        x = x + self.none.sum()
        for layer in (first, *[middle] * self.times):
            if self.reentrant is None:
                x = torch.relu(layer(x))
            else:
                x = recomputed(lambda y, layer=layer: torch.relu(layer(y)), x, use_reentrant=self.reentrant)
        return last(x)

    loss = Net.loss


class Images(nn.Module):
    """A weight whose gradient is what the model is called with, in the usual order of memory or that of images."""

    def __init__(self, order: torch.memory_format = torch.contiguous_format) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(8, 5, 3, 3).to(memory_format=order))

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return (self.weight * x).sum()

    def loss(self, model: Callable, draw: torch.Generator, which: int) -> torch.Tensor:
        return model(torch.randn(8, 5, 3, 3, generator=draw), which)


NETS: dict[str, Callable] = {
    "layers": Net,
    "wide": partial(Net, 101, 101),
    "tables": Tables,
    "images": Images,
    "turned": partial(Images, torch.channels_last),
    "static": partial(Recomputed, 2, None),
    "reentrant": partial(Recomputed, 2, True),
    "anew": partial(Recomputed, 1, False),
}
