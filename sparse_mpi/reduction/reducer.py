"""Reduce one gradient in every step of a training run: `SparseAllreduce`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, overload

from sparse_mpi import arrays
from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import A, Array, Flattens
from sparse_mpi.checks import check_instance, check_switch
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import Handle, ProgressThread, busy, in_turn, progress_thread_of, settle
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.job.launcher import OBSERVED
from sparse_mpi.feedback import Feedback
from sparse_mpi.monitor.step_report import StepReport
from sparse_mpi.monitor.watch import Watch
from sparse_mpi.reduction.arguments import check_second_moment, make_algorithm, resolve_k
from sparse_mpi.reduction.engine import Absence, Direct, Engine, StepPlan
from sparse_mpi.reduction.second_moment import SecondMoment
from sparse_mpi.reduction.settings import Settings, make_settings
from sparse_mpi.reduction.snapshot import Snapshot
from sparse_mpi.sparse import Layout, SparseVector, leave

FLUSH = StepPlan(0, flush=True)


class SparseAllreduce:
    """The allreduce of one gradient, step after step, with error feedback. Making one is collective.

    Args:
        layout: the gradient's length, the shapes of its tensors, or a `Layout`.
        k, density, comm, algorithm, options: arguments of `sparse_allreduce`; a single step may have another k.
        feedback: rule for entries that are not sent: ``"residual"`` adds them to the next gradient, ``"dgc"`` corrects
            their momentum too, ``"none"`` drops them; more in `FEEDBACKS`; or an instance, for example
            ``MomentumCorrection(0.9, nesterov=True)``.
        clip_norm: largest L2 norm of the mean of all ranks' gradients; where it is larger, all ranks scale their
            gradients by the same factor before they add them to the residual. The norm is estimated, with a standard
            error of 2.2 %, for 16 KB of control a step; a single rank's is exact. See `reduction.clipping`.
        nonfinite: ``"keep"`` passes NaN and Inf on to ``total``, as MPI does; ``"raise"`` raises FloatingPointError on
            every rank when ``total`` has one; ``"skip"`` does so before a gradient that has one, on any rank, has left
            a trace.
        second_moment: weight of the past in a moving mean of this rank's squared gradients, added up over the ranks at
            the entries of the result, see `SecondMoment`; in ``reducer.second_moment``. Ranks elect entries by the
            residual over its root.
        settings: all these arguments but comm, already checked, in place of the others.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank.
    """

    def __init__(
        self,
        layout: object = None,
        *,
        k: int | None = None,
        density: float | None = None,
        comm: object = None,
        algorithm: str | Algorithm = "oktopk",
        feedback: str | Feedback = "residual",
        clip_norm: float | None = None,
        nonfinite: str = "keep",
        second_moment: float | None = None,
        settings: Settings | None = None,
        **options: object,
    ) -> None:
        transport: Comm = as_comm(comm)
        settle(transport)  # another reducer may have begun a step there
        # Agree: arguments are checked, and compared between ranks, before the first message
        with same_on_all_ranks(transport) as say:
            if settings is None:
                settings = make_settings(
                    layout,
                    k=k,
                    density=density,
                    algorithm=algorithm,
                    feedback=feedback,
                    clip_norm=clip_norm,
                    nonfinite=nonfinite,
                    second_moment=second_moment,
                    **options,
                )
            check_instance("settings", settings, Settings)
            say(**settings.statement)
        self.engine = Engine(settings, transport)
        self.execution: Direct = Direct(self.engine)  # `ElasticAllreduce` puts transactions in its place
        # Ranges and metrics: neither imported, nor called in a step, unless asked for
        if not OBSERVED.isdisjoint(os.environ):
            from sparse_mpi.monitor.observe import observe

            observe(self.engine)

    @property
    def comm(self) -> Comm:
        """Return the ranks that reduce."""
        return self.engine.comm

    @property
    def layout(self) -> Layout:
        """Return the layout of the gradient."""
        return self.engine.layout

    @property
    def k(self) -> int:
        """Return the number of entries of a step that is given no other."""
        return self.engine.settings.k

    @property
    def algorithm(self) -> Algorithm:
        """Return the algorithm that reduces."""
        return self.engine.exchange.algorithm

    @property
    def feedback(self) -> Feedback:
        """Return the feedback rule, with its arrays."""
        return self.engine.feedback

    @property
    def residual(self) -> Array:
        """Return the residual of this rank, ``(n,)``: float32, or float64 for float64 gradients; NumPy or CuPy.

        An array on a device is valid on the stream on which the last step was made or waited for.
        """
        return self.engine.feedback.residual

    @property
    def ranks(self) -> int:
        """Return the number of ranks in the last result: divide by it for the mean."""
        return self.engine.ranks

    @property
    def whole(self) -> bool:
        """Tell if the last step was to send every entry."""
        return self.engine.whole

    @property
    def absence(self) -> Absence:
        """Return which tensors have no gradient, in a step."""
        return self.engine.absence

    @property
    def second_moment(self) -> SecondMoment | None:
        """Return this rank's second moment, with sums at the entries of the last result."""
        return self.engine.second_moment

    @property
    def report(self) -> StepReport | None:
        """Return counts and times of the last step on this rank; None before the first."""
        return self.engine.report

    @property
    def watch(self) -> Watch | None:
        """Return the `Watch` of some steps' quality, if set."""
        return self.engine.watch

    @watch.setter
    def watch(self, watch: Watch | None) -> None:
        self.engine.watch = watch

    @property
    def selections(self) -> list[tuple[float, float]]:
        """Return start and end of the last step's selections, in `time.perf_counter` seconds."""
        return [selector.span for selector in self.engine.exchange.selectors]

    def step(
        self,
        gradient: Flattens[A],
        *,
        k: int | None = None,
        density: float | None = None,
        check: bool = False,
        dense: bool = False,
    ) -> SparseVector[A] | A:
        """Add ``gradient`` to the residual, reduce the k most significant entries, and retain the rest. Collective.

        Args:
            gradient: ``(n,)`` or any shape of n elements; NumPy, CuPy or torch; not modified.
            k: entries in this step instead of the reducer's own, the same on all ranks.
            density: k as a fraction of n, likewise.
            check: assert both laws on this step; costs two dense allreduces.
            dense: sum every entry, by a dense allreduce.

        Returns:
            The sum over the ranks, the same bytes on every rank: a `SparseVector` of the gradient's library (dense
            ``(n,)`` where the algorithm's result is dense). Divide by the number of ranks for the mean.

        Raises:
            TypeError, ValueError: not an array of the layout's length, or a bad k; raised on every rank, before any
                data moves.
            FloatingPointError: total has NaN or Inf, with ``nonfinite="raise"``, or a gradient, with ``"skip"``.
            LawError: a law is broken, with ``check``.
        """
        comm = self.engine.comm
        # Behind work in the background, this step waits for its turn on the thread that does that
        if ProgressThread in comm.attributes and busy(comm):
            return self.start(gradient, k=k, density=density, check=check, dense=dense).wait()
        with arrays.on_stream_of(gradient):
            return self._step(gradient, k, density, check, dense)

    def start(
        self,
        gradient: Flattens[A],
        *,
        k: int | None = None,
        density: float | None = None,
        check: bool = False,
        dense: bool = False,
    ) -> Handle[SparseVector[A] | A]:
        """Begin a `step` in the background and return at once; `Handle.wait` returns its result or raises its error.

        Steps of several reducers of one ``comm`` run one after the other, in the order of their starts, the same on all
        ranks. Until `Handle.wait` returns, do not modify ``gradient`` nor use ``comm``. Where ``comm`` cannot be used
        from a second thread (see ``python -m sparse_mpi doctor``), the step ends before this returns.
        """

        def work() -> SparseVector[A] | A:
            with arrays.on_stream_of(gradient):
                return self._step(gradient, k, density, check, dense)

        return progress_thread_of(self.comm).start(work, gradient)

    def start_attempt(
        self, gradient: Flattens[A], *, density: float | None = None, check: bool = False, dense: bool = False
    ) -> Handle[Callable[[], SparseVector[A] | A]]:
        """Begin a `step` as `start` does; the result of `Handle.wait`, or `withdraw`, ends it."""

        def work() -> Callable[[], SparseVector[A] | A]:
            with arrays.on_stream_of(gradient):
                commit = self._attempt(gradient, None, density, check, dense)
            return partial(in_turn, self.comm, commit, gradient)

        return progress_thread_of(self.comm).start(work, gradient)

    def withdraw(self) -> None:
        """End an attempt without a trace, to rounding, on all ranks alike."""
        self.engine.withdraw()

    def _step(
        self, gradient: Flattens[A], k: int | None, density: float | None, check: bool, dense: bool
    ) -> SparseVector[A] | A:
        return self._attempt(gradient, k, density, check, dense)()

    def _attempt(
        self, gradient: Flattens[A], k: int | None, density: float | None, check: bool, dense: bool
    ) -> Callable[[], SparseVector[A] | A]:
        engine = self.engine
        began, before = perf_counter(), engine.comm.traffic.copy()
        # Attempt: afterwards all ranks have reduced, and nothing has left the residual
        attempt = self.execution.complete(gradient, partial(self._plan, k, density, dense), check)
        traffic, ended = engine.comm.traffic - before, perf_counter()

        def commit() -> SparseVector[A] | A:
            with arrays.on_stream_of(gradient):
                return leave(engine.commit(attempt, began + perf_counter() - ended, traffic), gradient)

        return commit

    def _plan(self, k: int | None, density: float | None, dense: bool) -> StepPlan:
        if type(dense) is not bool:
            check_switch("dense", dense)
        size = self.engine.layout.size
        if k is None and density is None:
            return StepPlan(size, dense=True) if dense else StepPlan(self.engine.settings.k)
        return StepPlan(resolve_k(size, k, density), dense)

    @overload
    def flush(self, *, check: bool = False, like: None = None) -> Array: ...
    @overload
    def flush(self, *, check: bool = False, like: Flattens[A]) -> A: ...
    def flush(self, *, check: bool = False, like: object = None) -> Any:
        """Send the residuals of all ranks, in one dense allreduce, and leave a residual of 0. Collective.

        A dense step without a gradient, for the end of training or an important evaluation: without it the residuals
        never reach the model. Global momentum leaves its share of this result's momentum in the residual, as after any
        step.

        Args:
            check: assert both laws, see `step`.
            like: array of the sum's library, on the residual's device; by default NumPy or CuPy as `residual`.

        Returns:
            The sum over the ranks ``(n,)``.

        Raises:
            ValueError: the feedback rule has no residual; raised on every rank.
            LawError, FloatingPointError: raised as by `step`.
        """
        shown: Any = self.residual if like is None else like

        def work() -> Any:
            with arrays.on_stream_of(shown):
                began, before = perf_counter(), self.comm.traffic.copy()
                attempt = self.execution.complete(None, lambda: FLUSH, check)
                return leave(self.engine.commit(attempt, began, self.comm.traffic - before), shown)

        return in_turn(self.comm, work, shown)

    def use(self, algorithm: str | Algorithm) -> None:
        """Reduce the next steps by another algorithm, with the same residual. Collective.

        An earlier algorithm resumes its state.

        Raises:
            TypeError, ValueError: the algorithm is unknown, cannot carry second moments, or ranks may be lost; raised
                on every rank.
        """
        # The check uses the communicator on this thread, so nothing may be under way on another
        settle(self.comm)
        with same_on_all_ranks(self.comm) as say:
            chosen = make_algorithm(algorithm, {})
            if (beta := self.engine.settings.second_moment) is not None:
                check_second_moment(beta, chosen)
            if self.execution.survives and chosen != self.algorithm:
                raise ValueError(f"algorithm must stay {self.algorithm} where ranks may be lost, got {algorithm}")
            say(call="use", algorithm=chosen)
        self.engine.use(chosen)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs to continue bit for bit: numbers, strings and NumPy arrays.

        ``torch.save(as_tensors(state), file)`` of `sparse_mpi.arrays` writes it for `torch.load`; `load_state_dict`
        takes tensors as well.
        """
        self.execution.catch_up()
        return Snapshot(self.engine).taken()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`, on the same rank of the same number of ranks. Collective.

        `take_over` restores on another number of ranks.

        Raises:
            TypeError, ValueError: it was saved by another algorithm, feedback, layout, k or rank, or is damaged;
                raised on every rank.
        """
        self.execution.catch_up()
        Snapshot(self.engine).restore(state)
        self.execution.loaded()

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Restore the states of ``ranks`` ranks on any number P of ranks, dealt out by `checkpoint.load`. Collective.

        On another number the old ranks' residuals are added up, so that their sum is unchanged, to rounding; states of
        algorithm and selector start afresh.

        Args:
            states: states of the old ranks r, r + P, r + 2 P, ... on rank r; perhaps empty.
            ranks: number of old ranks.

        Raises:
            TypeError, ValueError: a state is missing, damaged, or was saved by another algorithm, feedback, layout or
                k; raised on every rank.
        """
        self.execution.catch_up()
        Snapshot(self.engine).deal(states, ranks)
        self.execution.loaded()
