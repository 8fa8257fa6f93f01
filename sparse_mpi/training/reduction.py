"""Reduce a torch model's gradients during the backward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import count
from operator import add
from threading import get_ident
from typing import Any
from weakref import ref

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from sparse_mpi.checks import check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.comm.consistency import check_consistency, same_on_all_ranks
from sparse_mpi.fault_tolerance import Team
from sparse_mpi.monitor.step_report import StepReport, combined
from sparse_mpi.monitor.tracer import Tracer
from sparse_mpi.monitor.watch import Quality, Watch
from sparse_mpi.reduction.clipping import clipping_factor, sketched
from sparse_mpi.reduction.engine import StepRefused
from sparse_mpi.reduction.settings import Settings
from sparse_mpi.training.bucket import Bucket, cut
from sparse_mpi.training.grammar import CHANGED, LEFT, NOT_FINITE, SKIPPED, TWICE, UNREDUCED
from sparse_mpi.training.hooks import DENSE, UNSEEN, Hooks, kind_of, kinds_in
from sparse_mpi.training.live_ranks import LiveRanks, refuse_copy
from sparse_mpi.training.looks import Looks
from sparse_mpi.training.named_gradients import NamedGradients, Total, finished, in_one_order, parameters_of, refusal
from sparse_mpi.training.optimizer_steps import LOGGER, steps_along
from sparse_mpi.training.own_step import Unstepped
from sparse_mpi.training.sparse_gradients import SparseGradients

LOOKS = 2  # steps that show whether gradients are final when they come: reductions begin in `synchronize`


class GradientReduction:
    """Reduces the gradients of parameters, from hooks that autograd calls as gradients become final.

    `synchronize`, which a step calls, reduces ``.grad`` as it is then. A bucket may start before, when all its
    gradients have come and all buckets before it are started; the last one never does, so that in it the ranks agree
    whether any gradient has changed since. If one has, all are reduced anew, and nothing starts before `synchronize`
    from then on, as where a program changes gradients in the first steps. A missing gradient then counts as zero.
    Gradients that are sparse tensors on any rank leave the buckets before the first step, see `sparse_gradients`.
    Residuals of frozen parameters stay.

    Making one is collective. Arguments are as for `DistributedOptimizer`, checked.

    Args:
        optimizer: whose parameters are reduced that need a gradient, also later ones.
        names: of its parameters and of later ones, for life, in the order in which the model uses them. Others are
            named by their number in the optimizer.
        settings: of all of them together.
        k: if it was given; ``share``: the share of the entries to be sent, if not.
        survival: options of `ElasticAllreduce`, with a team.
        scale: the `LossScale`, where there is a loss scaler.

    Attributes:
        buckets: a list that stays the same, in the order in which they are reduced.
        parameters: whose gradients are reduced, by name.
        names: of these and of later parameters, for life.
        sparse: the parameters whose gradients are sparse tensors.
        density: of the next steps, if it is not the reducers' own.
        check: True makes the next steps assert both laws.
        overflowed: a gradient of the last step was not finite on some rank, and nothing was reduced.
        skipped: steps so far of which that is true.
    """

    __reduce_ex__ = refuse_copy

    def __init__(
        self,
        optimizer: Optimizer,
        names: Mapping[Tensor, str],
        settings: Settings,
        *,
        comm: Comm,
        team: Team | None = None,
        k: int | None = None,
        share: float,
        survival: Mapping[str, Any] | None = None,
        passes: int = 1,
        average: bool = True,
        bucket_cap_mb: float | None,
        overlap: bool = True,
        scale: Any = None,
    ) -> None:
        # With a scaler nothing may begin before all ranks know that no gradient has overflowed
        self._overlap = overlap and scale is None
        # Background reductions have their own communicator, or with a team the one that can shrink
        self.comm: Comm = comm.duplicate(yield_cpu=self._overlap) if team is None else comm
        self._threaded = progress_thread_of(self.comm).threaded  # whether its own thread does the work
        self._thread = get_ident()  # of this rank
        self._ranks = LiveRanks(self.comm, team)
        # Reducers clip means: that of a sum of norm clip_norm is shorter by the number of ranks
        most = settings.clip_norm
        most = most if most is None or average else most / self.comm.size
        alone = most if self._overlap else None  # of each bucket
        self._max_norm = None if self._overlap else most  # of the mean of all buckets together
        # A scaler leaves such a step out, too
        settings = settings if scale is None else replace(settings, nonfinite="skip")
        self.sparse = SparseGradients(average, alone, settings.nonfinite)
        self.gradients = NamedGradients(
            {},
            replace(settings, clip_norm=alone),
            share if k is None else settings.k / settings.layout.size,
            self._ranks,
            by_k=k is not None,
            survival=survival,
        )
        self.buckets: list[Bucket] = []
        self.parameters: dict[str, Tensor] = {}
        self._optimizer = ref(optimizer)
        self.names: dict[Tensor, str] = dict(names)
        self._unseen: dict[Tensor, str] = {}  # parameters of which no rank has seen a gradient, and their names
        self._bucket_of: dict[Tensor, Bucket] = {}
        self._share_left: float | None = None  # of a bucket's entries, once parameters have left
        self._k = None if k is None else settings.k
        self._passes, self._max_bytes = passes, float("inf") if bucket_cap_mb is None else bucket_cap_mb * 1e6
        self._scale, self._average = scale, average
        self._hooks = Hooks(self._arrived)
        self._came: Counter[Tensor] = Counter()  # backward passes since the last step, by parameter
        door = "or call synchronize() behind each pass, and reduction.stepped() behind each move"
        self._unstepped = Unstepped(door, passes, steps_along)
        self._grown = False  # of gradients on arrival, during the steps that look at them
        self._tracer: Tracer | None = None
        self._next = 0  # the bucket to be started next
        self._begun = 0  # buckets that were started in a backward pass
        self._open = True
        self._looks = Looks(LOOKS if self._overlap else 0)
        self._early = self._overlap  # nothing has spoken against reductions before `synchronize`
        self._reduced = False  # gradients are reduced, and no step has been taken along them yet
        self._totals: list[Total] = []  # of these
        self.density: float | None = None
        self.check: bool = False
        self.overflowed: bool = False
        self.skipped: int = 0
        self.add()

    def add(self) -> None:
        """Reduce also new parameters that need a gradient, if they have elements. Collective if there are any.

        Raises:
            TypeError, ValueError: see `in_one_order`.
        """
        known, tables, own = self._bucket_of, self.sparse.dims, parameters_of(self._optimizer())
        new = {p for p in own if p.requires_grad and p not in known and p not in tables and p.numel()}
        if not new:
            return
        taken = set(self.names.values())
        for number, parameter in enumerate(own):
            if parameter in new and parameter not in self.names:
                # Numbers have changed where groups were taken out
                self.names[parameter] = next(name for n in count(number) if (name := f"parameter {n}") not in taken)
                taken.add(self.names[parameter])
        self._start_settled()
        named = {name: parameter for parameter, name in self.names.items() if parameter in new}
        # Making a reduction starts no thread
        ordered = partial(in_one_order, named)
        named = self._ranks.ask(ordered) if self.parameters else ordered(self._ranks.comm)
        names = {parameter: name for name, parameter in named.items()}
        self._unseen |= names
        self.parameters |= named
        self.gradients.parameters |= named
        for members in cut(list(names), self._max_bytes):
            self.gradients.adopt(tuple(names[parameter] for parameter in members))
        self._rebuild()
        if self._open:
            self.open()

    def _rebuild(self) -> None:
        known = {bucket.vector: bucket for bucket in self.buckets}
        self.buckets[:] = [known.get(vector) or Bucket(vector) for vector in self.gradients]
        self._bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}

    def open(self) -> None:
        """Take note of gradients again, after `close`."""
        self._open = True
        for parameter in self.parameters.values():
            if parameter.requires_grad:
                self._hooks.add(parameter)

    def close(self) -> None:
        """Take no note of gradients: passes up to `open` are not reduced before `synchronize`."""
        self._open = False
        self._hooks.remove()

    def divisor(self) -> float:
        """Return the divisor of sums over the ranks."""
        return self.buckets[0].reducer.ranks if self.buckets and self._average else 1.0

    @property
    def under_way(self) -> bool:
        """Return True if gradients are being reduced, so that `synchronize` must be called."""
        return self._next > 0

    @property
    def arrived(self) -> bool:
        """Return True if gradients have come since the last `synchronize`, and were not cleared."""
        return self.under_way or any(parameter.grad is not None for parameter in self._came)

    @property
    def report(self) -> StepReport | None:
        """Return the report of this rank's last step, all buckets together; None before the first."""
        return combined([*(bucket.reducer.report for bucket in self.buckets), self.sparse.report], self.skipped)

    def synchronize(self) -> list[Total]:
        """Start the buckets that are not started, wait for all, and write the results to ``.grad``. Collective.

        Without new gradients since the last call it returns the same again.

        Returns:
            The sum over the ranks of each bucket, without a loss scale; an empty list if a gradient has overflowed.

        Raises:
            RuntimeError: a gradient was changed while it was reduced, or the last ones were not stepped along; raised
                on every rank, as a ValueError where it is another rank's.
            Exception: as `SparseAllreduce.step` does; raised on every rank, with nothing under way any more.
        """
        self.add()  # the optimizer may have new groups, or layers that are unfrozen
        return self._totals if self._reduced and not self.arrived else self._reduce(TWICE if self._reduced else None)

    def _reduce(self, problem: str | None = None) -> list[Total]:
        scale = 1.0 if self._scale is None else float(self._scale.now())
        if any(bucket.changed for bucket in self.buckets[: self._begun]):
            self.buckets[self._next].reducer.engine.revised = True
        problem = problem or (LEFT if self._left else None)
        self._look()
        self._start_settled()
        if self._unseen:
            self._learn_kinds()
        waiting = self.buckets[self._next :]
        if problem is not None:
            self._object(problem)
        for bucket in waiting:
            bucket.collect(scale)
        if self._scale is not None:
            # What a scaler leaves out leaves no trace, to the bit. It knows of gradients that were changed since, too
            parts: list[Any] = [self.sparse, *waiting] if self.sparse.dims else waiting
            unfit = self._scale.found() or not all(part.finite for part in parts)
            for part in parts:
                part.unfit = unfit
        # Start: tables first, because the norm of their sum is a part of the whole gradient's
        if self.sparse.dims:
            self.sparse.start(self._ranks.begin)
        self.overflowed, factor = False, self._start_rest(waiting, scale)
        refused = self._refusal()
        if refused is not None and refused.revised:
            self._begin_late()
            self._next = 0
            for bucket in self.buckets:
                bucket.collect(scale)
            factor = self._start_rest(self.buckets, scale)
            refused = self._refusal()
        if refused is not None:
            return self._skip()
        # Finish: results come back in the order of the starts
        self._totals = self._finish(scale, factor)
        self._reduced, self.gradients.flushed = True, False
        return self._totals

    def _start_rest(self, waiting: Sequence[Bucket], scale: float) -> float:
        """Start the buckets that wait, times a factor that clips the whole gradient, and return that."""
        # Of each that waits none has been started
        factor = 1.0 if self._max_norm is None else self._clipping_factor(self._max_norm, scale)
        for bucket in waiting:
            self._start(bucket, factor, collected=True)
        return factor

    def _refusal(self) -> StepRefused | None:
        """Wait for all reductions, and withdraw them if all ranks have refused one."""
        try:
            tables = self.sparse.refusal() if self.sparse.dims else None
            return refusal(self.gradients.vectors.values(), tables)
        except Exception:
            self._reset()
            self.sparse.fail()
            raise

    def _begin_late(self) -> None:
        if self._early and self.comm.rank == 0:
            LOGGER.warning(CHANGED)
        self._early = False

    def _skip(self) -> list[Total]:
        """Leave the step out: a gradient of some rank is not finite, so that all become NaN."""
        self._reset()
        self.sparse.fail()
        for bucket in self.buckets:
            bucket.fail()
        self.skipped += 1
        if self._scale is None and self.comm.rank == 0:  # a scaler looks for the largest scale by overflows
            LOGGER.warning(NOT_FINITE, self.skipped)
        self.overflowed, self._reduced, self._totals = True, True, []
        return []

    def stepped(self) -> None:
        """Take note of a step along the results: later gradients are the next step's."""
        self._reduced, self._totals = False, []

    def refuse_skipping(self) -> None:
        """Raise RuntimeError on every rank if gradients wait for `synchronize`, or to be cleared; collective then."""
        if self.arrived or self._left:
            self._reduce(LEFT if self._left else SKIPPED)

    @property
    def _left(self) -> bool:
        return self._grown or any(bucket.vector.left(bucket.parameters) for bucket in self.buckets)

    def flush(self) -> list[Total]:
        """Send all residuals, and write the result to ``.grad``: a step without a gradient. Collective.

        Afterwards residuals are 0, but for frozen parameters, see `SparseAllreduce.flush`.

        Returns:
            The sum over the ranks of each bucket, ``(n,)``, without a loss scale.

        Raises:
            RuntimeError: gradients have come that are not reduced yet, or not stepped along; raised on every rank.
            Exception: as `SparseAllreduce.flush` does; raised on every rank, with nothing under way any more.
        """
        if self.arrived or self._reduced:
            self._object(UNREDUCED)
        self.sparse.clear()  # tables have no residual
        self.sparse.start(self._ranks.begin)
        # Other ranks flush the buckets that are being reduced here: their calls differ, and all raise
        for bucket in self.buckets[self._next :]:
            bucket.vector.start_flush(self.check)
        totals = self._finish(1.0, flushed=True)  # residuals have no loss scale
        self.gradients.flushed = True
        return totals

    def watch(self, every: int, step: int = 0) -> None:
        """Measure the quality of one step out of ``every``, from the one after ``step`` on, see `Watch`.

        Costs two dense allreduces for each. Raises TypeError or ValueError if ``every`` is below 1.
        """
        check_whole("every", every, 1, "step")
        for bucket in self.buckets:
            bucket.reducer.watch = Watch(every, step)

    @property
    def quality(self) -> Quality | None:
        """Return the quality of the last step that was measured, all buckets together; None if there is none."""
        watches = [bucket.reducer.watch for bucket in self.buckets]
        known = [watch.quality for watch in watches if watch is not None and watch.quality is not None]
        return reduce(add, known) if known else None

    def record(self) -> Tracer:
        """Return a tracer that records, from the next step on, when each bucket is reduced."""
        like = next(iter(self.parameters.values()))  # any parameter tells the device
        self._tracer = Tracer(self.comm, like.detach())
        return self._tracer

    def kinds(self) -> dict[str, int]:
        """Return the kinds of gradients that all ranks know, for `know_kinds` of a rank that joins."""
        dims = self.sparse.dims
        return {name: UNSEEN if p in self._unseen else DENSE + dims.get(p, 0) for name, p in self.parameters.items()}

    def know_kinds(self, kinds: Mapping[str, int]) -> None:
        """Take over `kinds` of other ranks, and take sparse tensors out of buckets; collective if there are any."""
        seen = {self.parameters[name]: kind for name, kind in kinds.items() if kind != UNSEEN}
        self._unseen = {parameter: name for parameter, name in self._unseen.items() if parameter not in seen}
        leaving = {p: kind - DENSE for p, kind in seen.items() if kind > DENSE and p not in self.sparse.dims}
        if leaving:
            self.sparse.add(leaving, self.parameters.values())
            # k is for the others alone
            if self._k is not None:
                elements = self.gradients.elements - sum(parameter.numel() for parameter in leaving)
                self.gradients.share = self._share_left = min(1.0, self._k / max(1, elements))
            self.gradients.forget([name for name, parameter in self.parameters.items() if parameter in leaving])
            self._rebuild()

    def _learn_kinds(self) -> None:
        # Another rank may have new parameters to add, or none any more of which nothing is known
        names = [*self._unseen.values()]
        self._ranks.ask(lambda comm: check_consistency(comm, f"call=step of {len(names)} new: {names}"))
        # The largest kind wins: a rank without a gradient has 0, and sparse tensors come above dense ones
        kinds = self._ranks.any(np.array([kind_of(parameter.grad) for parameter in self._unseen], np.uint8))
        self.know_kinds(dict(zip(self._unseen.values(), kinds.tolist(), strict=True)))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank's reducers, in tensors and plain values; between steps.

        See `SparseAllreduce.state_dict`.
        """
        return self.gradients.state_dict(kinds=self.kinds())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore this rank's `state_dict`, on the same number of ranks, for the same parameters. Collective.

        Raises:
            ValueError: it is of other parameters, or as for `SparseAllreduce.load_state_dict`; raised on every rank.
        """
        self.take_over([state], self._ranks.comm.size)

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Restore the states of ``ranks`` ranks, on any number of ranks, see `SparseAllreduce.take_over`. Collective.

        Where ``.grad`` is a mean, residuals are scaled by the ratio of the numbers of ranks.

        Raises:
            ValueError: a state is of other parameters, or as for `SparseAllreduce.take_over`; raised on every rank.
        """
        self.add()
        # Wait for work under way, which uses the communicator, and writes the state about to be loaded
        self._ranks.ask(lambda comm: None)
        comm = self._ranks.comm
        agreement = same_on_all_ranks(comm, len(self.parameters))
        with agreement as say:
            read = self.gradients.checked(states, ranks)
            for state in read:
                agreement.words[:] = np.maximum(agreement.words, kinds_in(state, [*self.parameters]))
            say(call="take_over", ranks=ranks)
        # Ranks that were dealt no state learn the kinds from the others
        self.know_kinds(dict(zip(self.parameters, agreement.rows.max(0, initial=0).tolist(), strict=True)))
        self.gradients.deal(read, ranks, self._average)
        self._rebuild()

    def _arrived(self, parameter: Tensor) -> None:
        """Start all complete buckets; autograd's hook, called when ``parameter.grad`` has this pass's gradient."""
        self._came[parameter] += 1
        if self._came[parameter] > 1:
            self._unstepped.arrived(parameter)
        bucket = self._bucket_of.get(parameter)
        if bucket is None:  # a table
            return
        self._grown |= bucket.vector.left([parameter], 1)
        if self._came[parameter] == self._passes:
            # Until its kind is known a gradient stays where it is: no memory is taken for gradients that leave
            if self._settled(bucket):
                bucket.take(parameter, apart=self._early and not self._looks.left)
            if self._looks.left:
                self._looks.arrived(parameter)
        # Work at once, on autograd's thread of a device, would keep the other ranks of this process from going through
        # their passes, and it from going on: it is left to `synchronize`.
        early = self._early and not self._looks.left and not self._reduced and not self._grown
        if not early or not (self._threaded or get_ident() == self._thread):
            return
        # In the order of the buckets, which is the same on all ranks: a complete one waits for all before it
        while self._next < len(self.buckets) - 1 and self._ready(self.buckets[self._next]):
            self._start(self.buckets[self._next], early=True)
            self._begun = self._next

    def _settled(self, bucket: Bucket) -> bool:
        return not self._unseen or self._unseen.keys().isdisjoint(bucket.parameters)

    def _ready(self, bucket: Bucket) -> bool:
        # A parameter that was frozen meanwhile gets no gradient any more
        complete = (self._came[p] == self._passes or not p.requires_grad for p in bucket.parameters)
        return self._settled(bucket) and all(complete)

    def _look(self) -> None:
        # More backward passes than were awaited add to gradients, too
        if self._looks.left and (self._looks.changed() or max(self._came.values(), default=0) > self._passes):
            self._begin_late()

    def _start_settled(self) -> None:
        """Start all buckets that other ranks may have started in their backward pass, before the next question."""
        while self._overlap and self._next < len(self.buckets) - 1 and self._settled(self.buckets[self._next]):
            self._start(self.buckets[self._next])

    def _object(self, problem: str) -> None:
        (self.buckets[self._next].reducer.engine if self.buckets else self.sparse).objection = RuntimeError(problem)

    def _start(self, bucket: Bucket, factor: float = 1.0, collected: bool = False, early: bool = False) -> None:
        if not collected:
            bucket.collect(apart=early)
        if self._tracer is not None:
            self._tracer.begin(anew=self._next == 0)
        self._next += 1
        # None leaves k to the reducer of the bucket
        density = self._share_left if self.density is None else self.density
        handle = bucket.start(density=density, check=self.check, factor=factor)
        if self._tracer is not None:
            self._tracer.watch(handle, lambda: bucket.reducer.selections)

    def _finish(self, scale: float, factor: float = 1.0, flushed: bool = False) -> list[Total]:
        """Wait for all buckets, even if one fails, so that nothing is under way afterwards; see `Bucket.finish`.

        Sparse tensors are multiplied by ``factor``; buckets have been.
        """
        try:
            return finished(partial(bucket.finish, self._average, scale, flushed) for bucket in self.buckets)
        finally:
            if self._tracer is not None:
                self._tracer.end()
            self._reset()
            if self.sparse.dims:
                self.sparse.finish(factor)

    def _reset(self) -> None:
        self._next, self._begun, self._grown = 0, 0, False
        self._came.clear()
        if self._unstepped.passes > 1:
            self._unstepped.stepped()
        if self._looks.left:
            self._looks.forget()

    def _clipping_factor(self, most: float, scale: float) -> float:
        # Tables are reduced with the loss scale, buckets without it
        beside = self.sparse.norm / scale
        flats = [bucket.flat for bucket in self.buckets]
        return self._ranks.ask(lambda comm: clipping_factor(sketched(flats, comm.size), most, comm, beside))
