"""Wait for the buckets of a `GradientReduction`, after a step or after a flush, which sends all that is owed."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from sparse_mpi.sparse import SparseVector
from sparse_mpi.training.bucket import Bucket
from sparse_mpi.training.rows import SparseGradients
from sparse_mpi.training.trace import Tracer


class Flushable(ABC):
    """The part of `GradientReduction` that ends steps and flushes."""

    buckets: list[Bucket]
    sparse: SparseGradients
    check: bool
    _tracer: Tracer | None

    @property
    @abstractmethod
    def arrived(self) -> bool:
        """Return True if gradients have arrived since the last step."""

    @abstractmethod
    def _reset(self) -> None:
        """Expect the first gradient of a step."""

    def flush(self) -> list[SparseVector | Tensor]:
        """Send all that the ranks owe, and write the result to ``.grad``: a step without a gradient. Collective.

        Afterwards residuals are 0, see `SparseAllreduce.flush`.

        Returns:
            The sum over the ranks of each bucket, ``(n,)``, without a loss scale.

        Raises:
            RuntimeError: gradients have arrived that are not reduced yet.
            Exception: as `SparseAllreduce.flush` does; raised on every rank, with nothing under way any more.
        """
        if self.arrived:
            raise RuntimeError(
                "gradients must not wait to be reduced when the residual is flushed; call step() (or synchronize()) "
                "first, or clear them"
            )
        self.sparse.clear()
        for bucket in self.buckets:
            bucket.start_flush(check=self.check)
        return self._finish(1.0)

    def _finish(self, scale: float, factor: float = 1.0) -> list[SparseVector | Tensor]:
        """Wait for all buckets, even if one fails, so that nothing is under way afterwards; see `Bucket.finish`.

        Sparse tensors are multiplied by ``factor``; those in buckets have been.
        """
        totals, errors = [], []
        for bucket in self.buckets:
            try:
                totals.append(bucket.finish(scale))
            except Exception as error:
                errors.append(error)
        try:
            self.sparse.finish(factor)
        except Exception as error:
            errors.append(error)
        if self._tracer is not None:
            self._tracer.end()
        self._reset()
        if errors:
            raise errors[0]
        return totals
