"""Do in the background what the next step needs no gradient for: a part of `SparseAllreduce`."""

from __future__ import annotations

from typing import Any

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.comm import Comm, Traffic
from sparse_mpi.comm.background import Handle, progress_thread_of
from sparse_mpi.feedback import Feedback


class Preparing:
    """The part of `SparseAllreduce` that prepares the next step."""

    comm: Comm
    feedback: Feedback
    in_place: bool
    _instrumented: Algorithm
    _state: Any  # of the algorithm
    _prepared: Traffic  # of what was prepared for the next step in the background
    _preparing: Handle[None] | None

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
                self.comm.abort(error)
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

    def _finish_preparing(self) -> None:
        """Wait for what `prepare` began."""
        if self._preparing is not None:
            self._preparing.wait()
            self._preparing = None
