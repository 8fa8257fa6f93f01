"""Reduce a torch model's gradients bucket by bucket, beginning while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import as_arrays
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.fault_tolerance import Team
from sparse_mpi.feedback import Feedback
from sparse_mpi.monitor.step_report import StepReport
from sparse_mpi.monitor.watch import Quality, Watch
from sparse_mpi.reduction.arguments import usual_density
from sparse_mpi.reduction.clipping import clipping_factor, sketched
from sparse_mpi.reduction.settings import make_settings
from sparse_mpi.sparse import SparseVector
from sparse_mpi.training.arrivals import Hooks
from sparse_mpi.training.bucket import Bucket
from sparse_mpi.training.buckets import Buckets
from sparse_mpi.training.live_ranks import LiveRanks
from sparse_mpi.training.parameters import check_options
from sparse_mpi.training.reduction_snapshot import ReductionSnapshot
from sparse_mpi.training.sparse_gradients import SparseGradients
from sparse_mpi.training.tracer import Tracer

SURVIVAL = ("copy_every", "copy", "min_ranks")  # options of `ElasticAllreduce`


class GradientReduction:
    """Reduces the gradients of parameters, from hooks that autograd calls as gradients become final.

    A bucket is started when all its gradients have arrived and all buckets before it are started, so that the order is
    the same on all ranks. A gradient that is missing when `synchronize` is called counts as zero. Gradients that are
    sparse tensors on any rank leave the buckets before the first step, and are added up exactly, see
    `sparse_gradients`.

    Making one is collective.

    Args:
        parameters: in the order in which the model uses them; those that need no gradient are left out.
        k, density, comm, algorithm, feedback, nonfinite, second_moment, options: as for `SparseAllreduce`; ``k`` is for
            all parameters together. The communicator is duplicated.
        clip_norm: as for `SparseAllreduce`, but of the sum with ``average=False``; of the whole gradient if nothing
            overlaps, else of each bucket by itself, which is reduced before the next one's norm is known.
        passes: the number of backward passes whose gradients are added up before a reduction.
        average: True makes ``.grad`` the mean over the ranks, False the sum.
        bucket_cap_mb: the most gradients in a bucket, in 10^6 bytes; None puts all of one dtype and device into one.
        overlap: start reductions before `synchronize`, where that goes on in the background or on the CPU.
        scaler: the loss scaler of the training. Gradients are reduced, and residuals kept, without its scale, and a
            step in which a gradient of any rank overflows leaves no trace. Reductions begin in `synchronize`.
        team: the ranks in place of ``comm``, of which the others go on when some are lost: each bucket is then reduced
            by an `ElasticAllreduce`, whose options may be given too.

    Attributes:
        buckets: a list that stays the same, in the order in which they are reduced.
        sparse: the parameters whose gradients are sparse tensors.
        density: of the next steps, if it is not the reducers' own.
        check: True makes the next steps assert both laws.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        k: int | None = None,
        density: float | None = None,
        comm: Any = None,
        algorithm: str | Algorithm = "elect",
        feedback: str | Feedback = "residual",
        clip_norm: float | None = None,
        nonfinite: str = "keep",
        second_moment: float | None = None,
        passes: int = 1,
        average: bool = True,
        bucket_cap_mb: float | None = 25.0,
        overlap: bool = True,
        scaler: Any = None,
        team: Team | None = None,
        **options: Any,
    ) -> None:
        first = [p for p in parameters if p.requires_grad]
        transport = as_comm(comm) if team is None else team.comm
        # Options of `ElasticAllreduce` are not the algorithm's
        survival = {} if team is None else {name: options.pop(name) for name in SURVIVAL if name in options}
        with same_on_all_ranks(transport) as say:
            check_options(first, bucket_cap_mb, passes, average=average, overlap=overlap)
            if team is not None and comm is not None:
                raise ValueError(f"comm must be None with a team, which has one, got {comm!r}")
            settings = make_settings(
                sum(p.numel() for p in first),
                k=k,
                density=density,
                algorithm=algorithm,
                feedback=feedback,
                clip_norm=clip_norm,
                nonfinite=nonfinite,
                second_moment=second_moment,
                **options,
            )
            if team is not None and clip_norm is not None and not average:
                raise ValueError(f"clip_norm must be None with a team and average=False, got {clip_norm}")
            max_bytes = float("inf") if bucket_cap_mb is None else bucket_cap_mb * 1e6
            say(**settings.statement, bucket_cap_mb=bucket_cap_mb, overlap=overlap, passes=passes, average=average)
            say(scaled=scaler is not None)
        # With a scaler nothing may begin before all ranks know that no gradient has overflowed
        self._overlap = overlap and scaler is None
        # Reductions in the background have a communicator of their own, or with a team the one that can shrink
        self.comm: Comm = transport.duplicate(yield_cpu=self._overlap) if team is None else transport
        self.team: Team | None = team
        self._threaded = progress_thread_of(self.comm).threaded  # whether work is done by a thread of its own
        self._thread = get_ident()  # of this rank
        self._ranks = LiveRanks(self.comm, team)
        # Reducers clip means: that of a sum of norm clip_norm is shorter by the number of ranks
        most = clip_norm if clip_norm is None or average else clip_norm / self.comm.size
        alone = most if self._overlap else None  # of each bucket
        self._max_norm = None if self._overlap else most  # of the mean of all buckets together
        self.sparse = SparseGradients(passes, average, alone, raises=nonfinite == "raise")
        self._buckets = Buckets(
            replace(settings, clip_norm=alone),
            by_k=k is not None,
            density=usual_density(settings.algorithm) if density is None else density,
            comm=self.comm,
            ranks=self._ranks,
            survival=survival,
            passes=passes,
            average=average,
            max_bytes=max_bytes,
            sparse=self.sparse,
        )
        self.buckets: list[Bucket] = self._buckets.list
        self._scaler, self._average = scaler, average
        self._hooks = Hooks(self._arrived)
        self._tracer: Tracer | None = None
        self._next = 0  # the bucket to be started next
        self._scale: float | None = None  # the loss scale of the gradients under way
        self._open = True
        self.density: float | None = None
        self.check: bool = False
        self.add(first)

    def add(self, parameters: Iterable[Tensor]) -> None:
        """Reduce also the gradients of those ``parameters`` that need one and are new; collective if there are any."""
        if self._buckets.add(parameters) and self._open:
            self.open()

    def open(self) -> None:
        self._open = True
        for parameter in self._buckets.home:
            if parameter.requires_grad:
                self._hooks.add(parameter)

    def close(self) -> None:
        self._open = False
        self._hooks.remove()

    @property
    def under_way(self) -> bool:
        """Return True if gradients are being reduced, so that `synchronize` must be called."""
        return self._next > 0

    @property
    def arrived(self) -> bool:
        """Return True if gradients have arrived since the last `synchronize`."""
        return self.sparse.arrivals.any or any(bucket.arrivals.any for bucket in self.buckets)

    @property
    def report(self) -> StepReport:
        """Return what the last step did on this rank, all buckets together."""
        reports = [*(bucket.reducer.report for bucket in self.buckets), self.sparse.report]
        return reduce(lambda a, b: StepReport(*map(add, a, b)), [report for report in reports if report is not None])

    @property
    def algorithms(self) -> list[Algorithm]:
        return [bucket.reducer.algorithm for bucket in self.buckets]

    def use(self, algorithm: str | Algorithm | Sequence[Algorithm]) -> None:
        """Reduce the next steps by ``algorithm``, one for all buckets or one for each; residuals are kept.

        Collective if an algorithm is new to a bucket. One that was used before continues with the state it had then.

        Raises:
            RuntimeError: gradients are being reduced.
            TypeError, ValueError: an algorithm does not exist, or there is not one for each bucket.
        """
        if self.under_way:
            raise RuntimeError("algorithms must not change while gradients are being reduced; call synchronize() first")
        one = isinstance(algorithm, (str, Algorithm))
        chosen: list[Any] = [algorithm] * len(self.buckets) if one else list(algorithm)  # type: ignore[arg-type]
        if len(chosen) != len(self.buckets):
            raise ValueError(f"algorithm must be one or {len(self.buckets)}, one for each bucket, got {len(chosen)}")
        for bucket, wanted in zip(self.buckets, chosen, strict=True):
            bucket.reducer.use(wanted)

    def synchronize(self) -> list[SparseVector[Tensor] | Tensor]:
        """Start the buckets that are not started, wait for all, and write the results to ``.grad``. Collective.

        Returns:
            The sum over the ranks of each bucket, without a loss scale; an empty list if a gradient has overflowed.

        Raises:
            Exception: as `SparseAllreduce.step` does; raised on every rank, with nothing under way any more.
        """
        scale = self._current_scale()
        # Other ranks may have started these already: they come before what ranks ask each other.
        while self._overlap and self._next < len(self.buckets) and self.buckets[self._next].settled:
            self.buckets[self._next].take_missing(scale)
            self._start(self.buckets[self._next])
        # Kinds: find out which gradients are sparse tensors on any rank, and take them out of their buckets
        if not self._buckets.kinds_known:
            self._buckets.complete()
        # Collect: what no hook has brought is taken as it is, and None as zero
        waiting = self.buckets[self._next :]
        for bucket in waiting:
            bucket.take_missing(scale)
        # With a loss scaler, a step whose gradients overflowed anywhere is not reduced at all.
        if self._scaler is not None and self._overflowed():
            self._reset()
            self.sparse.fail()
            for bucket in self.buckets:
                bucket.fail()
            return []
        # Start: tables first, because the norm of their sum is a part of the whole gradient's
        if self.sparse.dims:
            self.sparse.start(self._ranks.begin)
        factor = 1.0
        if self._max_norm is not None:  # of a whole gradient: of each that waits, none has been started
            try:
                factor = self._clipping_factor(self._max_norm, scale)
            except Exception:
                self._reset()
                raise
        for bucket in waiting:
            self._start(bucket, factor)
        # Finish: results come back in the order of the starts
        totals = self._finish(scale, factor)
        # What the next step needs no gradients for is done behind the optimizer and the passes that follow.
        for bucket in self.buckets if self._overlap else ():
            bucket.reducer.prepare()
        return totals

    def flush(self) -> list[SparseVector[Tensor] | Tensor]:
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
        self.sparse.clear()  # tables owe nothing
        for bucket in self.buckets:
            bucket.start_flush(check=self.check)
        return self._finish(1.0)  # residuals have no loss scale

    def discard(self) -> None:
        """Forget the gradients that have arrived since the last step; RuntimeError while they are being reduced."""
        if self._next:
            raise RuntimeError(
                "gradients must not be cleared between backward() and step(), when they are being reduced; call "
                "step() or synchronize() first"
            )
        self._reset()

    def watch(self, every: int, step: int = 0) -> None:
        """Measure the quality of every Nth step from now on, see `Watch`; two dense allreduces for each.

        Args:
            every: N, at least 1.
            step: the number of the step before.

        Raises:
            ValueError: every is below 1.
        """
        if every < 1:
            raise ValueError(f"every must be at least 1 step, got {every}")
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
        self._tracer = Tracer(self.comm, next(iter(self._buckets.home)).detach())  # any parameter tells the device
        return self._tracer

    def kinds(self) -> list[list[int]]:
        return self._buckets.kinds()

    def know_kinds(self, kinds: Sequence[Sequence[int] | np.ndarray]) -> None:
        self._buckets.know_kinds(kinds)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's reducers need to continue, in tensors and plain values; between steps.

        See `SparseAllreduce.state_dict`. `torch.save` writes it, and `torch.load` reads it.
        """
        return self._snapshot().taken()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on the same rank of as many ranks, for the same parameters. Collective.

        Raises:
            ValueError: it is of other buckets, or as for `SparseAllreduce.load_state_dict`; raised on every rank.
        """
        # Work under way uses the communicator, and writes what is about to be loaded
        self._ranks.settle()
        self._snapshot().restore(as_arrays(state))

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Restore what ``ranks`` ranks saved, on any number of ranks, see `SparseAllreduce.take_over`. Collective.

        What the old ranks owed together changes ``.grad`` as much as it would have changed theirs: if ``.grad`` is a
        mean, residuals are scaled by the ratio of the numbers of ranks.

        Raises:
            ValueError: a state is of other buckets, or as for `SparseAllreduce.take_over`; raised on every rank.
        """
        self._ranks.settle()
        self._snapshot().deal(as_arrays(states), ranks, self._average)

    def _snapshot(self) -> ReductionSnapshot:
        return ReductionSnapshot(self._buckets, self._ranks)

    def loss_of_all(self, loss: Any) -> Any:
        """Return the mean over the ranks of a ``loss``, or the sum if that is what ``.grad`` becomes. Collective."""
        own = loss.detach() if isinstance(loss, Tensor) else loss

        def question(comm: Comm) -> float:
            losses = comm.allgather(np.array([float(own)]), control=True)
            return float(losses.sum()) / (comm.size if self._average else 1)

        of_all = self._ranks.ask(question)
        return torch.full_like(own, of_all) if isinstance(own, Tensor) else of_all

    def _arrived(self, parameter: Tensor) -> None:
        """Start what is complete now; autograd's hook, called when ``parameter.grad`` has this pass's gradient."""
        scale = self._current_scale()
        self._buckets.home[parameter].arrive(parameter, scale)
        # Work at once, on autograd's thread of a device, would keep the other ranks of this process from going through
        # their passes, and it from going on: it is left to `synchronize`.
        if not self._overlap or not (self._threaded or get_ident() == self._thread):
            return
        # In the order of the buckets, which is the same on all ranks: a complete one waits for those before it
        while self._next < len(self.buckets) and self.buckets[self._next].ready:
            bucket = self.buckets[self._next]
            bucket.take_missing(scale)  # those that need no gradient any more
            self._start(bucket)

    def _start(self, bucket: Bucket, factor: float = 1.0) -> None:
        if self._tracer is not None:
            self._tracer.begin(anew=self._next == 0)
        self._next += 1
        # None leaves k to the reducer of the bucket
        density = self._buckets.share_left if self.density is None else self.density
        handle = bucket.start(density=density, check=self.check, factor=factor)
        if self._tracer is not None:
            self._tracer.watch(handle, bucket.reducer)

    def _finish(self, scale: float, factor: float = 1.0) -> list[SparseVector[Tensor] | Tensor]:
        """Wait for all buckets, even if one fails, so that nothing is under way afterwards; see `Bucket.finish`.

        Sparse tensors are multiplied by ``factor``; those in buckets have been.
        """
        totals, errors = [], []
        for bucket in self.buckets:
            try:
                totals.append(bucket.finish(scale))
            except Exception as error:
                errors.append(error)
        if self.sparse.dims:
            try:
                self.sparse.finish(factor)
            except Exception as error:
                errors.append(error)
        if self._tracer is not None:
            self._tracer.end()
        self._reset()
        # The error of the first bucket that failed, so that all ranks raise that of the same one
        if errors:
            raise errors[0]
        return totals

    def _reset(self) -> None:
        self._next, self._scale = 0, None
        if self.sparse.dims:
            self.sparse.arrivals.reset()
        for bucket in self.buckets:
            bucket.reset()

    def _overflowed(self) -> bool:
        finite = self.sparse.finite and all(bool(bucket.flat.isfinite().all()) for bucket in self.buckets)
        # Also a rank that knows the answer takes part, because the others wait for it
        return bool(self._ranks.any(np.array([not finite], np.uint8))[0])

    def _clipping_factor(self, most: float, scale: float) -> float:
        """Return what all ranks multiply the whole gradient by, to clip its mean to the norm ``most``."""
        # Tables are reduced with the loss scale, buckets without it
        beside = self.sparse.norm / scale
        flats = [bucket.flat for bucket in self.buckets]
        return self._ranks.ask(lambda comm: clipping_factor(sketched(flats, comm.size), most, comm, beside))

    def _current_scale(self) -> float:
        """Return the loss scale of the gradients under way, which the scaler changes only between steps."""
        if self._scale is None:
            self._scale = float(self._scaler.get_scale()) if self._scaler is not None else 1.0
        return self._scale


def is_distributed(optimizer: object) -> bool:
    return isinstance(getattr(optimizer, "reduction", None), GradientReduction)
