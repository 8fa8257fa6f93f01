"""Change an optimizer to step along the gradients of all ranks: `DistributedOptimizer`, see `sparse_mpi.optim`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.checks import takes_alias
from sparse_mpi.comm import as_comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.fault_tolerance import Team
from sparse_mpi.feedback import Feedback
from sparse_mpi.reduction.arguments import can_carry, resolve_k, usual_density
from sparse_mpi.sparse import SparseVector
from sparse_mpi.training.optimizer_momentum import (
    USUAL_DENSITY,
    MomentumState,
    along_gradients,
    announcement,
    default_mode,
    momentum_rule,
    without_momentum,
)
from sparse_mpi.training.parameters import ordered
from sparse_mpi.training.reduction import SURVIVAL, GradientReduction, is_distributed
from sparse_mpi.training.staleness_adam import TRAVELLING, StalenessAwareAdam, second_beta

LOGGER = logging.getLogger("sparse_mpi")

Average: str = "average"
Sum: str = "sum"


class _Reducing:
    """What a distributed optimizer does before its own class: the class that precedes it in `_class_of`."""

    reduction: GradientReduction
    _momentum: MomentumState
    _synchronizes: bool  # `step` calls `synchronize`
    _synchronized: bool  # `synchronize` was called since the last step

    def __init__(self, optimizer: torch.optim.Optimizer, reduction: GradientReduction, momentum: MomentumState) -> None:
        # A scheduler made earlier has set an attribute `step`, which would hide the method of this class
        vars(self).update({name: value for name, value in vars(optimizer).items() if name != "step"})
        self.reduction, self._momentum = reduction, momentum
        self._synchronizes, self._synchronized = True, False
        if momentum.adam is not None:
            self._step_supports_amp_scaling = False  # as fused ones do: a GradScaler then unscales before the step

    def synchronize(self) -> list[SparseVector[Tensor] | Tensor]:
        """Finish the reduction: ``.grad`` of every parameter becomes its mean (or sum) over the ranks. Collective.

        `step` does this. Call it yourself if gradients are needed earlier, for clipping or a loss scaler, and then
        step within `skip_synchronize`.

        Returns:
            As `GradientReduction.synchronize`.
        """
        # Parameters may have been unfrozen since the last step
        self.reduction.add([p for group in self.param_groups for p in group["params"]])  # type: ignore[attr-defined]
        self._synchronized = True
        totals = self.reduction.synchronize()
        # Note where sums are sparse: late entries have had another momentum, by which Nesterov looks ahead
        if self._momentum.looks_ahead:
            buckets = zip(self.reduction.buckets, totals, strict=False)  # no totals after an overflow
            self._momentum.waited = {
                p for bucket, total in buckets if isinstance(total, SparseVector) for p in bucket.parameters
            }
        return totals

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make `step` take the gradients as they are within this context."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients unless `synchronize` has done so, and step along them.

        With a closure, gradients are reduced after each call of it, and for LBFGS, which decides by it, the loss.
        """
        momentum = self._momentum
        # Momentum that error feedback has taken over is switched off in the optimizer for this step
        taken: Any = nullcontext()
        if momentum.taken is not None:
            taken = without_momentum(self, momentum.taken, momentum.applied, momentum.looks_ahead)  # type: ignore[arg-type]
        with taken as finish:

            def reduced() -> object:
                loss = closure() if closure is not None else None
                # The optimizer may call its closure several times: each call has new gradients, which must be reduced
                self._reduce()
                self._synchronized = False
                if finish is not None:
                    finish()
                # LBFGS decides by the loss, which must be that of all ranks for them to decide alike
                return self.reduction.loss_of_all(loss) if isinstance(self, torch.optim.LBFGS) else loss

            if closure is not None:
                return self._own_step(reduced)
            reduced()
            return self._own_step()

    step.hooked = True  # type: ignore[attr-defined]  # the optimizer's own step calls the step hooks

    def flush(self) -> None:
        """Step along all that the ranks have not sent yet, once, and leave residuals of 0. Collective.

        For the end of training, or before an evaluation that matters; costs a dense allreduce. This step is without
        weight decay, and torch's SGD takes it without momentum: what is late is not pushed again.

        Raises:
            RuntimeError: gradients have arrived that are not reduced yet.
            Exception: as `SparseAllreduce.flush` does.
        """
        self.reduction.flush()
        self._synchronized = False
        with along_gradients(self):  # type: ignore[arg-type]
            self._own_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients.

        Raises:
            RuntimeError: gradients are being reduced, see `GradientReduction.discard`.
        """
        self.reduction.discard()
        self._synchronized = False
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters and reduce their gradients too. Collective."""
        super().add_param_group(param_group)  # type: ignore[misc]
        self.reduction.add(self.param_groups[-1]["params"])  # type: ignore[attr-defined]

    def _own_step(self, *closure: Callable[[], object]) -> object:
        """Take the step of the optimizer's own class, or that of what stands in for it; hooks are called in it."""
        if self._momentum.adam is not None:
            return self._staleness_aware_step(*closure)
        return super().step(*closure)  # type: ignore[misc]

    @torch.optim.Optimizer.profile_hook_step
    def _staleness_aware_step(self, *closure: Callable[[], object]) -> object:
        return self._momentum.adam.step(self, *closure)  # type: ignore[union-attr, arg-type]

    def _reduce(self) -> None:
        # Gradients that have arrived since a call of `synchronize` are not reduced yet
        if self._synchronizes and not (self._synchronized and not self.reduction.arrived):
            self.synchronize()


