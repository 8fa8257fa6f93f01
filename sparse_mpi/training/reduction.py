"""Reduce a torch model's gradients bucket by bucket, beginning while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import add
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.budget import make_goal
from sparse_mpi.comm import as_comm
from sparse_mpi.comm.background import in_turn
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.fault_tolerance import ElasticAllreduce, Team
from sparse_mpi.feedback import Feedback
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import check_clip_norm, resolve_k, usual_density
from sparse_mpi.reduction.deprecated import accepts_former
from sparse_mpi.reduction.report import StepReport
from sparse_mpi.sparse import SparseVector
from sparse_mpi.training.agreeing import Agreeing
from sparse_mpi.training.ahead import Previewing
from sparse_mpi.training.bucket import Bucket
from sparse_mpi.training.choosing import Choosing
from sparse_mpi.training.cutting import cut
from sparse_mpi.training.flushing import Flushable
from sparse_mpi.training.gradients import Hooks
from sparse_mpi.training.options import check_options
from sparse_mpi.training.rows import SparseGradients
from sparse_mpi.training.spending import FIRST, SpendingReduction
from sparse_mpi.training.states import ResumableReduction
from sparse_mpi.training.trace import Tracer
from sparse_mpi.training.watching import WatchedReduction


class GradientReduction(
    Agreeing, Choosing, Flushable, Previewing, SpendingReduction, ResumableReduction, WatchedReduction
):
    """Reduces the gradients of parameters, from hooks that autograd calls as gradients become final.

    A bucket is started when all its gradients have arrived and all buckets before it are started, so that the order is
    the same on all ranks. A gradient that is missing when `synchronize` is called counts as zero. Gradients that are
    sparse tensors on any rank leave the buckets before the first step, and are added up exactly, see `rows`.

    Making one is collective.

    Args:
        parameters: in the order in which the model uses them; those that need no gradient are left out.
        k, density, comm, algorithm, feedback, budget, step_seconds, nonfinite, options: as for `SparseAllreduce`; ``k``
            and what is set instead of it are for all parameters together. The communicator is duplicated. ``memory`` is
            the former name of feedback, deprecated.
        clip_norm: as for `SparseAllreduce`, but of the sum with ``average=False``; of the whole gradient if nothing
            overlaps, else of each bucket by itself, which is reduced before the next one's norm is known.
        in_place: see `Bucket`.
        passes: the number of backward passes whose gradients are added up before a reduction.
        average: True makes ``.grad`` the mean over the ranks, False the sum.
        bucket_cap_mb: the most gradients in a bucket, in 10^6 bytes; None puts all of one dtype and device into one.
        overlap: start reductions before `synchronize`.
        scaler: the loss scaler of the training. Gradients are reduced, and residuals kept, without its scale, and a
            step in which a gradient of any rank overflows leaves no trace. Reductions begin in `synchronize`.
        team: the ranks in place of ``comm``, of which the others go on when some are lost: each bucket is then reduced
            by an `ElasticAllreduce`, whose options may be given too.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank.
    """

    @accepts_former("density", "k", "comm", "algorithm", renamed={"memory": "feedback"})
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
        in_place: bool = False,
        nonfinite: str = "keep",
        budget: str | None = None,
        step_seconds: float | None = None,
        passes: int = 1,
        average: bool = True,
        bucket_cap_mb: float | None = 25.0,
        overlap: bool = True,
        scaler: Any = None,
        team: Team | None = None,
        **options: Any,
    ) -> None:
        self.buckets: list[Bucket] = []
        self._home, self.team = {}, team
        self.density: float | None = None  # density of the next steps, if it is not the reducers' own
        self.check = False  # True makes the next steps assert both laws
        self._tracer: Tracer | None = None
        first = [p for p in parameters if p.requires_grad]
        elements = self._elements = sum(p.numel() for p in first)
        transport = as_comm(comm) if team is None else team.comm
        with same_on_all_ranks(transport) as say:
            check_options(first, bucket_cap_mb, passes, scaler, in_place=in_place, average=average, overlap=overlap)
            check_clip_norm(clip_norm, in_place)
            if team is not None and comm is not None:
                raise ValueError(f"comm must be None with a team, which has one, got {comm!r}")
            if team is not None and clip_norm is not None and not average:
                raise ValueError(f"clip_norm must be None with a team and average=False, got {clip_norm}")
            goal = make_goal(budget, step_seconds, k=k, density=density)
            self._k = resolve_k(elements, k, density, usual_density(algorithm))
            self._max_bytes = float("inf") if bucket_cap_mb is None else bucket_cap_mb * 1e6
            self._keep(goal, len(cut(first, self._max_bytes)), transport.size, algorithm, options)
            say(n=elements, k=self._k, bucket_cap_mb=bucket_cap_mb, budget=goal)
            say(overlap=overlap, passes=passes, average=average, scaled=scaler is not None, clip_norm=clip_norm)
        self._overlap = overlap and scaler is None
        self.comm = transport.duplicate(yield_cpu=self._overlap) if team is None else transport
        self._share = self._k / elements if k is not None else density
        self._by_k = k is not None
        self._passes, self._in_place, self._scaler = passes, in_place, scaler
        self._average = average
        most = clip_norm if clip_norm is None or average else clip_norm / self.comm.size
        self._max_norm = None if self._overlap else most  # of the mean of all buckets together
        begun = algorithm if self._picker is None else FIRST
        self._options: dict[str, Any] = {"algorithm": begun, "feedback": feedback, "in_place": in_place}
        self._options |= {"clip_norm": most if self._overlap else None, "nonfinite": nonfinite, **options}
        self._hooks = Hooks(self._arrived)
        self._next = 0  # the bucket to be started next
        self._scale: float | None = None  # the loss scale of the gradients under way
        alone = most if self._overlap else None
        self.sparse = SparseGradients(passes, average, alone, raises=nonfinite == "raise")
        self._kinds_known = False
        self._open = True
        self.add(first)

    def add(self, parameters: Iterable[Tensor]) -> None:
        """Reduce also the gradients of those ``parameters`` that need one and are new; collective if there are any."""
        for members in cut([p for p in parameters if p.requires_grad and p not in self._home], self._max_bytes):
            bucket = Bucket(members, self._reducer, passes=self._passes, in_place=self._in_place, average=self._average)
            self.buckets.append(bucket)
            self._home |= dict.fromkeys(members, bucket)
            self._kinds_known = False
        if self._open:
            self.open()

    def open(self) -> None:
        """Take part in the backward passes that follow, until `close`."""
        self._open = True
        for parameter in self._home:
            if parameter.requires_grad:
                self._hooks.add(parameter)

    def close(self) -> None:
        """Take no part in backward passes any more: gradients stay on their rank."""
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

    def synchronize(self) -> list[SparseVector | Tensor]:
        """Start the buckets that are not started, wait for all, and write the results to ``.grad``. Collective.

        Returns:
            The sum over the ranks of each bucket, without a loss scale; an empty list if a gradient has overflowed.

        Raises:
            Exception: as `SparseAllreduce.step` does; raised on every rank, with nothing under way any more.
        """
        began = perf_counter()
        self._check_ahead(self._was_ahead)
        self._was_ahead = False
        scale = self._current_scale()
        # Other ranks may have started these already: they come before what ranks ask each other.
        while self._overlap and self._next < len(self.buckets) and self.buckets[self._next].settled:
            self.buckets[self._next].take_missing(scale)
            self._start(self.buckets[self._next])
        self._settle()
        waiting = self.buckets[self._next :]
        for bucket in waiting:
            bucket.take_missing(scale)
        # With a loss scaler, a step whose gradients overflowed anywhere is not reduced at all.
        if self._overflowed():
            self._reset()
            self._pause()
            self.sparse.fail()
            for bucket in self.buckets:
                bucket.fail()
            return []
        self.sparse.start(self._begin)
        try:
            factor = self._clipping_factor(scale)  # of a whole gradient: of each that waits, none has been started
        except Exception:
            self._reset()
            raise
        for bucket in waiting:
            self._start(bucket, factor)
        totals = self._finish(scale, factor)
        self._spend(began)
        # What the next step needs no gradients for is done behind the optimizer and the passes that follow.
        for bucket in self.buckets if self._overlap else ():
            bucket.reducer.prepare()
        return totals

    def discard(self) -> None:
        """Forget the gradients that have arrived since the last step.

        Raises:
            RuntimeError: they are being reduced, or with ``in_place`` have been added to the residual already.
        """
        if self.under_way or (self._in_place and self.arrived):
            why = "are being reduced" if self.under_way else "are in the residual already (in_place=True)"
            raise RuntimeError(
                f"gradients must not be cleared between backward() and step(), when they {why}; call step() or "
                "synchronize() first"
            )
        self._reset()

    def _reset(self) -> None:
        """Expect the first gradient of a step."""
        self._next, self._scale = 0, None
        self.sparse.arrivals.reset()
        for bucket in self.buckets:
            bucket.reset()

    def attach(self) -> None:
        """With ``in_place``, make the next backward pass add to the residual; otherwise do nothing."""
        for bucket in self.buckets if self._in_place else ():
            bucket.attach()

    def detach(self) -> None:
        """With ``in_place``, protect the residual from whoever clears ``.grad``; otherwise do nothing."""
        for bucket in self.buckets if self._in_place else ():
            bucket.detach()

    def record(self) -> Tracer:
        """Return a tracer that records, from the next step on, when each bucket is reduced."""
        self._tracer = Tracer(self.comm, next(iter(self._home)).detach())
        return self._tracer

    def _reducer(self, shapes: Sequence[tuple[int, ...]]) -> SparseAllreduce:
        """Make the reducer of a bucket of parameters of these shapes, after the work under way."""
        whole = sum(map(int, map(np.prod, shapes))) == self._elements
        amount: dict[str, Any] = {"k": min(self._k, self._elements)} if whole else {"density": self._share}
        kind: Callable[..., SparseAllreduce] = SparseAllreduce
        if self.team is not None:
            kind = partial(ElasticAllreduce, team=self.team)
        make = partial(kind, list(shapes), comm=self.comm if self.team is None else None, **amount, **self._options)
        return in_turn(self.comm, make)

    def _arrived(self, parameter: Tensor) -> None:
        """Start what is complete now; autograd's hook, called when ``parameter.grad`` has this pass's gradient."""
        self._check_ahead(self._is_ahead)
        self._home[parameter].arrive(parameter, self._current_scale())
        while self._overlap and self._next < len(self.buckets) and self.buckets[self._next].ready:
            self.buckets[self._next].take_missing(self._current_scale())  # those that need no gradient any more
            self._start(self.buckets[self._next])

    def _start(self, bucket: Bucket, factor: float = 1.0) -> None:
        """Begin to reduce a bucket, the next one in order, times ``factor``."""
        if self._tracer is not None:
            self._tracer.begin(anew=self._next == 0)
        if not self.under_way:
            self._decide()
        self._next += 1
        self._sample(bucket)
        handle = bucket.start(density=self._density_now, check=self.check, factor=factor)
        if self._tracer is not None:
            self._tracer.watch(handle, bucket.reducer)

    def _current_scale(self) -> float:
        """Return the loss scale of the gradients under way, which the scaler changes only between steps."""
        if self._scale is None:
            self._scale = float(self._scaler.get_scale()) if self._scaler is not None else 1.0
        return self._scale


def is_distributed(optimizer: object) -> bool:
    """Return True if ``optimizer`` is one that `DistributedOptimizer` returned."""
    return isinstance(getattr(optimizer, "reduction", None), GradientReduction)
