"""Do in the background what the next step needs no gradient for: a part of `SparseAllreduce`."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import Array, wide_type
from sparse_mpi.comm import Comm, Traffic
from sparse_mpi.comm.background import Handle, progress_thread_of
from sparse_mpi.feedback import Feedback
from sparse_mpi.sparse import Layout


class Preparing:
    """The part of `SparseAllreduce` that prepares the next step."""

    comm: Comm
    feedback: Feedback
    in_place: bool
    layout: Layout
    k: int
    _instrumented: Algorithm
    _state: Any  # of the algorithm
    _dtype: np.dtype | None = None  # of the acc that the algorithm's state is of; None while any will do
    _prepared: Traffic  # of what was prepared for the next step in the background
    _preparing: Handle[None] | None = None

    def prepare(self) -> None:
        """Begin in the background what can be done for the next step before its gradient is known. Collective.

        Without this call the next step does it, with the same result; most algorithms have nothing to prepare. As with
        `start`, nothing else may use ``comm`` meanwhile, but steps of other reducers, which wait.
        """

        def work() -> None:
            before = self.comm.traffic.copy()
            try:
                self._prepare()
            except Exception as error:
                self.comm.job.abort(error)
            self._prepared = self.comm.traffic - before

        if self._instrumented.prepares and not self.in_place:
            self._preparing = progress_thread_of(self.comm).start(work, self.feedback.residual)

    def _prepare(self) -> None:
        """Have the algorithm prepare the next step."""
        if self._instrumented.prepares:
            self._state = self._instrumented.prepare(self.feedback.residual, self.comm, self._state)

    def forget(self) -> None:
        """Have the algorithm forget what it knew of the residual, because another one sends all that is owed."""
        self._finish_preparing()
        self._state = self._instrumented.forget(self._state)

    def _acc_type(self, gradient: Array) -> np.dtype:
        """Return the dtype of the acc of ``gradient`` ``(n,)``: the widest of this and of what is remembered."""
        remembered = [array.dtype for array in self.feedback.state().values()]
        return max([wide_type(gradient), *remembered], key=attrgetter("itemsize"))

    def _use_dtype(self, dtype: np.dtype) -> None:
        """Have the algorithm begin anew if its state is of an acc of another dtype: thresholds are bits of numbers."""
        if self._dtype is not None and self._dtype != dtype:
            self._state = self._instrumented.init(self.layout, self.k, self.comm.size)
        self._dtype = dtype

    def _finish_preparing(self) -> None:
        """Wait for what `prepare` began."""
        if self._preparing is not None:
            self._preparing.wait()
            self._preparing = None
