"""The exchange of one gradient, step after step: `Engine`.

It knows no thread and no fault. An *attempt* of a step agrees, accumulates and reduces, and can be retried or
withdrawn: until `Engine.commit` subtracts sent entries, residual and state are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi import arrays, kernels
from sparse_mpi.algorithms import Algorithm, Reduction
from sparse_mpi.algorithms.base import Carried
from sparse_mpi.algorithms.two_level import placed
from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_switch
from sparse_mpi.comm import Comm, Traffic
from sparse_mpi.comm.consistency import same_on_all_ranks, stated
from sparse_mpi.feedback import Feedback
from sparse_mpi.monitor.step_report import StepReport
from sparse_mpi.monitor.watch import Watch
from sparse_mpi.reduction.clipping import clipping_factor, scaled, sketched
from sparse_mpi.reduction.laws import check_laws, raise_nonfinite
from sparse_mpi.reduction.report import Instrumented, check_added, instrument, summarise, unselected
from sparse_mpi.reduction.second_moment import SecondMoment
from sparse_mpi.reduction.settings import DENSE, Settings
from sparse_mpi.sparse import SparseVector

NEWS, NOT_FINITE, REVISED = 1, 2, 3  # flags of an agreement; the largest of all ranks counts


class Absence:
    """Finds tensors without a gradient on any rank in a step, as of skipped layers: torch leaves them unchanged.

    Ranks exchange the set only if some rank's differs from the last agreed one, which `same_on_all_ranks` detects at no
    cost.

    Attributes:
        here: tensors without a gradient on this rank in the next step, set by the gradients' owner.
        frozen: untrained ones among them, the same on all ranks: their residual stays.
        everywhere: tensors without a gradient on any rank in the last step.
    """

    def __init__(self, tensors: int) -> None:
        self.here: Iterable[int] = ()
        self.frozen: Sequence[int] = ()
        self.everywhere: list[int] = []
        self._tensors = tensors
        self._comm: Comm | None = None  # the ranks that ``everywhere`` is of

    def news(self, comm: Comm) -> bool:
        """Tell if this rank's set differs from the one agreed by ``comm`` in the last step."""
        if self._comm is not comm:  # a rank that has joined does not know
            self._comm, self.everywhere = comm, []
        return sorted(self.here) != self.everywhere

    def agree(self, comm: Comm) -> None:
        """Agree on `everywhere`: a byte a tensor (control). Collective."""
        # 1 where this rank has a gradient: the maximum over the ranks is 0 where no rank has one
        present = np.ones(self._tensors, np.uint8)
        present[sorted(self.here)] = 0
        somewhere = np.asarray(comm.allreduce(present, "max", control=True))
        self.everywhere = np.flatnonzero(somewhere == 0).tolist()


@lru_cache(maxsize=64, typed=True)
def _stated(wide: np.dtype, acc: np.dtype, k: int | str, check: bool) -> str:
    return stated(dtype=wide, acc=acc, k=k, check=check)


class StepRefused(FloatingPointError):
    """A step that no rank has taken, and that has left no trace.

    Attributes:
        revised: gradients of some rank have changed since the step's reductions began; else one is not finite.
    """

    def __init__(self, revised: bool) -> None:
        self.revised = revised
        super().__init__("gradient must be finite on all ranks with nonfinite='skip', got NaN or Inf on some")


class StepPlan(NamedTuple):
    k: int
    dense: bool = False  # every entry is summed, by a dense allreduce
    flush: bool = False  # there is no gradient: all that the ranks owe is sent


class Agreed(NamedTuple):
    flat: Array | None  # (n,) the gradient; None: there is none, in a flush
    plan: StepPlan
    check: bool  # assert both laws
    dtype: np.dtype  # dtype of acc
    absence_changed: bool  # True: some rank's set has changed, see `Absence.agree`
    watched: bool  # a copy of acc from before the reduction is wanted


class Attempt(NamedTuple):
    reduction: Reduction
    state: Any  # state of the algorithm for the next step
    agreed: Agreed
    initial_acc: Array | None  # (n,) a copy of acc, for checks and the watch


@dataclass(eq=False)
class Exchange:
    """An algorithm, with what lasts from step to step."""

    algorithm: Algorithm
    placed: Algorithm  # the same, as it runs on these ranks
    instrumented: Algorithm  # the placed one, with selectors that measure themselves
    selectors: list[Instrumented]
    unselected: int  # elements that no selector looks at
    state: Any
    dtype: np.dtype | None = None  # dtype of the state's acc; None while any will do


