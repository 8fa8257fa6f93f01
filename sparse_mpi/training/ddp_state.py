"""The hook of torch's DistributedDataParallel, and its state: see `sparse_mpi.ddp`."""

# Annotations are not postponed here: DDP compares a hook's annotations with the types themselves
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.checks import check_whole
from sparse_mpi.comm import as_comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.feedback import Feedback
from sparse_mpi.monitor.step_report import StepReport
from sparse_mpi.training.ddp_pass import BackwardPass, names_of_bucket, plain_mean
from sparse_mpi.training.door import Door
from sparse_mpi.training.grammar import NOT_FINITE, StepOrder, scaler_in_use
from sparse_mpi.training.hooks import Hooks
from sparse_mpi.training.live_ranks import LiveRanks
from sparse_mpi.training.named_gradients import NamedGradients, Names, names_of
from sparse_mpi.training.optimizer_rule import ruled_settings
from sparse_mpi.training.optimizer_steps import LOGGER

if TYPE_CHECKING:  # torch's types have it there alone
    from torch._C._distributed_c10d import GradBucket
else:
    from torch.distributed import GradBucket


class SparseState(Door):
    """The state of `sparse_hook` on one rank, for the whole training. Making one is collective.

    Before the process group is initialised the ranks meet, and compare arguments, in the first step; so does a copy, in
    the default group, with the same residuals.

    Args:
        named_parameters: ``model.named_parameters()`` of the model that DDP wraps; checkpoints use these names.
        density, algorithm, feedback, options: arguments of `SparseAllreduce`, for each bucket; ``clip_norm`` and
            ``nonfinite`` are options. The default ``nonfinite="skip"`` leaves out a step in which a gradient of any
            rank has NaN or Inf: ``.grad`` is NaN, residuals stay, and a given ``optimizer`` does not step.
        optimizer: torch optimizer of these parameters, which steps by ``momentum``; of a ZeroRedundancyOptimizer pass
            ``.optim``. None: as ``momentum="local"``.
        momentum: mode of `DistributedOptimizer`. Unless it is "local" one backward pass reduces before each step.
        comm: communicator or process group with the ranks of the model's process group, in its order; duplicated. None:
            all ranks of the job, see `as_comm`.
        dense_steps: number of dense first steps.
        scaler: the ``torch.amp.GradScaler`` in use, if any. A step with an overflow on any rank leaves no trace;
            reductions wait for the last bucket.

    Raises:
        TypeError, ValueError: bad arguments, other ones on another rank, or a process group that is not
            MPI.COMM_WORLD's; raised on every rank.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        *,
        density: float | None = None,
        comm: Any = None,
        algorithm: str | Algorithm = "elect",
        feedback: str | Feedback = "residual",
        optimizer: torch.optim.Optimizer | None = None,
        momentum: str | None = None,
        dense_steps: int = 2,
        scaler: torch.amp.GradScaler | None = None,
        **options: Any,
    ) -> None:
        self._report: StepReport | None = None
        self._before: set[Names] = set()  # the buckets that DDP had in the last step
        self._pass: BackwardPass | None = None  # the one under way
        self._hooks: Hooks | None = None
        self._used: set[torch.Tensor] = set()  # parameters whose gradients have grown since the last reduction
        self._detached = False
        self._incomplete = False  # a copy, of one that had an optimizer's momentum or a scaler

        def prepare() -> None:
            options.setdefault("nonfinite", "skip")
            self._names = names_of(named_parameters)
            shapes = [tuple(parameter.shape) for parameter in self._names if parameter.numel()]
            settings, share, self._rule = ruled_settings(
                shapes or 1, optimizer, momentum, feedback, algorithm, density=density, options=options
            )
            check_whole("dense_steps", dense_steps, 0, "steps")
            self._scaler = scaler_in_use(scaler)
            parameters = {name: parameter for parameter, name in self._names.items()}
            Door.__init__(self, NamedGradients(parameters, settings, share), optimizer, dense_steps=dense_steps)

        self._given, self._met = comm, False
        if comm is None and not dist.is_initialized():
            prepare()
        else:
            self._meet(prepare)
        self._order = StepOrder(optimizer, self._rule.mode, self._scaler)
        self.lead(self._rule, self._order.stepped)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: without ranks, work under way, optimizer and scaler."""
        incomplete = self._incomplete or self._rule.mode != "local" or self._scaler is not None
        anew: dict[str, Any] = {"_given": None, "_met": False, "_scaler": None, "_before": set(), "_pass": None}
        anew |= {"_used": set(), "_hooks": None, "_order": StepOrder(None, "local"), "_incomplete": incomplete}
        anew |= {"_optimizer": None, "_steps": None}
        return vars(self) | anew

    def _meet(self, prepare: Callable[[], object] = lambda: None) -> None:
        """Have the ranks compare arguments, after ``prepare()``, unless they have; collective then."""
        if self._met:
            return
        if self._given is None and not dist.is_initialized():
            raise RuntimeError("torch.distributed must be initialised first; call torch.distributed.init_process_group")
        transport = as_comm(self._given)
        with same_on_all_ranks(transport) as say:
            ours = transport.rank, transport.size
            theirs = (dist.get_rank(), dist.get_world_size()) if self._given is None else ours
            if ours != theirs:
                raise ValueError(
                    "comm must have the ranks of the process group, got rank {} of {} where that has rank {} of {}; "
                    "initialise it with the rank and size of MPI.COMM_WORLD, or pass comm".format(*ours, *theirs)
                )
            prepare()
            if self._incomplete:
                raise RuntimeError(
                    "state must know the optimizer whose momentum it has, and the scaler, got a copy without; make "
                    "SparseState(model.named_parameters(), ...) with them, and load the copy's state_dict() into it"
                )
            gradients, settings = self.gradients, self.gradients.settings
            say(density=gradients.share, algorithm=settings.algorithm, feedback=settings.feedback)
            say(second_moment=settings.second_moment, clip_norm=settings.clip_norm, nonfinite=settings.nonfinite)
            say(dense_steps=self.dense_steps, scaled=self._scaler is not None)
            shapes = sorted((name, tuple(p.shape)) for p, name in self._names.items())
            say(momentum=self._rule.mode, named_parameters=shapes)
        gradients.ranks = LiveRanks(transport.duplicate(), None)
        if self._rule.announcement and transport.rank == 0:
            LOGGER.warning(self._rule.announcement)
        self._hooks = hooks = Hooks(self._arrived)
        for parameter in self._names:
            if parameter.requires_grad:
                hooks.add(parameter)
        self._met = True

    @property
    def report(self) -> StepReport | None:
        return None if self._report is None else self._report._replace(skipped=self.skipped)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore this rank's `state_dict`, on the same number of ranks, before the first step. Collective.

        If DDP has other buckets now, gradients of the next step are regrouped into the buckets of ``state``; if DDP
        stays with its new ones, their state moves there.

        Raises:
            ValueError: it is of other parameters or arguments; raised on every rank.
        """
        super().load_state_dict(state)

    def detach(self) -> None:
        """Have DDP reduce dense means from now on, see `Door.detach`: its hook stays."""
        super().detach()
        self._detached = True

    def _refuse_flush(self) -> None:
        if self._pass is not None:
            raise RuntimeError("gradients must not be on their way in a flush; flush between two steps")
        self._order.check_flush()

    def _fill(self) -> None:
        super()._fill()
        self._order.reduced(*self.gradients)

    def _arrived(self, parameter: torch.Tensor) -> None:
        self._used.add(parameter)

    @torch.no_grad()
    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        self._meet()
        if self._detached:
            return plain_mean(bucket.buffer(), self.comm)
        if self._pass is None or bucket.index() == 0:  # a pass that has failed leaves nothing
            self._pass = BackwardPass(
                self.gradients,
                self._order,
                before=self._before,
                used=self._used,
                **self.options,
            )
        future = self._pass.add(names_of_bucket(bucket, self._names), bucket.buffer())
        if bucket.is_last():
            # All gradients are here. A callback of autograd would be too late: DDP with static_graph=True waits for
            # the futures of its first step within one.
            done, self._pass = self._pass, None
            try:
                report = done.finish()
            finally:
                self._used.clear()
            if report is None:
                self.skipped += 1
                self._order.left_out = True
                if self._scaler is None and self.comm.rank == 0:
                    LOGGER.warning(NOT_FINITE, self.skipped)
            else:
                self._report, self._before = report, {arrival.names for arrival in done.arrivals}
                self.steps += 1
        return future


def sparse_hook(state: SparseState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket sparsely; its mean over the ranks comes back in the bucket's own buffer, dtype and device.

    Half precision is added up in float32. In ``model.join()`` a rank without inputs still sends residuals, and means
    are over all ranks. Momentum applied by ``state`` stays equal on all ranks; momentum in an optimizer, also of weight
    decay, does not.

    DDP fails where a sparse embedding has no gradient on some rank; `DistributedOptimizer` does not.

    Raises:
        ValueError: the bucket has a parameter that ``state`` does not have.
        FloatingPointError, LawError, TypeError: as `SparseAllreduce.step` does; raised by ``backward()``.
    """
    return state._reduce(bucket)
