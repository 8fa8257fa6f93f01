"""Cut a model's parameters into buckets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor


def cut(parameters: Sequence[Tensor], max_bytes: float) -> list[list[Tensor]]:
    """Cut parameters into buckets, in about the order in which a backward pass finishes them: the last come first.

    A bucket holds neighbours of one dtype and device, in the order of ``parameters``, and at most ``max_bytes`` unless
    it is a single parameter. The bucket that is finished last holds an eighth of that, because no backward pass is left
    to hide its reduction.
    """
    first = _leading(parameters, max_bytes / 8)
    buckets: list[list[Tensor]] = []
    for _, same in groupby(reversed(parameters[len(first) :]), key=_kind):
        rest = list(same)
        while rest:
            buckets.append(_leading(rest, max_bytes)[::-1])
            rest = rest[len(buckets[-1]) :]
    return [*buckets, first] if first else buckets


def _leading(parameters: Sequence[Tensor], max_bytes: float) -> list[Tensor]:
    """Return as many of the first parameters, of one dtype and device, as fit; at least one if there is any."""
    taken: list[Tensor] = []
    size = 0
    for parameter in parameters:
        size += parameter.numel() * parameter.element_size()
        if taken and (size > max_bytes or _kind(parameter) != _kind(taken[0])):
            break
        taken.append(parameter)
    return taken


def _kind(parameter: Tensor) -> tuple[torch.dtype, torch.device]:
    """Return what the parameters of a bucket have in common."""
    return parameter.dtype, parameter.device