class Engine:
    """Reduces gradients of one layout on one rank.

    Attributes:
        ranks: number of ranks in the last result.
        steps: number of steps and flushes since the algorithm's state began.
        whole: True if the last step was to send every entry.
        second_moment: this rank's second moment, if it travels with the entries.
        watch: measures the quality of some steps, if set.
        meters: called with this engine after each step, see `monitor.observe`.
        objection: error that keeps this rank from the next step; all ranks raise then.
        revised: gradients have changed since earlier reductions of the step began: all ranks raise `StepRefused`.
        unfit: other gradients of the step are not finite: all ranks raise it, too.
    """

    def __init__(self, settings: Settings, comm: Comm) -> None:
        self.settings, self.comm, self.layout = settings, comm, settings.layout
        self.feedback: Feedback = settings.feedback.start(settings.layout, comm.size)
        self.exchange: Exchange = self._exchange(settings.algorithm)
        self.ranks: int = comm.size
        self.steps: int = 0
        self._staged = comm.job.staged  # else arrays of all ranks must be in the same place: NCCL moves arrays of a GPU
        self.whole: bool = False
        self.absence = Absence(len(self.layout.shapes))
        beta = settings.second_moment
        self.second_moment: SecondMoment | None = None if beta is None else SecondMoment(beta, self.layout)
        self.watch: Watch | None = None
        self.meters: list[Callable[[Engine], None]] = []
        self.report: StepReport | None = None
        self.objection: Exception | None = None
        self.revised: bool = False
        self.unfit: bool = False
        self._exchanges = [self.exchange]  # exchanges of all algorithms that took turns
        self._acc: Array | None = None  # acc of the step under way
        self._add: Array | None = None  # array that a selection is to add to it
        self._gradient: Array | None = None  # gradient in acc, clipped
        self._withheld = False  # True: parts of the gradient were withheld in the step before
        self._aside: list[tuple[slice, Array]] | None = None  # the residual of frozen tensors, during a step

    def _exchange(self, algorithm: Algorithm) -> Exchange:
        runs = placed(algorithm, self.comm)
        selectors, instrumented = instrument(runs)
        state = instrumented.init(self.layout, self.settings.k, self.comm.size)
        return Exchange(algorithm, runs, instrumented, selectors, unselected(algorithm, self.layout), state)

    def use(self, algorithm: Algorithm) -> None:
        """Reduce by ``algorithm`` from now on; an earlier one resumes its state."""
        known = [exchange for exchange in self._exchanges if exchange.algorithm == algorithm]
        if not known:
            known = [self._exchange(algorithm)]
            self._exchanges += known
        self.exchange = known[0]

    def agree(self, gradient: object, make_plan: Callable[[], StepPlan], check: bool) -> Agreed:
        """Return the step, once all ranks are known to do the same. Collective.

        Args:
            gradient: ``(n,)`` or any shape of n elements, of any library; None in a flush.
            make_plan: returns the plan, or raises an error of its arguments.
            check: assert both laws on the step.

        Raises:
            TypeError, ValueError: ``gradient`` is not of this layout, or ranks differ; raised on every rank.
        """
        agreement = same_on_all_ranks(self.comm)
        with agreement as say:
            if self.objection is not None:
                objection, self.objection = self.objection, None
                raise objection
            if type(check) is not bool:
                check_switch("check", check)
            plan = make_plan()
            if self.absence.frozen:
                say(frozen=sorted(self.absence.frozen))
            if plan.flush:
                # A flush has no gradient: acc has the type of the residual
                flat, dtype = None, self.feedback.pending().dtype
                say(call="flush", dtype=dtype, check=check)
            else:
                flat = self.entered(gradient)
                dtype = wide = arrays.wide_type(flat)
                for remembered in self.feedback.state().values():  # acc is as precise as the most precise of all
                    _check_device(flat, remembered)
                    if remembered.dtype.itemsize > dtype.itemsize:
                        dtype = remembered.dtype
                say(_stated(wide, dtype, "dense" if plan.dense else plan.k, check))
                if self.watch is not None and self.watch.due:
                    say(watch=self.watch.every)
                # Ranks on a device may have other messages, and other levels
                if not self._staged or self.exchange.placed != self.exchange.algorithm:
                    say(device=arrays.is_device(flat))
                agreement.flag = NEWS * self.absence.news(self.comm)
                if self.unfit or (self.settings.nonfinite == "skip" and not arrays.finite(flat)):
                    agreement.flag = NOT_FINITE
                if self.revised:
                    agreement.flag = REVISED
        self.revised = self.unfit = False
        if agreement.flag > NEWS:
            raise StepRefused(agreement.flag == REVISED)
        watched = check or (self.watch is not None and self.watch.due and not plan.flush)
        return Agreed(flat, plan, check, dtype, agreement.flag == NEWS, watched)

    def attempt(self, agreed: Agreed) -> Attempt:
        self.begin(agreed)
        self.accumulate(agreed.flat, join=agreed.watched)
        return self.reduce(agreed)

    def begin(self, agreed: Agreed) -> None:
        """Agree on absent gradients; needs no gradient."""
        if agreed.plan.flush:
            return self._set_aside()
        exchange = self.exchange
        if exchange.dtype is not None and exchange.dtype != agreed.dtype:  # thresholds are bits of numbers
            self.start_anew()
        exchange.dtype = agreed.dtype
        if agreed.absence_changed:
            self.absence.agree(self.comm)
        # Withhold momentum where no rank has a gradient. The step after one that did so tells the rule anew where
        if self.absence.everywhere or self._withheld:
            parts = self.layout.parts  # made anew at each look
            self.feedback.withhold([parts[number] for number in self.absence.everywhere])
            self._withheld = bool(self.absence.everywhere)
            self._set_aside()  # no rank has a gradient of frozen tensors
        self.whole = agreed.plan.k >= self.layout.size

    def accumulate(self, flat: Array | None, factor: float | None = None, join: bool = False) -> Array:
        """Return acc ``(n,)``; the gradient is added once, also in a further attempt.

        Args:
            flat: the gradient ``(n,)``; None: there is none.
            factor: clips the gradient, if already known.
            join: complete acc here, not in the algorithm's selection pass.
        """
        if self._acc is not None:
            # Attempted again: acc has the gradient already, or gets it now where no selection has added it
            self._join()
        elif flat is None:
            self._acc = self.feedback.pending()
        else:
            # Clip the gradient alone, before it joins the residual
            if self.settings.clip_norm is not None:
                factor = self.clipping_factor(flat) if factor is None else factor
                flat = scaled(arrays.widened(flat), factor)
            self._gradient = flat
            if self.second_moment is not None:
                self.second_moment.update(flat, self.absence.everywhere)
            self._acc, self._add = self.feedback.accumulate(flat)
            # An algorithm that accumulates has its selector add the gradient, in the pass over acc that selects
            if join or not self.exchange.placed.traits.accumulates:
                self._join()
        return self._acc

    def reduce(self, agreed: Agreed) -> Attempt:
        """Reduce acc: the only communication of a step beside control."""
        plan, sends_all = agreed.plan, agreed.plan.dense or agreed.plan.flush
        if sends_all:  # no selection adds the gradient
            self._join()
        acc, add = self._acc, self._add
        if acc is None:
            raise RuntimeError("accumulate must come before reduce, which found nothing to reduce")
        if self.second_moment is not None:
            self.second_moment.agreement.meet(self.comm)
        # acc may be the residual itself, which commit changes: later readers need a copy
        initial = acc.copy() if agreed.watched else None
        # Dense: nothing stays in the residual, so the algorithm forgets its state of it
        if sends_all:
            state = DENSE.init(self.layout, self.settings.k, self.comm.size)
            reduction, _ = DENSE.reduce(acc, self.layout.size, self.comm, state, self.layout)
            if self.second_moment is not None:
                moments = self.comm.allreduce(self.second_moment.like(acc))
                reduction = Carried(reduction.total, reduction.sent, moments)
            return Attempt(reduction, self.exchange.instrumented.forget(self.exchange.state), agreed, initial)
        # Sparse: the algorithm selects about k entries, and exactly one of its selections adds the gradient
        exchange = self.exchange
        reduce: Callable[..., tuple[Reduction, object]] = exchange.instrumented.reduce
        beside = {} if self.second_moment is None else {"beside": self.second_moment.like(acc)}
        reduction, state = reduce(acc, plan.k, self.comm, exchange.state, self.layout, add, **beside)
        check_added(exchange.selectors, exchange.algorithm, add)
        return Attempt(reduction, state, agreed, initial)

    def commit(self, attempt: Attempt, began: float, traffic: Traffic) -> SparseVector | Array:
        """Subtract the sent entries from the residual, and return the step's result.

        Args:
            attempt: attempt completed on all ranks.
            began: start of the step, in `time.perf_counter` seconds.
            traffic: messages and bytes of the attempt.
        """
        # Take out: from here on the step cannot be attempted again
        reduction, agreed = attempt.reduction, attempt.agreed
        self.feedback.consume(reduction.sent, reduction.total, self.ranks)
        self.steps += 1
        self.exchange.state, self._acc, self._add, self._gradient = attempt.state, None, None, None
        if self.second_moment is not None and isinstance(reduction, Carried):
            total, sums = reduction.total, reduction.beside
            self.second_moment.commit(total._replace(values=sums) if isinstance(total, SparseVector) else sums)
        whole = agreed.plan.dense or agreed.plan.flush
        # Report
        seconds = perf_counter() - began
        selectors, elements = ((), self.layout.size) if whole else (self.exchange.selectors, self.exchange.unselected)
        self.report = summarise(reduction, selectors, elements, seconds, traffic)
        for meter in self.meters:
            meter(self)
        # Examine: checks come last, for they may raise, and the engine is ready for the next step by now
        algorithm = DENSE if whole else self.exchange.placed
        try:
            if self.watch is not None and not agreed.plan.flush:
                acc, moment = attempt.initial_acc, self.second_moment
                squares = None if acc is None or moment is None else moment.like(acc)
                self.watch.note(acc, reduction.total, agreed.plan.k, self.comm, squares)
            if agreed.check and attempt.initial_acc is not None:
                check_laws(reduction, attempt.initial_acc, self.feedback, algorithm, self.comm)
        finally:
            if self._aside is not None:
                self._put_back()
        if self.settings.nonfinite == "raise":
            raise_nonfinite(reduction.total)
        return reduction.total

    def start_anew(self) -> None:
        self.steps = 0
        self.exchange.state = self.exchange.instrumented.init(self.layout, self.settings.k, self.comm.size)

    def owe(self, pending: list[Array]) -> None:
        """Add other ranks' residuals ``(n,)`` to this rank's; ``pending`` is empty afterwards."""
        self._join()
        # In an attempt, a lost rank's residual joins acc, and may be sent in this very step
        acc = self.feedback.pending() if self._acc is None else self._acc
        for array in pending:
            kernels.of(acc).accumulate(acc, arrays.like(array, acc).astype(acc.dtype, copy=False))
        pending.clear()

    def withdraw(self) -> None:
        """Undo an attempt, on all ranks alike: the gradient leaves acc, to rounding."""
        self._join()
        if self._gradient is not None:
            if self.feedback.traits.defers:
                self.feedback.pending(without=self._gradient)
            if self.second_moment is not None:
                self.second_moment.retract(self._gradient, self.absence.everywhere)
        self.abandon()

    def abandon(self) -> None:
        self._join()
        self._gradient = None
        self._put_back()
        # Momentum that was withheld goes back: the next step may have these gradients
        self._acc, self._withheld = None, False
        self.feedback.withhold(())

    def clipping_factor(self, flat: Array | None) -> float:
        limit = self.settings.clip_norm
        if limit is None:
            return 1.0
        return clipping_factor(sketched([flat], self.comm.size), limit, self.comm)

    def entered(self, gradient: object) -> Array:
        """Return ``gradient`` as a flat NumPy or CuPy array ``(n,)``, or raise the errors of `agree`."""
        arrays.check(gradient, "gradient")
        flat = arrays.enter(gradient)
        if len(flat) != self.layout.size:
            raise ValueError(
                f"gradient must have {self.layout.size} elements as layout says, got {len(flat)}; "
                "pass all tensors of the layout, flattened into one"
            )
        return flat

    def _set_aside(self) -> None:
        residual, parts = self.feedback.residual, self.layout.parts
        if self._aside is None:
            self._aside = [(parts[number], residual[parts[number]].copy()) for number in self.absence.frozen]
            for part, _ in self._aside:
                residual[part] = 0

    def _put_back(self) -> None:
        aside, self._aside = self._aside, None
        residual = self.feedback.residual
        for part, owed in aside or ():
            residual[part] += arrays.like(owed, residual)

    def _join(self) -> None:
        # A selector may have added the gradient before an attempt failed: it must not join twice
        if self._add is not None and not any(selector.added for selector in self.exchange.selectors):
            if self._acc is None:
                raise RuntimeError("accumulate must come before its gradient joins, which found no acc")
            kernels.of(self._acc).accumulate(self._acc, self._add)
        self._add = None
        for selector in self.exchange.selectors:
            selector.reset()


def _check_device(gradient: Array, remembered: Array) -> None:
    """Raise TypeError if ``gradient`` is in host memory, and a rule's array on a device."""
    if arrays.is_device(remembered) and not arrays.is_device(gradient):
        raise TypeError(
            f"gradient must be on the device where the residual is, got {arrays.describe(gradient)}; pass it from "
            "there, or take the residual to the host first: reducer.load_state_dict(reducer.state_dict())"
        )


class Direct:
    """Carries out steps at once: an error ends them."""

    survives = False  # the loss of a rank

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def complete(self, gradient: object, make_plan: Callable[[], StepPlan], check: bool) -> Attempt:
        """Return the attempt of all ranks; if it fails the gradient stays in the residual."""
        self.engine.comm.job.begin_reduction()  # begin of a reduction, for the watchdog's report
        agreed = self.engine.agree(gradient, make_plan, check)
        try:
            return self.engine.attempt(agreed)
        except BaseException:
            self.engine.abandon()
            raise

    def catch_up(self) -> None:
        """Have the engine know the present ranks, before its state is saved or loaded."""

    def loaded(self) -> None:
        """Take note that a state was loaded."""
