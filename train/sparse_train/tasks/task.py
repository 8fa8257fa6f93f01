"""The interface of a training task: a model, its batches, their loss, and its scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sparse_train.data.share import Share

Sums = Tensor  # (any,) float64 on the model's device: over items, for all batches and ranks; first, how many there are


def sums(device: torch.device, *values: float | Tensor) -> Sums:
    """Return sums of numbers, and of scalars on the ``device``, which nobody waits for."""
    # A full is made on the device; a tensor of a number would be copied there
    scalars = [v.detach() if isinstance(v, Tensor) else torch.full((), v, device=device) for v in values]
    return torch.stack([scalar.to(torch.float64) for scalar in scalars])


class Task(Protocol):
    """A model and the data it learns from, on one rank."""

    model: nn.Module
    steps: int  # of a training epoch, the same on all ranks
    share: Share  # of the samples, this rank's
    items: str  # what throughput counts: "images", "tokens", "clips"
    headline: str  # the most important score: "accuracy", "perplexity", "wer", "f1"
    # A digest that tells the data, or a vocabulary, from others that the model would fit as well; "" where the model's
    # shape does. A task does not resume from a checkpoint with another fingerprint.
    fingerprint: str

    def train(self, epoch: int, first: int = 0) -> Iterator[Any]:
        """Yield this rank's training batches of ``epoch``, from step ``first`` on.

        Must depend on seed, epoch, step, rank and number of ranks alone, so that a resumed run gets the same batches.
        """

    def test(self) -> Iterator[Any]:
        """Yield this rank's share of the test batches, which may be empty."""

    def judge(self, batch: Any) -> tuple[Tensor, Sums]:
        """Run the model in its current mode; return the mean loss, a scalar with a gradient, and sums for `scores`."""

    def scores(self, sums: Sums) -> dict[str, float]:
        """Return scores by name from the sums of many batches: ``"loss"`` first, then the headline and others."""
