"""Reduce a torch model's gradients during the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.fault_tolerance import Team
from sparse_mpi.monitor.step_report import StepReport, combined
from sparse_mpi.monitor.tracer import Tracer
from sparse_mpi.reduction.settings import Settings
from sparse_mpi.training.arrivals import Arrivals
from sparse_mpi.training.bucket import Bucket
from sparse_mpi.training.bucket_pass import BucketPass
from sparse_mpi.training.buckets import Buckets
from sparse_mpi.training.clip_line import ClipLine
from sparse_mpi.training.door import Door
from sparse_mpi.training.grammar import LEFT, NOT_FINITE, SKIPPED, TWICE, UNREDUCED
from sparse_mpi.training.live_ranks import LiveRanks, refuse_copy
from sparse_mpi.training.named_gradients import NamedGradients, Total, parameters_of
from sparse_mpi.training.optimizer_steps import LOGGER
from sparse_mpi.training.sparse_gradients import SparseGradients

# Attributes that `DistributedOptimizer` adds to an optimizer
ADDED = ("reduction", "rule", "synchronize", "skip_synchronize", "flush", "_step_supports_amp_scaling")


class GradientReduction(Door):
    """Reduces the gradients of parameters, from hooks that autograd calls as gradients become final.

    `synchronize`, which a step calls, reduces ``.grad`` as it is then; a missing gradient counts as zero. A bucket may
    start before, see `BucketPass`, until a gradient has changed behind its start. Residuals of frozen parameters stay.

    Making one is collective. Arguments are as for `DistributedOptimizer`, checked.

    Args:
        optimizer: steps along the gradients; its present and later parameters that need one are reduced.
        names: names, see `Buckets`; parameters without have their number in the optimizer.
        k: entries per step, or None; ``share``: fraction then.
        survival: options of `ElasticAllreduce`, with a team.
        scale: `LossScale`, where there is a loss scaler.

    Attributes:
        bucket_pass: reduces gradients, from arrival to mean.
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
        alone = most if overlap else None  # clip norm of each bucket
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
        self.sparse = SparseGradients(average, alone, settings.nonfinite)
        max_bytes = float("inf") if bucket_cap_mb is None else bucket_cap_mb * 1e6
        self.bucketing = Buckets(names, gradients, self.sparse, max_bytes, None if k is None else settings.k)
        super().__init__(gradients, optimizer, dense_steps=dense_steps, average=average, beside=self.bucketing)
        self._arrivals = Arrivals(self._arrived, passes, overlap, progress_thread_of(comm).threaded)
        self.bucket_pass = BucketPass(
            gradients,
            self.bucketing,
            self._arrivals,
            max_norm=None if overlap else most,
            scale=scale,
            average=average,
        )
        self.clip_line = ClipLine(gradients, most is not None, None if overlap else self.bucket_pass.clip)
        self._scaled = scale is not None
        self._meet()

    @property
    def buckets(self) -> list[Bucket]:
        """Return the buckets in the order of their reduction; the list stays the same object."""
        return self.bucketing.all

    def open(self) -> None:
        self._arrivals.open = True
        self._arrivals.follow(self.bucketing.parameters.values())

    def close(self) -> None:
        """Take no note of gradients: passes up to `open` are not reduced before `synchronize`."""
        self._arrivals.close()

    def divisor(self) -> float:
        return self.bucket_pass.divisor(self.buckets[0].vector) if self.buckets else 1.0

    @property
    def options(self) -> dict[str, Any]:
        options = super().options
        # None leaves k to the reducer of the bucket
        return options if self.density is not None or options["dense"] else options | {"density": self.bucketing.share}

    @property
    def under_way(self) -> bool:
        """Tell if gradients are being reduced, so that `synchronize` must be called."""
        return bool(self.bucket_pass.reductions.begun)

    @property
    def report(self) -> StepReport | None:
        return combined([*(bucket.reducer.report for bucket in self.buckets), self.sparse.report], self.skipped)

    def synchronize(self) -> list[Total]:
        """Reduce the buckets that are left, and write the results to ``.grad``. Collective.

        Without new gradients the last result is returned again.

        Returns:
            The sum over the ranks of each bucket, without a loss scale; an empty list if a gradient has overflowed.

        Raises:
            RuntimeError: a gradient was changed while it was reduced, or the last ones were not stepped along; raised
                on every rank, as a ValueError on the others.
            Exception: as `SparseAllreduce.step` does; raised on every rank, with nothing under way any more.
        """
        step = self.bucket_pass
        with step.ended():
            self._meet()  # the optimizer may have new groups, or layers that are unfrozen
            if step.totals is None:
                return self._reduce()
            # Behind passes since then some ranks may have cleared their gradients
            return self._reduce(TWICE) if self._arrivals.came and step.somewhere(step.arrived) else step.totals

    def _reduce(self, problem: str | None = None) -> list[Total]:
        totals = self.bucket_pass.reduce(self.options, problem)
        if not self.bucket_pass.overflowed:
            self.steps += 1
            return totals
        self.skipped += 1
        if not self._scaled and self.comm.rank == 0:  # a scaler looks for the largest scale by overflows
            LOGGER.warning(NOT_FINITE, self.skipped)
        return totals

    def stepped(self) -> None:
        """Take note of a step along the results: later gradients are the next step's."""
        self.bucket_pass.totals = None

    def refuse_skipping(self) -> None:
        """Raise RuntimeError on every rank if gradients wait for `synchronize`, or to be cleared.

        Collective but between `synchronize` and the next pass.
        """
        step = self.bucket_pass
        if step.totals is None or self._arrivals.came:
            left = step.left
            with step.ended():
                if step.somewhere(step.arrived or left):
                    self._reduce(LEFT if left else SKIPPED)

    def record(self) -> Tracer:
        """Return a tracer that records, from the next step on, when each bucket is reduced."""
        like = next(iter(self.bucketing.parameters.values()))  # any parameter tells the device
        tracer = self.bucket_pass.reductions.tracer = Tracer(self.comm, like.detach())
        return tracer

    def _meet(self) -> None:
        """Reduce new parameters, too, see `Buckets.add`; collective if there are any."""
        if new := self.bucketing.new(parameters_of(self.optimizer)):
            self.bucket_pass.begin_settled(self.options)
            self.bucketing.add(new)
            self._arrivals.follow(self.bucketing.parameters.values())

    def flush(self, step: bool = True) -> None:
        self.bucket_pass.wait()
        super().flush(step)

    def _fill(self) -> None:
        super()._fill()
        self.bucket_pass.overflowed, self.bucket_pass.totals = False, []  # a step goes along residuals as they are

    def detach(self) -> None:
        self.bucket_pass.wait()
        super().detach()
        self.bucket_pass.abandon()
        self.close()
        for name in ADDED:
            vars(self.optimizer).pop(name, None)

    def _refuse_flush(self) -> None:
        if self.bucket_pass.arrived or self.bucket_pass.totals is not None:
            raise RuntimeError(UNREDUCED)
        self.sparse.clear()  # tables have no residual

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        self.bucket_pass.wait()
        # Gradients of a pass before are reduced by the state that is loaded
        self.bucket_pass.withdraw()
        super().take_over(states, ranks)
        self.bucketing.rebuild()  # the states may be of other vectors

    def _arrived(self, parameter: Tensor) -> None:
        self.bucket_pass.arrive(parameter, self.options)
