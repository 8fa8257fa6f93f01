"""Reduce one gradient in every step of a training run: `SparseAllreduce`."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from sparse_mpi import arrays, kernels
from sparse_mpi.algorithms import Algorithm, Reduction
from sparse_mpi.arrays import Array
from sparse_mpi.budget.goal import check_alone, make_goal
from sparse_mpi.comm import Comm, Traffic, as_comm
from sparse_mpi.comm.background import Handle, busy, progress_thread_of, settle
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.feedback import Feedback
from sparse_mpi.reduction.absence import Absence
from sparse_mpi.reduction.arguments import check_together, make_feedback, resolve_k, usual_density
from sparse_mpi.reduction.autotune import fastest as choose
from sparse_mpi.reduction.autotune import fastest_now as pick
from sparse_mpi.reduction.autotune import make_candidate
from sparse_mpi.reduction.clipping import clipping_factor, scaled, sketched
from sparse_mpi.reduction.deprecated import accepts_former, warn_renamed
from sparse_mpi.reduction.flushing import Flushable
from sparse_mpi.reduction.instrument import check_added, instrument, unselected
from sparse_mpi.reduction.laws import check_laws, raise_nonfinite
from sparse_mpi.reduction.report import StepReport, summarise
from sparse_mpi.reduction.spending import Spending
from sparse_mpi.reduction.states import Resumable
from sparse_mpi.reduction.watch import Watch
from sparse_mpi.sparse import Layout, leave


class SparseAllreduce(Flushable, Resumable, Spending):
    """The allreduce of one gradient, step after step, with error feedback. Making one is collective.

    Args:
        layout: the gradient's length, the shapes of the tensors it is made of, or a `Layout`.
        k, density, comm, algorithm, options: as for `sparse_allreduce`; a single step may have another k. The
            algorithm that ``"auto"`` picked is in ``reducer.algorithm``: give it to resume.
        feedback: what becomes of entries that are not sent: ``"residual"`` adds them to the next gradient, ``"dgc"``
            corrects their momentum too, ``"none"`` drops them, and so on, see `FEEDBACKS`; or an instance such as
            ``MomentumCorrection(0.9, nesterov=True)``. ``memory`` is its former name, deprecated.
        budget: instead of k, what this rank may send: ``"5MB/s"``, ``"200kB/step"`` or ``"40GB/10000steps"``, see
            `sparse_mpi.budget`. k then changes from step to step, and where dense costs no more, steps are dense.
        step_seconds: instead of k, or beside a budget, how long a step may take with all that is between two of them.
        clip_norm: where the mean of all ranks' gradients is longer than this, by its L2 norm, all ranks scale their
            gradients by the same factor before they are added to the residual. The norm is estimated, with a standard
            error of 2.2 %, for 16 KB of control a step; a single rank's is exact. See `reducer.clipping`.
        in_place: the array given to the first step *is* the residual from then on. Every step must pass the same
            array, with the gradient added to what the last step left there: autograd does that if nobody clears it,
            which saves the pass that adds the gradient. Only for rules that work in place, without clip_norm.
        nonfinite: ``"keep"`` passes NaN and Inf on to ``total``, as MPI does; ``"raise"`` raises FloatingPointError on
            every rank when ``total`` has one.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank.
    """

    @accepts_former("k", "density", "comm", "algorithm", renamed={"memory": "feedback"})
    def __init__(
        self,
        layout: Any,
        *,
        k: int | None = None,
        density: float | None = None,
        comm: Any = None,
        algorithm: str | Algorithm = "oktopk",
        feedback: str | Feedback = "residual",
        clip_norm: float | None = None,
        in_place: bool = False,
        nonfinite: str = "keep",
        budget: str | None = None,
        step_seconds: float | None = None,
        **options: Any,
    ) -> None:
        self.comm: Comm = as_comm(comm)
        settle(self.comm)  # another reducer may have prepared its next step there
        with same_on_all_ranks(self.comm) as say:
            if nonfinite not in ("keep", "raise"):
                raise ValueError(f"nonfinite must be 'keep' or 'raise', got {nonfinite!r}")
            self.layout: Layout = Layout.of(layout)
            self.in_place: bool = in_place
            self._rule = make_feedback(feedback, clip_norm, in_place)
            chosen = make_candidate(algorithm, options)
            if chosen is not None:
                check_together(self._rule, chosen)
            goal = make_goal(budget, step_seconds, k=k, density=density)
            self.k: int = resolve_k(self.layout.size, k, density, usual_density(algorithm))
            self.feedback: Feedback = self._rule.start(self.layout, in_place, self.comm.size)
            self._keep(goal, chosen)
            say(n=self.layout.size, layout=self.layout.digest, k=self.k, algorithm=chosen)
            say(feedback=self._rule, clip_norm=clip_norm, in_place=in_place, nonfinite=nonfinite, budget=goal)
        try:
            self.algorithm: Algorithm = chosen or (
                choose(self.layout, self.k, self.comm)
                if self._keeper is None  # with a budget one that follows k
                else pick([self.layout], [self.k], self.comm)[0]
            )
        except Exception as error:
            self.comm.abort(error)
        self.ranks: int = self.comm.size  # whose gradients are in the last result
        self.whole: bool = False  # the last step was to send every entry
        self.absence: Absence = Absence(len(self.layout.shapes))  # of gradients, in a step
        self.clip_norm: float | None = clip_norm
        self._nonfinite: str = nonfinite
        self.report: StepReport | None = None
        self.watch: Watch | None = None  # measures the quality of some steps, if set
        self._selectors, self._instrumented = instrument(self.algorithm)
        self._state = self._instrumented.init(self.layout, self.k, self.comm.size)
        self._unselected = unselected(self.algorithm, self.layout)
        self._prepared = Traffic()  # of what was prepared for the next step in the background

    @property
    def residual(self) -> Array:
        """Return what this rank has not sent yet, ``(n,)``: float32, or float64 for float64 gradients; NumPy or CuPy.

        An array on a device is valid in the order of the stream on which the last step was made or waited for.
        """
        return self.feedback.residual

    @property
    def memory(self) -> Feedback:
        """Return `feedback`, of which this is the former name. Deprecated."""
        warn_renamed("SparseAllreduce.memory", "feedback")
        return self.feedback

    @memory.setter
    def memory(self, feedback: Feedback) -> None:
        warn_renamed("SparseAllreduce.memory", "feedback")
        self.feedback = feedback

    @accepts_former("check")
    def step(self, gradient: Any, *, k: int | None = None, density: float | None = None, check: bool = False) -> Any:
        """Add ``gradient`` to the residual, reduce the k most significant entries, and keep the rest. Collective.

        Args:
            gradient: ``(n,)`` or any shape of n elements; NumPy, CuPy or torch; not modified. With ``in_place`` the
                buffer that holds residual + gradient, and afterwards the new residual.
            k: number of entries in this step instead of the reducer's own, the same on all ranks.
            density: k as a fraction of n, likewise.
            check: assert both laws on this step; costs two dense allreduces.

        Returns:
            The sum over the ranks, the same bytes on every rank: a `SparseVector` of the gradient's library (dense
            ``(n,)`` where the algorithm's result is dense). Divide by the number of ranks for the mean.

        Raises:
            TypeError, ValueError: not an array of the layout's length, not the adopted buffer, or a bad k; raised on
                every rank, before any data moves.
            FloatingPointError: total has NaN or Inf, with ``nonfinite="raise"``.
            LawError: a law is broken, with ``check``.
        """
        if busy(self.comm):
            return self.start(gradient, k=k, density=density, check=check).wait()
        with arrays.on_stream_of(gradient):
            return self._spend(gradient, k, density, check)

    @accepts_former("check")
    def start(
        self, gradient: Any, *, k: int | None = None, density: float | None = None, check: bool = False
    ) -> Handle[Any]:
        """Begin a `step` in the background and return at once; `Handle.wait` returns its result or raises its error.

        Steps that several reducers of one ``comm`` start are executed one after the other in the order of the starts,
        which must be the same on all ranks. Until `Handle.wait` returns, ``gradient`` must not be modified, and nothing
        else may use ``comm``. Where ``comm`` cannot be used from a second thread (``python -m sparse_mpi doctor``
        tells), the step is finished before this returns.
        """

        def work() -> Any:
            with arrays.on_stream_of(gradient):
                return self._spend(gradient, k, density, check)

        return progress_thread_of(self.comm).start(work, gradient)

    def _step(self, gradient: Any, k: int | None, density: float | None, check: bool) -> Any:
        """Carry out `step` on the current device and stream."""
        start, before = perf_counter(), self.comm.traffic.copy()
        self.comm.begin_reduction()
        # Check the arguments before any data moves: all ranks raise, or none.
        flat, k_now, dtype, asked = self._agree(gradient, k, density, check)
        try:
            self._begin(k_now, dtype, asked)
            # Prepare: what needs no gradient, unless it was done in the background.
            self._prepare()
            # Accumulate: the gradient joins the residual, here or in the pass in which the algorithm selects.
            watched = self.watch is not None and self.watch.due
            acc, add = self._accumulate(flat, check or watched)
            initial_acc = acc.copy() if check or watched else None
            # Reduce: the only communication of the step.
            reduction = self._reduce(acc, k_now, add)
            # Consume: what was sent leaves the residual.
            self.feedback.consume(reduction.sent, reduction.total)
            # Prepare the next step now if the next gradient will be added to the residual from outside.
            if self.in_place:
                self._prepare()
        except Exception as error:
            self.comm.abort(error)
        # Report what the step did, and check what it is asked to check.
        self._report(reduction, start, before)
        if self.watch is not None:
            self.watch.note(initial_acc, reduction.total, k_now, self.comm)
        self._check_result(reduction, initial_acc if check else None, self.algorithm)
        return leave(self.feedback.outcome(reduction.total), gradient)

    def _report(self, reduction: Reduction, start: float, before: Traffic) -> None:
        """Put together the report of a step that began at the time ``start``, after the traffic ``before``."""
        spent, traffic = perf_counter() - start, self.comm.traffic - before + self._prepared
        self._prepared = Traffic()
        self.report = summarise(reduction, self._selectors, self._unselected, spent, traffic)

    def _agree(self, gradient: Any, k: int | None, density: float | None, check: bool) -> tuple[Array, int, Any, bool]:
        """Return the flat gradient ``(n,)``, k, the dtype of acc, and True if a rank has `absence.news`; all agree."""
        agreement = same_on_all_ranks(self.comm)
        with agreement as say:
            flat, k_now = self._enter(gradient), self._resolve(k, density)
            dtype = self._acc_type(flat)
            say(dtype=arrays.wide_type(flat), acc=dtype, k=k_now, check=check)
            agreement.flag = self.absence.news(self.comm)
        return flat, k_now, dtype, agreement.flag

    def _begin(self, k_now: int, dtype: Any, asked: bool) -> None:
        """Begin a step with what `_agree` returned. Collective if ``asked``."""
        self._use_dtype(dtype)
        missing = self.absence.agree(asked, self.comm)
        parts = self.layout.parts if missing else ()  # made anew at each look
        self.feedback.withhold([parts[number] for number in missing])
        self.whole = k_now >= self.layout.size

    def _reduce(self, acc: Array, k: int, add: Array | None) -> Reduction:
        """Return the reduction of ``acc`` ``(n,)``, to which the selection still has to add ``add``, if anything."""
        reduction, self._state = self._instrumented.reduce(acc, k, self.comm, self._state, self.layout, add)
        check_added(self._selectors, self.algorithm, add)
        return reduction

    def _accumulate(self, flat: Array, check: bool) -> tuple[Array, Array | None]:
        """Return acc ``(n,)``, and what a selection must still add to it, or None."""
        if self.clip_norm is not None:
            flat = scaled(arrays.widened(flat), self._clipping_factor(flat, self.clip_norm))
        acc, add = self.feedback.accumulate(flat)
        if add is not None and (check or not self.algorithm.accumulates):
            kernels.accumulate(acc, add)
            add = None
        return acc, add

    def _clipping_factor(self, flat: Array, clip_norm: float) -> float:
        """Return what all ranks multiply their gradients by. Collective."""
        return clipping_factor(sketched([flat], self.comm.size), clip_norm, self.comm)

    def _check_result(self, reduction: Reduction, initial_acc: Array | None, algorithm: Algorithm) -> None:
        """Raise on every rank if the laws are to be checked, on what began with acc, and are broken; or for NaN."""
        if initial_acc is not None:
            check_laws(reduction, initial_acc, self.feedback, algorithm, self.comm)
        if self._nonfinite == "raise":
            raise_nonfinite(reduction.total)

    @property
    def selections(self) -> list[tuple[float, float]]:
        """Return when the selections of the last step began and ended, in `time.perf_counter` seconds."""
        return [selector.span for selector in self._selectors]

    def adopt(self, buffer: Any) -> None:
        """Make ``buffer`` hold the residual from now on, as the first step's gradient would; with ``in_place`` only."""
        with arrays.on_stream_of(buffer):
            self.feedback.adopt(self._enter(buffer))

    def sibling(self, algorithm: str | Algorithm) -> SparseAllreduce:
        """Return a reducer with another algorithm that shares this one's residual. Collective.

        The two can take turns: what either has not sent, the other sends.
        """
        same: dict[str, Any] = {"k": self.k, "comm": self.comm, "clip_norm": self.clip_norm, "in_place": self.in_place}
        same |= {"feedback": self._rule, "nonfinite": self._nonfinite}
        made = SparseAllreduce(self.layout, algorithm=algorithm, **same)
        made.feedback = self.feedback
        return made

    def _enter(self, gradient: Any) -> Array:
        """Return ``gradient`` as a flat NumPy or CuPy array ``(n,)``, or raise what `step` raises for a bad one."""
        arrays.check(gradient, "gradient")
        if self.in_place:
            arrays.check_in_place(gradient, "gradient")
        flat = arrays.enter(gradient)
        if len(flat) != self.layout.size:
            raise ValueError(
                f"gradient must have {self.layout.size} elements as layout says, got {len(flat)}; "
                "pass all tensors of the layout, flattened into one"
            )
        self.feedback.check_gradient(flat)
        return flat

    def _resolve(self, k: int | None, density: float | None) -> int:
        """Return k of a step: from its arguments, or the reducer's own."""
        if k is None and density is None:
            return self.k if self._keeper is None else self._keeper.controller.k
        if self._keeper is not None:
            check_alone("a budget", k=k, density=density)
        return resolve_k(self.layout.size, k, density)
