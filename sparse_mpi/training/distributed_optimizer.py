"""Have an optimizer of torch step along the gradients of all ranks, see `sparse_mpi.optim`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.checks import check_choice, check_switch, check_whole, takes_alias
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.feedback import Feedback
from sparse_mpi.training.bucket import largest_bucket
from sparse_mpi.training.grammar import scaler_in_use
from sparse_mpi.training.live_ranks import ranks_given
from sparse_mpi.training.named_gradients import Total, names_of, parameters_of
from sparse_mpi.training.optimizer_rule import Rule, ruled_settings
from sparse_mpi.training.reduction import GradientReduction
from sparse_mpi.training.synchronization import LossScale, Synchronization

LOGGER = logging.getLogger("sparse_mpi")
Average: str = "average"
Sum: str = "sum"


class ReducingOptimizer(Optimizer):
    """The result of `DistributedOptimizer` to type checkers; the optimizer keeps its own class.

    Attributes:
        reduction: reduces the gradients, and has the verbs of a door.
        rule: who applies momentum.
        synchronize: see `Synchronization.synchronize`; ``skip_synchronize``: see `Synchronization.skip_synchronize`.
        flush: see `Door.flush`.
    """

    reduction: GradientReduction
    rule: Rule
    synchronize: Callable[[], list[Total]]
    skip_synchronize: Callable[[], AbstractContextManager[None]]
    flush: Callable[..., None]


@takes_alias("compression", "algorithm")
def DistributedOptimizer(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    *,
    k: int | None = None,
    density: float | None = None,
    comm: object = None,
    algorithm: str | Algorithm = "elect",
    feedback: str | Feedback = "residual",
    clip_norm: float | None = None,
    nonfinite: str = "skip",
    momentum: str | None = None,
    backward_passes_per_step: int = 1,
    op: str = Average,
    bucket_cap_mb: float | str | None = "auto",
    overlap: bool = True,
    scaler: GradScaler | None = None,
    dense_steps: int = 0,
    **options: object,
) -> ReducingOptimizer:
    """Have ``optimizer`` step along the gradients of all ranks from now on, and return it: the same object. Collective.

    A step reduces ``.grad`` as it is then. From the third step on reductions start during the backward pass, if in the
    first two no gradient has changed between its pass and the step. Gradients that are sparse tensors, as from
    ``nn.Embedding(sparse=True)``, are added up exactly, row by row, and stay sparse; ``k``, ``density``, ``algorithm``
    and ``feedback`` are for the others. docs/guides/calls.md has all orders of calls.

    Args:
        optimizer: any torch optimizer; schedules, loggers and scalers go on as before.
        named_parameters: ``model.named_parameters()``, in any order: gradients are added up by name, also of frozen
            parameters and later groups. The default is the optimizer's order.
        k: number of the gradient's entries that a rank may send in a step.
        density: k as a fraction of all entries; if neither is given 0.01, and 0.0275 with elect, or 0.021 where a
            second moment travels, for the same number of bytes.
        comm: mpi4py communicator, process group or `Comm`, which is duplicated; None: all ranks of the job, see
            `as_comm`. With a `Team`, which takes options of `ElasticAllreduce` too, the others go on when ranks are
            lost, see `sparse_mpi.fault_tolerance`.
        algorithm: a name in `ALGORITHMS`, or an instance, see `sparse_allreduce`. The default for training is elect,
            see docs/explanation/accuracy.md; for bare sums it is oktopk. ``compression`` is Horovod's name.
        feedback: see `SparseAllreduce`.
        clip_norm: L2 norm to clip the reduced gradient to, the mean or with ``op="sum"`` the sum; estimated and applied
            before the reduction, see `SparseAllreduce`. With ``overlap=False`` or ``bucket_cap_mb=None`` it is the norm
            of the whole gradient, else of each bucket by itself.
        nonfinite: ``"skip"`` leaves out a step in which a gradient of any rank has NaN or Inf, on all ranks, without a
            trace in residuals, moments and weights: ``.grad`` is NaN then, `report` counts it, and rank 0 logs it.
            ``"keep"`` and ``"raise"``: see `SparseAllreduce`.
        momentum: who applies the optimizer's momentum. ``"local"``: the optimizer, to each arriving sum, however late.
            For SGD ``"global"`` and ``"corrected"``: error feedback, before the selection, see `GlobalMomentum` and
            `MomentumCorrection`; ``"matched"`` is ``"global"`` with less for late sums, 0.8 for 0.9, and below a
            density of 1 % lets residuals fade unless ``feedback`` is an instance, see `optimizer_rule`. For Adam,
            AdamW, NAdam and RMSprop ``"second-moment"``: ranks vote in units of the second moment of their own
            gradients, which travels with the entries, for a byte each, and is remembered for at least 1,000 steps, see
            `adam_steps`; take ``clip_norm=1`` with it. For Adam and AdamW ``"arrival"``: an entry that arrives makes up
            for the steps it has waited. None takes the best mode that optimizer, algorithm and ``feedback`` allow, and
            logs it (logger ``sparse_mpi``).
        backward_passes_per_step: number of backward passes to add up before a reduction may start early; a step reduces
            the gradients of all passes before it.
        op: "average" or "sum".
        bucket_cap_mb: most gradients reduced together, in 10^6 bytes. ``"auto"`` is 25 in host memory. On a GPU, where
            a reduction costs the host the same whatever its length, it is the larger of 250 and a quarter of the model.
            None reduces everything at once, which selects the largest entries of all and overlaps with nothing.
        overlap: start reductions before a step, as gradients become final. On a GPU this needs a communicator with
            background work, as of MPI with MPI_THREAD_MULTIPLE; else they start in the step, with the same results.
        scaler: the ``torch.amp.GradScaler`` in use, if any. Reductions then begin in the step, or ``synchronize()``,
            without its scale, and all ranks skip a step in which any rank's gradients overflow.
        dense_steps: number of dense first steps.
        **options: hyperparameters of a named algorithm, see `SparseAllreduce`.

    From then on an uncaught exception ends the whole job: other ranks would wait for this one forever.

    Returns:
        ``optimizer``, with ``synchronize()``, ``skip_synchronize()``, ``flush()`` and the attributes ``reduction``, a
        `GradientReduction`, and ``rule``, its `Rule`. A copy or pickle is a plain optimizer.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank.
    """
    transport, team, survival = ranks_given(comm, options)
    with same_on_all_ranks(transport) as say:
        names = _names(optimizer, named_parameters)
        own = set(parameters_of(optimizer))
        trained = {name: p for p, name in names.items() if p in own and p.requires_grad}
        if not trained:
            raise ValueError("parameters must have one that needs a gradient, got none; is the model frozen?")
        most = largest_bucket(bucket_cap_mb, trained.values())
        check_whole("backward_passes_per_step", backward_passes_per_step, 1)
        check_switch("overlap", overlap)
        check_whole("dense_steps", dense_steps, 0, "steps")
        check_choice("op", op, (Average, Sum))
        scaler = scaler_in_use(scaler)
        settings, share, rule = ruled_settings(
            # A share is that of later parameters too, so that a rule stays when they come
            sum(p.numel() for p in (names if k is None else trained.values())) or 1,
            optimizer,
            momentum,
            feedback,
            algorithm,
            density=density,
            k=k,
            whole=True,
            options=options,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
        )
        if team is not None and clip_norm is not None and op == Sum:
            raise ValueError(f"clip_norm must be None where ranks may be lost and op is 'sum', got {clip_norm}")
        say(**settings.statement, bucket_cap_mb=bucket_cap_mb, overlap=overlap, passes=backward_passes_per_step, op=op)
        say(dense_steps=dense_steps)
        shapes = sorted((name, tuple(p.shape)) for name, p in trained.items())
        say(scaled=scaler is not None, momentum=rule.mode, parameters=shapes)
    if most is not None and bucket_cap_mb == "auto":  # more on a GPU; only some ranks may have parameters there
        most = float(transport.allreduce(np.array([most]), "max", control=True)[0])
    if rule.announcement and transport.rank == 0:
        LOGGER.warning(rule.announcement)
    scale = LossScale(optimizer, scaler)
    reduction = GradientReduction(
        optimizer,
        names,
        settings,
        comm=transport,
        team=team,
        k=k,
        share=share,
        survival=survival,
        passes=backward_passes_per_step,
        average=op == Average,
        bucket_cap_mb=most,
        overlap=overlap,
        scale=None if scaler is None else scale,
        dense_steps=dense_steps,
    )
    synchronization = Synchronization(optimizer, reduction, scale)
    reduction.lead(rule, synchronization.before_step)
    vars(optimizer).update(
        reduction=reduction,
        rule=rule,
        synchronize=synchronization.synchronize,
        skip_synchronize=synchronization.skip_synchronize,
        flush=reduction.flush,
    )
    return cast(ReducingOptimizer, optimizer)


def is_distributed(optimizer: object) -> bool:
    return isinstance(getattr(optimizer, "reduction", None), GradientReduction)


def _names(optimizer: object, named_parameters: Any) -> dict[Tensor, str]:
    """Return the names of all given parameters, for life; without any, numbers."""
    if not isinstance(optimizer, Optimizer) or is_distributed(optimizer):
        raise TypeError(f"optimizer must be a plain torch.optim.Optimizer, got {type(optimizer).__name__}")
    own = parameters_of(optimizer)
    if named_parameters is None:
        return names_of((f"parameter {number}", p) for number, p in enumerate(own))
    names = names_of(named_parameters)
    if lacking := len(set(own) - names.keys()):
        raise ValueError(
            f"named_parameters must have all {len(set(own))} parameters of the optimizer, lacks {lacking} of them; "
            "pass model.named_parameters() of the whole model, or leave it out"
        )
    return names
