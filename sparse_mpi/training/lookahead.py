"""Move weights to where a feedback rule wants gradients to be computed, and put them back: `Lookahead`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from sparse_mpi.arrays import leave, on_stream_of
from sparse_mpi.training.bucket import Bucket


class Lookahead:
    """Makes sure that gradients are those of the weights that a rule with a `Feedback.preview` wants."""

    def __init__(self) -> None:
        self._inside = False  # weights are where gradients must be computed
        self._entered = False  # they have been since the last step

    @contextmanager
    def moved(self, buckets: Sequence[Bucket], rates: Mapping[Tensor, float], in_place: bool) -> Iterator[None]:
        """Keep weights moved against the preview in this context, and restore them to the bit at its end.

        Args:
            buckets: of all parameters; they have the same rule.
            rates: the learning rate of each parameter.
            in_place: gradients are added to the residual.

        Raises:
            RuntimeError: the residual holds gradients that have arrived since the last step.
        """
        if in_place and any(bucket.arrivals.any for bucket in buckets):
            raise RuntimeError(
                "ahead() must be entered once a step with in_place=True, before the first backward pass: the residual "
                "holds gradients now; put all passes of a step into one block, or use in_place=False"
            )
        # Copies: weights that were moved there and back would differ by rounding
        kept = [(parameter, parameter.detach().clone()) for bucket in buckets for parameter in bucket.parameters]
        self._inside = self._entered = True
        try:
            for bucket in buckets:
                _move(bucket, rates)
            yield
        finally:
            self._inside = False
            with torch.no_grad():
                for parameter, values in kept:
                    parameter.copy_(values)

    def check_arrival(self, buckets: Sequence[Bucket]) -> None:
        """Raise RuntimeError if gradients must be computed within `moved`, and one arrives outside of it."""
        _check(self._inside, buckets)

    def check_step(self, buckets: Sequence[Bucket]) -> None:
        """Raise RuntimeError if gradients must be computed within `moved`, and were not since the last step."""
        _check(self._entered, buckets)
        self._entered = False  # the next step needs its own


@torch.no_grad()
def _move(bucket: Bucket, rates: Mapping[Tensor, float]) -> None:
    """Move the weights of a bucket."""
    with on_stream_of(bucket.flat):
        # The device computes the preview in the order of the gradient's stream
        preview = bucket.reducer.feedback.preview()
    if preview is not None:
        parts = bucket.members.split(leave(preview, bucket.flat))
        for parameter, part in zip(bucket.parameters, parts, strict=True):
            parameter.sub_(part.to(parameter), alpha=rates[parameter])


def _check(ahead: bool, buckets: Sequence[Bucket]) -> None:
    """Raise RuntimeError if gradients must be computed ahead, and were not."""
    if not ahead:
        rule = buckets[0].reducer.feedback
        raise RuntimeError(
            f"gradients must be computed ahead with {rule!r}; write `with optimizer.ahead():` around "
            "the forward and backward passes of every step"
        )
