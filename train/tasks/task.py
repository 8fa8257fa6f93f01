"""What a training program brings to the loop: a model, its batches, their loss, and what tells how good it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

Sums = np.ndarray  # (any,) float64: sums over items, to be added up over batches and ranks; the first is their number


class Task(Protocol):
    """A model and the data it learns from, on one rank.

    It may have a ``fingerprint``: text that tells the data from others that the model would fit as well, a digest of a
    vocabulary say. A checkpoint of a task is refused by one of another fingerprint.
    """

    model: nn.Module
    steps: int  # of a training epoch, the same on all ranks
    items: str  # what throughput counts: "images", "tokens", "clips"
    headline: str  # the score that tells most: "accuracy", "perplexity", "wer", "f1"

    def train(self, epoch: int, first: int = 0) -> Iterator[Any]:
        """This rank's training batches of ``epoch``, from step ``first`` on.

        A function of seed, epoch, step, rank and number of ranks alone, so that a resumed run sees what it would have.
        """

    def test(self) -> Iterator[Any]:
        """This rank's share of the test batches; possibly none."""

    def judge(self, batch: Any) -> tuple[Tensor, Sums]:
        """Run the model, in the mode it is in: the mean loss, a scalar to go backward from, and what `scores` needs."""

    def scores(self, sums: Sums) -> dict[str, float]:
        """``"loss"`` first, then the headline and what else there is to tell, of the sums of many batches."""
