"""The interface of a training task: a model, its batches, their loss, and its scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from data.share import Share

Sums = np.ndarray  # (any,) float64: sums over items, to be added up over batches and ranks; the first is their number


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