@takes_alias("compression", "algorithm")
def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    *,
    k: int | None = None,
    density: float | None = None,
    comm: object = None,
    algorithm: str | Algorithm = "elect",
    feedback: str | Feedback = "residual",
    clip_norm: float | None = None,
    nonfinite: str = "keep",
    momentum: str | None = None,
    backward_passes_per_step: int = 1,
    op: str = Average,
    bucket_cap_mb: float | None = 25.0,
    overlap: bool = True,
    scaler: object = None,
    team: Team | None = None,
    **options: object,
) -> Any:
    """Return ``optimizer`` changed to step along the gradients of all ranks. Collective.

    Reductions start while the backward pass still runs, from the second step on. By then it is known which gradients
    are sparse tensors, as those of ``nn.Embedding(sparse=True)``: these are added up exactly, row by row, and stay
    sparse, for optimizers that take them. ``k``, ``density``, ``algorithm`` and ``feedback`` are for the others.

    Args:
        optimizer: any torch optimizer. Its parameters and state become those of the result; use only the result from
            then on.
        named_parameters: ``model.named_parameters()``. It is checked that the optimizer has parameters of that model,
            and gradients are reduced in the model's order; the default is the optimizer's order.
        k: the number of the gradient's entries that a rank may send in a step.
        density: k as a fraction of all entries; if neither is given 0.01, and 0.0275 with elect, or 0.021 where a
            second moment travels, which makes as many bytes.
        comm: mpi4py communicator, process group or `Comm`; None: all ranks of the job, see `as_comm`. Duplicated.
        algorithm: a name in `ALGORITHMS` such as ``"topka"``, or an instance, see `sparse_allreduce`. The default of
            all that trains, elect, was as accurate as dense sums; that of bare sums is oktopk.
            ``compression`` is Horovod's name for it.
        feedback: see `SparseAllreduce`.
        momentum: who applies the optimizer's momentum. ``"local"``: the optimizer, to what arrives, also if it arrives
            late. For SGD ``"global"`` and ``"corrected"``: error feedback takes it over and applies it before the
            selection, see `GlobalMomentum` and `MomentumCorrection`. ``"matched"`` is ``"global"`` with a smaller
            momentum for sums that arrive late, 0.8 for 0.9, and below a density of 1 % lets what waits fade unless
            ``feedback`` is an instance, see `optimizer_momentum.matched` and `fading`. For Adam, AdamW, NAdam and
            RMSprop ``"second-moment"``: each rank keeps that of its own gradients, and an algorithm that can carry it
            adds it up beside the entries, for a byte each: they move their weights at once, without the first moment.
            For Adam and AdamW ``"arrival"``: an entry that arrives makes up for the steps it has waited, see
            `sparse_mpi.training.staleness_adam`. What ``param_groups`` say keeps the meaning that it has in torch. None
            takes ``"matched"``, ``"second-moment"`` or ``"arrival"`` where that is possible with optimizer, algorithm
            and ``feedback``, and says so by the logger ``sparse_mpi``.
        clip_norm: the L2 norm to clip the reduced gradient to, the mean or with ``op="sum"`` the sum; estimated and
            applied before the reduction, see `SparseAllreduce`. With ``overlap=False`` it is that of the whole
            gradient, else of each bucket by itself; ``bucket_cap_mb=None`` puts everything in one.
        nonfinite: see `SparseAllreduce`.
        **options: hyperparameters of a named algorithm, see `SparseAllreduce`.
        backward_passes_per_step: the number of backward passes whose gradients are added up before a reduction.
        op: "average" or "sum".
        bucket_cap_mb: the most gradients that are reduced together, in 10^6 bytes. None reduces everything at once,
            which selects the largest entries of all and overlaps with nothing.
        overlap: start reductions before `step`, as gradients become final. On a GPU the communicator must allow work
            in the background, as MPI does with MPI_THREAD_MULTIPLE; otherwise they start in `step`, with the same
            results.
        scaler: the ``torch.amp.GradScaler`` in use, if any. Reductions then begin in ``synchronize()``, when it is
            known that no rank's gradient has overflowed. Call that before ``scaler.step``, and the latter within
            ``skip_synchronize()``.
        team: the ranks in place of ``comm``, of which the others go on when some are lost, see
            `sparse_mpi.fault_tolerance`. Options of `ElasticAllreduce` may be given too. Every survivor takes the same
            steps.

    From then on an exception that nobody catches ends the whole job: other ranks would wait for this one forever.

    Returns:
        An optimizer of a class derived from that of ``optimizer``, with ``synchronize()``, ``skip_synchronize()``,
        ``flush()`` and the attribute ``reduction``, a `GradientReduction`.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank.
    """
    transport = as_comm(comm) if team is None else team.comm
    # The others would wait forever for a rank that an exception has ended; with a team they go on without it
    if team is None:
        transport.job.guard()
    with same_on_all_ranks(transport) as say:
        if op not in (Average, Sum):
            raise ValueError(f"op must be one of {(Average, Sum)}, got {op!r}")
        if is_distributed(optimizer):
            raise TypeError(f"optimizer must be a plain torch.optim.Optimizer, got {type(optimizer).__name__}")
        parameters = ordered(optimizer, named_parameters)
        # The share of entries that arrive in a step, by which momentum is matched to their wait
        elements = max(1, sum(p.numel() for p in parameters if p.requires_grad))
        share = resolve_k(elements, k, density, usual_density(algorithm)) / elements
        # A second moment can travel where a part of the entries does. Options of a team are not the algorithm's
        own = {name: value for name, value in options.items() if name not in SURVIVAL}
        carries = share < 1 and can_carry(algorithm, own)
        mode = default_mode(optimizer, feedback, carries) if momentum is None else momentum
        if mode == TRAVELLING and k is None and density is None:
            density = USUAL_DENSITY
        rule = momentum_rule(optimizer, feedback, mode, share)
        say(op=op, parameters=len(parameters), momentum=mode)
    if momentum is None and transport.rank == 0 and (line := announcement(optimizer, mode, rule)):
        LOGGER.warning(line)
    reduction = GradientReduction(
        parameters,
        k=k,
        density=density,
        comm=transport if team is None else comm,
        algorithm=algorithm,
        feedback=rule,
        clip_norm=clip_norm,
        nonfinite=nonfinite,
        second_moment=second_beta(optimizer.param_groups[0]) if mode == TRAVELLING else None,
        passes=backward_passes_per_step,
        average=op == Average,
        bucket_cap_mb=bucket_cap_mb,
        overlap=overlap,
        scaler=scaler,
        team=team,
        **options,
    )
    state = MomentumState.of(optimizer, mode, rule)
    if mode in ("arrival", TRAVELLING):
        state.adam = StalenessAwareAdam(reduction)
        state.adam.set_betas(optimizer)
    return _class_of(type(optimizer))(optimizer, reduction, state)  # type: ignore[arg-type]


@cache
def _class_of(kind: type) -> type:
    return type(kind.__name__, (_Reducing, kind), {})
