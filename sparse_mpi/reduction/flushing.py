"""Send all that the ranks still owe, once: the part of `SparseAllreduce` for the end of training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import perf_counter
from typing import Any

from sparse_mpi import arrays
from sparse_mpi.algorithms import ALGORITHMS, Algorithm, Reduction
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import in_turn
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.feedback import Feedback
from sparse_mpi.reduction.report import StepReport, summarise
from sparse_mpi.sparse import Layout, leave

DENSE = ALGORITHMS["dense"]()


class Flushable(ABC):
    """The part of `SparseAllreduce` that sends what is owed without a gradient."""

    comm: Comm
    layout: Layout
    k: int
    feedback: Feedback
    report: StepReport | None
    _instrumented: Algorithm
    _state: Any  # of the algorithm

    def flush(self, *, check: bool = False, like: Any = None) -> Any:
        """Send all that the ranks owe, in one dense allreduce, and leave a residual of 0. Collective.

        It is a step with a gradient of 0. For the end of training, or before an evaluation that matters: without it
        what is still in the residuals never reaches the model. Global momentum leaves its share of the momentum of this
        result in the residual, as after any step.

        Args:
            check: as for `step`.
            like: the sum comes in the library of this array, on whose device the residual must be; by default NumPy or
                CuPy as `residual` is.

        Returns:
            The sum over the ranks ``(n,)``.

        Raises:
            ValueError: the feedback rule never owes anything, as without error feedback; raised on every rank.
            LawError, FloatingPointError: as for `step`.
        """

        def work() -> Any:
            with arrays.on_stream_of(residual):
                return self._flush(residual, check)

        residual = self.feedback.residual if like is None else like
        return in_turn(self.comm, work, residual)

    def _flush(self, like: Any, check: bool) -> Any:
        """Carry out `flush` on the current device and stream."""
        start, before = perf_counter(), self.comm.traffic.copy()
        acc = self._agree_on_flush(check)
        try:
            initial_acc = acc.copy() if check else None
            reduction = self._reduce_all(acc)
            self.feedback.consume(reduction.sent, reduction.total)
        except Exception as error:
            self.comm.job.abort(error)
        spent, traffic = perf_counter() - start, self.comm.traffic - before
        self.report = summarise(reduction, (), self.layout.size, spent, traffic)
        self._check_result(reduction, initial_acc, DENSE)
        return leave(self.feedback.outcome(reduction.total), like)

    def _agree_on_flush(self, check: bool) -> Array:
        """Return all that this rank owes ``(n,)``, once all ranks are about to flush."""
        with same_on_all_ranks(self.comm) as say:
            acc = self.feedback.owed()
            say(call="flush", dtype=acc.dtype, check=check)
        return acc

    def _reduce_all(self, acc: Array) -> Reduction:
        """Return the dense reduction of acc ``(n,)``, and have the algorithm forget what it knew of it."""
        state = DENSE.init(self.layout, self.k, self.comm.size)
        reduction, _ = DENSE.reduce(acc, self.layout.size, self.comm, state, self.layout)
        self._state = self._instrumented.forget(self._state)
        return reduction

    @abstractmethod
    def _check_result(self, reduction: Reduction, initial_acc: Array | None, algorithm: Algorithm) -> None:
        """Raise on every rank where the laws are to be checked and are broken, or where the result is not finite."""
