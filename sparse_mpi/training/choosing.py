"""Change the algorithms of a `GradientReduction` between two steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.training.bucket import Bucket


class Choosing(ABC):
    """The part of `GradientReduction` that says which algorithm reduces each bucket."""

    comm: Comm
    buckets: list[Bucket]

    @property
    @abstractmethod
    def under_way(self) -> bool:
        """Return True if gradients are being reduced."""

    def use(self, algorithm: str | Algorithm | Sequence[Algorithm]) -> None:
        """Reduce the next steps by ``algorithm``, one for all buckets or one for each; residuals are kept.

        Collective if an algorithm is new to a bucket. One that was used before continues with the state it had then.

        Raises:
            RuntimeError: gradients are being reduced.
            TypeError, ValueError: an algorithm does not exist, or there is not one for each bucket.
        """
        if self.under_way:
            raise RuntimeError("algorithms must not change while gradients are being reduced; call synchronize() first")
        chosen: list[str | Algorithm]
        if isinstance(algorithm, Sequence) and not isinstance(algorithm, str):
            chosen = list(algorithm)
        else:
            chosen = [algorithm] * len(self.buckets)
        if len(chosen) != len(self.buckets):
            raise ValueError(f"algorithm must be one or {len(self.buckets)}, one for each bucket, got {len(chosen)}")
        for bucket, wanted in zip(self.buckets, chosen, strict=True):
            progress_thread_of(self.comm).start(partial(bucket.use, wanted)).wait()

    @property
    def algorithms(self) -> list[Algorithm]:
        """Return the algorithm of each bucket."""
        return [bucket.reducer.algorithm for bucket in self.buckets]
