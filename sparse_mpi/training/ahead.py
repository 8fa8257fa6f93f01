"""Move weights to where a feedback rule wants gradients to be computed, and put them back: see `Feedback.preview`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from sparse_mpi.arrays import leave, on_stream_of
from sparse_mpi.training.bucket import Bucket


class Previewing:
    """The part of `GradientReduction` that makes sure that gradients are those of the weights that the rule wants."""

    buckets: list[Bucket]
    _in_place: bool
    _is_ahead = False  # weights are where gradients must be computed
    _was_ahead = False  # they have been since the last step

    @property
    def previews(self) -> bool:
        """Return True if gradients must be computed within `ahead`; all buckets have the same rule."""
        return any(bucket.reducer.feedback.previews for bucket in self.buckets[:1])

    @property
    def _partly_arrived(self) -> bool:
        """Return True if a residual also holds a gradient already."""
        return self._in_place and any(bucket.arrivals.any for bucket in self.buckets)

    @contextmanager
    def ahead(self, rates: Mapping[Tensor, float]) -> Iterator[None]:
        """Keep weights moved against `Feedback.preview` in this context, and restore them to the bit at its end.

        Does nothing unless the feedback rule `previews`.

        Args:
            rates: the learning rate of each parameter.

        Raises:
            RuntimeError: with ``in_place`` the residual holds gradients that have arrived since the last step.
        """
        if not self.previews:
            yield
            return
        if self._partly_arrived:
            raise RuntimeError(
                "ahead() must be entered once a step with in_place=True, before the first backward pass: the residual "
                "holds gradients now; put all passes of a step into one block, or use in_place=False"
            )
        kept = [(parameter, parameter.detach().clone()) for bucket in self.buckets for parameter in bucket.parameters]
        self._is_ahead = self._was_ahead = True
        try:
            self._move(rates)
            yield
        finally:
            self._is_ahead = False
            with torch.no_grad():
                for parameter, values in kept:
                    parameter.copy_(values)

    @torch.no_grad()
    def _move(self, rates: Mapping[Tensor, float]) -> None:
        """Move the weights of all buckets."""
        for bucket in self.buckets:
            with on_stream_of(bucket.flat):
                preview = bucket.reducer.feedback.preview()
            if preview is None:
                continue
            for parameter, part in zip(bucket.parameters, bucket.split(leave(preview, bucket.flat)), strict=True):
                parameter.sub_(part.to(parameter), alpha=rates[parameter])

    def _check_ahead(self, ahead: bool) -> None:
        """Raise RuntimeError if gradients must be computed within `ahead`, and were not."""
        if not ahead and self.previews:
            rule = self.buckets[0].reducer.feedback
            raise RuntimeError(
                f"gradients must be computed ahead with {rule!r}; write `with optimizer.ahead():` around "
                "the forward and backward passes of every step"
            )
