"""Reduce a torch model's gradients during the backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import hypot
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.fault_tolerance import Team
from sparse_mpi.monitor.step_report import StepReport, combined
from sparse_mpi.monitor.tracer import Tracer
from sparse_mpi.reduction.clipping import factor_of
from sparse_mpi.reduction.settings import Settings
from sparse_mpi.training.arrivals import Arrivals
from sparse_mpi.training.bucket import Bucket
from sparse_mpi.training.buckets import Buckets
from sparse_mpi.training.door import Door
from sparse_mpi.training.grammar import LEFT, NOT_FINITE, SKIPPED, TWICE, UNREDUCED
from sparse_mpi.training.hooks import kinds_in
from sparse_mpi.training.live_ranks import LiveRanks, refuse_copy
from sparse_mpi.training.named_gradients import GradientVector, NamedGradients, Total, parameters_of
from sparse_mpi.training.optimizer_steps import LOGGER
from sparse_mpi.training.sparse_gradients import SparseGradients
from sparse_mpi.training.step_pass import Pass, finished

# Attributes that `DistributedOptimizer` adds to an optimizer
ADDED = ("reduction", "rule", "synchronize", "skip_synchronize", "flush", "_step_supports_amp_scaling")


class GradientReduction(Door):
    """Reduces the gradients of parameters, from hooks that autograd calls as gradients become final.

    `synchronize`, which a step calls, reduces ``.grad`` as it is then. A bucket may start before, when all its
    gradients have come and all buckets before it are started; the last one never does, so that in it the ranks agree
    whether any gradient has changed since. If one has, all are reduced anew, and nothing starts before `synchronize`
    from then on, as where a program changes gradients in the first steps. A missing gradient then counts as zero.
    Residuals of frozen parameters stay.

    Making one is collective. Arguments are as for `DistributedOptimizer`, checked.

    Args:
        optimizer: steps along the gradients; its parameters that need a gradient are reduced, also later ones.
        names: names of its parameters and of later ones, see `Buckets`. Others have their number in the optimizer.
        settings: settings of all parameters together.
        k: entries per step, or None; ``share``: fraction to send when k is None.
        survival: options of `ElasticAllreduce`, with a team.
        scale: `LossScale`, where there is a loss scaler.

    Attributes:
        bucketing: parameters in buckets.
        sparse: parameters whose gradients are sparse tensors.
        overflowed: True if a gradient of the last step was not finite on some rank, and nothing was reduced.
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
        dense_steps: int = 0,
    ) -> None:
        # With a scaler nothing may begin before all ranks know that no gradient has overflowed
        overlap = overlap and scale is None
        # Background reductions have their own communicator, or with a team the one that can shrink
        comm = comm.duplicate(yield_cpu=overlap) if team is None else comm
        # Reducers clip means: that of a sum of norm clip_norm is shorter by the number of ranks
        most = settings.clip_norm
        most = most if most is None or average else most / comm.size
        alone = most if overlap else None  # of each bucket
        # A scaler leaves such a step out, too
        settings = settings if scale is None else replace(settings, nonfinite="skip")
        gradients = NamedGradients(
            {},
            replace(settings, clip_norm=alone),
            share if k is None else settings.k / settings.layout.size,
            LiveRanks(comm, team),
            by_k=k is not None,
            survival=survival,
        )
        super().__init__(gradients, optimizer, dense_steps=dense_steps, average=average)
        self.sparse = SparseGradients(average, alone, settings.nonfinite)
        max_bytes = float("inf") if bucket_cap_mb is None else bucket_cap_mb * 1e6
        self.bucketing = Buckets(names, gradients, self.sparse, max_bytes, None if k is None else settings.k)
        self._arrivals = Arrivals(self._arrived, passes, overlap, progress_thread_of(comm).threaded)
        self._pass = Pass()
        self._begun = 0  # buckets that were begun in a backward pass
        self._max_norm = None if overlap else most  # of the mean of all buckets together
        self._scale = scale
        self._totals: list[Total] | None = None  # of gradients along which no step has been taken yet
        self.overflowed: bool = False
        self._meet()

    @property
    def buckets(self) -> list[Bucket]:
        """Return the buckets, in the order in which they are reduced; a list that stays the same."""
        return self.bucketing.all

    def open(self) -> None:
        """Take note of gradients again, after `close`."""
        self._arrivals.open = True
        self._arrivals.follow(self.bucketing.parameters.values())

    def close(self) -> None:
        """Take no note of gradients: passes up to `open` are not reduced before `synchronize`."""
        self._arrivals.close()

    def divisor(self) -> float:
        """Return the divisor of sums over the ranks."""
        return self._divisor(self.buckets[0].vector) if self.buckets else 1.0

    def _divisor(self, vector: GradientVector) -> float:
        return vector.reducer.ranks if self._average else 1.0

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of `GradientVector.start` in the next step."""
        options = super().options
        # None leaves k to the reducer of the bucket
        return options if self.density is not None or options["dense"] else options | {"density": self.bucketing.share}

    @property
    def under_way(self) -> bool:
        """Return True if gradients are being reduced, so that `synchronize` must be called."""
        return bool(self._pass.begun)

    @property
    def arrived(self) -> bool:
        """Return True if gradients have come since the last `synchronize`, and were not cleared."""
        return self.under_way or any(parameter.grad is not None for parameter in self._arrivals.came)

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
        with self._ended():
            self._meet()  # the optimizer may have new groups, or layers that are unfrozen
            if self._totals is None:
                return self._reduce()
            # Behind passes since then some ranks may have cleared their gradients
            return self._reduce(TWICE) if self._arrivals.came and self._somewhere(self.arrived) else self._totals

    @contextmanager
    def _ended(self) -> Iterator[None]:
        """Have nothing under way behind an error, whose first difference ends all on all ranks."""
        self._pass.open(self.comm)
        try:
            yield
        except Exception:
            self._pass.abandon()
            self._reset()
            self.sparse.abandon()
            raise
        finally:
            if not self._pass.begun:
                self._pass.end()

    def _reduce(self, problem: str | None = None) -> list[Total]:
        scale = 1.0 if self._scale is None else float(self._scale.now())
        buckets = self.bucketing.all
        if any(bucket.changed for bucket in buckets[: self._begun]):
            self._next.revised = True
        problem = problem or (LEFT if self._left else None)
        if self._arrivals.changed():
            self._arrivals.begin_late(self.comm.rank == 0)
        self._begin_settled()
        if self.bucketing.unseen:
            self.bucketing.learn_kinds()
        waiting = buckets[len(self._pass.begun) :]
        if problem is not None:
            self._next.objection = RuntimeError(problem)
        for bucket in waiting:
            bucket.gather(scale)
        # What a scaler leaves out leaves no trace, to the bit. It knows of gradients that were changed since, too
        if self._scale is not None:
            fit = self.sparse.finite and all(bucket.finite for bucket in waiting)
            parts: list[Any] = [self.sparse, *(bucket.reducer.engine for bucket in waiting)]
            for part in parts:
                part.unfit = not fit or self._scale.found()
        # Start: tables first, because the norm of their sum is a part of the whole gradient's
        self.sparse.start(self.gradients.live.begin)
        self.overflowed, factor = False, self._begin_rest(waiting, scale)
        refused = self._pass.refused(self.sparse.refusal())
        if refused is not None and refused.revised:
            self._arrivals.begin_late(self.comm.rank == 0)
            self._pass.end()
            for bucket in self.bucketing.all:
                bucket.gather(scale)
            factor = self._begin_rest(self.bucketing.all, scale)
            refused = self._pass.refused(self.sparse.refusal())
        if refused is not None:
            return self._skip()
        # Finish: results come back in the order of the starts
        try:
            totals = self._pass.write(lambda vector: self._divisor(vector) / scale)
        finally:
            self._reset()
            self.sparse.finish(factor)
        self._totals, self.gradients.flushed = totals, False
        self.steps += 1
        return totals

    @property
    def _next(self) -> Any:
        """Return what the ranks hear next of this one: an engine, or the sums of tables."""
        begun = len(self._pass.begun)
        return self.bucketing.all[begun].reducer.engine if self.bucketing.all else self.sparse

    def _begin_rest(self, waiting: Sequence[Bucket], scale: float) -> float:
        """Begin the buckets that wait, times a factor that clips the whole gradient, and return that."""
        # Of each that waits none has been begun
        factor = 1.0
        if self._max_norm is not None:
            norm = self.gradients.norm_of_mean([bucket.flat for bucket in self.bucketing.all], self._max_norm)
            # Tables are reduced with the loss scale, buckets without it
            factor = factor_of(hypot(norm, self.sparse.norm / scale), self._max_norm)
        for bucket in waiting:
            bucket.factor = factor
            self._pass.begin(bucket, **self.options)
        return factor

    def _skip(self) -> list[Total]:
        """Leave the step out: a gradient of some rank is not finite, so that all become NaN."""
        self._reset()
        self.sparse.fail()
        for bucket in self.bucketing.all:
            bucket.fail()
        self.skipped += 1
        if self._scale is None and self.comm.rank == 0:  # a scaler looks for the largest scale by overflows
            LOGGER.warning(NOT_FINITE, self.skipped)
        self.overflowed, self._totals = True, []
        return []

    def stepped(self) -> None:
        """Take note of a step along the results: later gradients are the next step's."""
        self._totals = None

    def refuse_skipping(self) -> None:
        """Raise RuntimeError on every rank if gradients wait for `synchronize`, or to be cleared.

        Collective but between `synchronize` and the next pass.
        """
        if self._totals is None or self._arrivals.came:
            left = self._left
            with self._ended():
                if self._somewhere(self.arrived or left):
                    self._reduce(LEFT if left else SKIPPED)

    def _somewhere(self, here: bool) -> bool:
        return bool(self.gradients.live.any(np.array([here], np.uint8))[0])

    @property
    def _left(self) -> bool:
        return self._arrivals.grown or any(bucket.vector.left(bucket.parameters) for bucket in self.bucketing.all)

    def record(self) -> Tracer:
        """Return a tracer that records, from the next step on, when each bucket is reduced."""
        like = next(iter(self.bucketing.parameters.values()))  # any parameter tells the device
        self._pass.tracer = Tracer(self.comm, like.detach())
        return self._pass.tracer

    def _meet(self) -> None:
        """Reduce also new parameters that need a gradient, if they have elements. Collective if there are any.

        Raises:
            TypeError, ValueError: see `in_one_order`.
        """
        if new := self.bucketing.new(parameters_of(self.optimizer)):
            self._begin_settled()
            self.bucketing.add(new)
            self._arrivals.follow(self.bucketing.parameters.values())

    def flush(self, step: bool = True) -> None:
        """Step once along the residuals of all ranks, see `Door.flush`. Collective."""
        self._wait()
        super().flush(step)

    def _wait(self) -> None:
        # Other ranks may be in another call behind fewer reductions, which then fail on all
        try:
            finished(place.vector.handle.wait for place in self._pass.begun if place.vector.handle is not None)
        except Exception:
            self._pass.abandon()
            self._reset()
            raise

    def _fill(self) -> None:
        super()._fill()
        self.overflowed, self._totals = False, []  # along which a step goes as they are

    def detach(self) -> None:
        """Have the optimizer train as torch does from now on, see `Door.detach`."""
        self._wait()
        super().detach()
        self._pass.abandon()
        self.close()
        for name in ADDED:
            vars(self.optimizer).pop(name, None)

    def _refuse_flush(self) -> None:
        if self.arrived or self._totals is not None:
            raise RuntimeError(UNREDUCED)
        self.sparse.clear()  # tables have no residual

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Restore the states of ``ranks`` ranks, see `Door.take_over`. Collective."""
        self._wait()
        # Gradients of a pass before are reduced by the state that is loaded
        self._pass.abandon()
        self._begun = 0
        super().take_over(states, ranks)
        self.bucketing.rebuild()  # the states may be of other vectors

    def _about(self) -> dict[str, Any]:
        return super()._about() | {"kinds": self.bucketing.kinds()}

    def _about_in(self, state: dict[str, Any]) -> dict[str, Any]:
        names = [*self.bucketing.parameters]
        return super()._about_in(state) | {"kinds": dict(zip(names, kinds_in(state, names), strict=True))}

    def _restore(self, about: dict[str, Any]) -> None:
        super()._restore(about)
        self.bucketing.know_kinds(about["kinds"])

    def _arrived(self, parameter: Tensor) -> None:
        """Start all complete buckets; autograd's hook, called when ``parameter.grad`` has this pass's gradient."""
        last, bucket = self._arrivals.count(parameter), self.bucketing.of(parameter)
        if bucket is None:  # a table
            return
        self._arrivals.grown |= bucket.vector.left([parameter], 1)
        if last:
            # Until its kind is known a gradient stays where it is: no memory is taken for gradients that leave
            if self.bucketing.settled(bucket):
                bucket.take(parameter, apart=self._arrivals.apart and bucket is not self.bucketing.all[-1])
            self._arrivals.look(parameter)
        if self._totals is not None or not self._arrivals.may_begin:
            return
        # In the order of the buckets, which is the same on all ranks: a complete one waits for all before it
        self._begin_settled(lambda bucket: self._arrivals.complete(bucket.parameters), apart=True)
        self._begun = len(self._pass.begun)

    def _begin_settled(self, ready: Any = lambda bucket: True, apart: bool = False) -> None:
        """Begin all buckets that other ranks may have begun in their backward pass, before the next question."""
        if not self._arrivals.overlaps:
            return
        for bucket in self.bucketing.all[len(self._pass.begun) : -1]:
            if not self.bucketing.settled(bucket) or not ready(bucket):
                return
            bucket.gather(apart=apart)
            self._pass.begin(bucket, **self.options)

    def _reset(self) -> None:
        self._pass.end()
        self._begun = 0
        self._arrivals.forget()
