"""The interface of a training task, a model, its batches, their loss and scores; and a task on a device."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain, pairwise
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from sparse_train.data.share import Share

M = TypeVar("M", bound=nn.Module)
MAX_LOSS = 700  # nats; the exponential of more is no float64
Sums = Tensor  # (any,) float64 on the model's device: over items, for all batches and ranks; first, their number


def sums(device: torch.device, *values: float | Tensor) -> Sums:
    """Return sums of numbers, and of scalars on the ``device``, without waiting for them."""
    # A full is made on the device; a tensor of a number would be copied there
    scalars = [v.detach() if isinstance(v, Tensor) else torch.full((), v, device=device) for v in values]
    return torch.stack([scalar.to(torch.float64) for scalar in scalars])


def seeded(args: Namespace, build: Callable[[], M]) -> M:
    """Return a model with first weights of ``args.seed``; ``build()`` makes it and does not communicate.

    Ranks of a `World` share torch's generator, and give their turn up in calls alone.
    """
    torch.manual_seed(args.seed)
    return build()


class Task(Protocol):
    """A model and the data it learns from, on one rank."""

    model: nn.Module
    steps: int  # steps of a training epoch, the same on all ranks
    share: Share  # this rank's share of the samples
    items: str  # the noun that throughput counts: "images", "tokens", "clips"
    headline: str  # the most important score: "accuracy", "perplexity", "wer", "f1"
    # A digest of the data, or a vocabulary, if the model's shape does not tell it; else "". A task does not resume from
    # a checkpoint with another fingerprint.
    fingerprint: str

    def train(self, epoch: int, first: int = 0) -> Iterator[Any]:
        """Yield this rank's training batches of ``epoch``, from step ``first`` on.

        Must depend on seed, epoch, step, rank and number of ranks alone, so that a resumed run gets the same batches.
        """

    def test(self) -> Iterator[Any]:
        """Yield this rank's share of the test batches, which may be empty."""

    def forward_and_loss(self, batch: Any) -> tuple[Tensor, Sums]:
        """Run the model in its current mode; return the mean loss, a scalar with a gradient, and sums for `scores`."""

    def scores(self, sums: Sums) -> dict[str, float]:
        """Return scores by name from the sums of many batches: ``"loss"`` first, then the headline and others."""


class OnDevice:
    """A `Task` on a device. All else is as the task has it.

    Args:
        task: holds the model to move.
        device: the model's new device.
        precision: ``"float32"``, or ``"bf16"``: torch's autocast, with weights and gradients in float32.
    """

    def __init__(self, task: Task, device: torch.device, precision: str) -> None:
        self._task, self._device, self._half = task, device, precision == "bf16"
        task.model.to(device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def train(self, epoch: int, first: int = 0) -> Iterator[Any]:
        return ahead(self._task.train(epoch, first), self._device)

    def test(self) -> Iterator[Any]:
        return ahead(self._task.test(), self._device)

    def forward_and_loss(self, batch: Any) -> tuple[Tensor, Sums]:
        """Return the task's result, of passes in this precision."""
        with torch.autocast(self._device.type, torch.bfloat16) if self._half else nullcontext():
            return self._task.forward_and_loss(batch)


def ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Yield the batches on the device, in their order; the next one travels there while one is worked on."""
    if device.type != "cuda":
        yield from (moved(batch, device) for batch in batches)
        return
    stream = torch.cuda.Stream(device)

    def sent(batch: Any) -> Any:
        # Copy from pinned memory on its own stream, without waiting
        with torch.cuda.stream(stream):
            return moved(batch, device, pinned=True)

    for batch, _ in pairwise(chain(map(sent, batches), [None])):
        current = torch.cuda.current_stream()
        current.wait_stream(stream)  # its work from here on comes after the copy
        for tensor in batch:
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                tensor.record_stream(current)  # its memory is not given away before that work is done
        yield batch


def moved(batch: Any, device: torch.device, pinned: bool = False) -> Any:
    """Return a tuple with its tensors on the device, except the ones that it names in ``on_host``."""
    stay = getattr(batch, "on_host", ())
    names = getattr(batch, "_fields", range(len(batch)))

    def part(name: Any, value: Any) -> Any:
        if not isinstance(value, Tensor) or name in stay:
            return value
        return (value.pin_memory() if pinned else value).to(device, non_blocking=pinned)

    parts = [part(name, value) for name, value in zip(names, batch, strict=True)]
    return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
