"""The hook by which torch's DistributedDataParallel reduces sparsely, and its state: see `sparse_mpi.ddp`."""

# Annotations are not postponed here: DDP compares those of a hook with the types themselves.

from collections.abc import Callable, Iterable
from functools import partial
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import as_arrays, as_tensors, describe
from sparse_mpi.checks import check_whole
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import Handle, in_turn, progress_thread_of
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.feedback import Feedback
from sparse_mpi.monitor.step_report import StepReport, combined
from sparse_mpi.reduction.form import WHOLE, check_form, sealed
from sparse_mpi.sparse import SparseVector
from sparse_mpi.training.hook_optimizer import HookOptimizer, hook_settings
from sparse_mpi.training.named_reducers import NamedReducers, Names, names_of
from sparse_mpi.training.parameters import write_mean
from sparse_mpi.training.sparse_gradients import RowSum, mean_of, staged, summed


class _Arrival(NamedTuple):
    names: Names
    buffer: torch.Tensor  # (n,) the gradients, later their means
    future: torch.futures.Future[torch.Tensor]


class SparseState:
    """The state of `sparse_hook` on one rank, kept from step to step. Making one is collective.

    Made before the process group is initialised, it finds mistakes of this rank alone; the ranks meet, and compare
    arguments, in the first step.

    Args:
        named_parameters: ``model.named_parameters()`` of the model that DDP wraps; checkpoints use these names.
        density, algorithm, feedback, options: as for `SparseAllreduce`, for each bucket.
        optimizer: of these parameters, to take its momentum over as `DistributedOptimizer` does by default: SGD's
            enters before the selection, and Adam, AdamW, NAdam and RMSprop move weights by second moments that travel
            with the entries. The density is .021 then, if none is given: a moment takes a byte an entry. Their
            ``step`` sets ``.grad`` to None. Of a ZeroRedundancyOptimizer pass ``.optim``. None: optimizers get the
            means as they come, of which Adam makes less than of dense ones.
        comm: a communicator or process group of the ranks of the model's process group, in its order; duplicated.
            None: all ranks of the job, see `as_comm`.
        dense_steps: the number of steps at the beginning that are dense.
        check_every: assert both laws in one step out of this many, 0 for never; costs two dense allreduces.
        scaler: the ``torch.amp.GradScaler`` in use, if any. Residuals are kept without its scale, and a step in which a
            gradient of any rank overflows leaves no trace; reductions begin when the last bucket is there.

    Attributes:
        report: what the last step did on this rank, all buckets together, a `StepReport`; None before the first step.

    Raises:
        TypeError, ValueError: bad arguments, arguments that differ between ranks, or a process group that is not
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
        dense_steps: int = 2,
        check_every: int = 0,
        scaler: torch.amp.GradScaler | None = None,
        **options: Any,
    ) -> None:
        self.density: float | None = density
        self.dense_steps: int = dense_steps
        self.check_every: int = check_every
        self.steps: int = 0  # steps made so far
        self.report: StepReport | None = None
        self._scaler: torch.amp.GradScaler | None = None  # where one is in use
        self._stepping: HookOptimizer | None = None
        self._before: set[Names] = set()  # the buckets that DDP had in the last step
        self._now: list[_Arrival] = []  # the buckets of this step that have arrived
        # Reductions of this step: their handles, the buffers that get the means, and the names of their parameters
        self._under_way: list[tuple[Handle[Any], torch.Tensor, Names]] = []
        self._sparse: list[_Arrival] = []  # of this step, the buckets of a single sparse tensor each
        self._tables: set[str] = set()  # the names of their parameters, of which nothing is ever owed

        def prepare() -> None:
            self._names = names_of(named_parameters)
            shapes = {name: tuple(parameter.shape) for parameter, name in self._names.items()}
            settings, share, self._mode = hook_settings(
                list(shapes.values()),
                density=density,
                algorithm=algorithm,
                feedback=feedback,
                optimizer=optimizer,
                options=options,
            )
            for argument, steps in (("dense_steps", dense_steps), ("check_every", check_every)):
                check_whole(argument, steps, 0, "steps")
            if not isinstance(scaler, (torch.amp.GradScaler, NoneType)):
                raise TypeError(f"scaler must be a torch.amp.GradScaler or None, got {describe(scaler)}")
            if scaler is not None and scaler.is_enabled():
                self._scaler = scaler
            self._buckets = NamedReducers(shapes, settings, share)

        self._given = comm
        self._late = comm is None and not dist.is_initialized()  # the ranks have yet to meet
        if self._late:
            prepare()
        else:
            self._meet(prepare)
        if optimizer is not None:
            scaled = self._scaler is not None
            self._stepping = HookOptimizer(optimizer, self._mode, self._names, self._buckets, scaled=scaled)

    @property
    def comm(self) -> Comm:
        """Return the ranks that reduce; RuntimeError as long as they have not met."""
        return self._buckets.comm

    @property
    def algorithm(self) -> Algorithm | None:
        """Return the algorithm of sparse steps."""
        return self._buckets.settings.algorithm

    def _meet(self, prepare: Callable[[], object] = lambda: None) -> None:
        """Have the ranks compare their arguments, after ``prepare()``, and reduce from now on. Collective."""
        if self._given is None and not dist.is_initialized():
            raise RuntimeError("torch.distributed must be initialised first; call torch.distributed.init_process_group")
        transport = as_comm(self._given)
        with same_on_all_ranks(transport) as say:
            if self._given is None:
                _check_same_ranks(transport)
            prepare()
            settings, scaled = self._buckets.settings, self._scaler is not None
            say(density=self._buckets.density, algorithm=settings.algorithm, feedback=settings.feedback)
            say(second_moment=settings.second_moment, dense_steps=self.dense_steps, check_every=self.check_every)
            say(momentum=self._mode, scaled=scaled, named_parameters=list(self._names.values()))
        self._buckets.connect(transport.duplicate())
        self._late = False

    def residuals(self) -> dict[str, np.ndarray]:
        """Return what this rank has not sent yet of each parameter, ``(n,)`` in host memory, by name; between steps.

        Without parameters whose gradients are sparse tensors, of which everything is sent.
        """
        return self._buckets.residuals(self._tables)

    @torch.no_grad()
    def flush(self) -> None:
        """Set ``.grad`` of every parameter to the mean of all that the ranks owe, and leave residuals of 0. Collective.

        Between steps; let the optimizer take a step then. One that was given to this takes it without weight decay and
        momentum, which is best for others too. See `SparseAllreduce.flush`.

        Raises:
            RuntimeError: gradients are being reduced.
        """
        if self._now or self._sparse:
            raise RuntimeError("gradients must not be on their way in a flush; flush between two steps")
        # Parameters in no bucket owe something too
        self._buckets.adopt_rest()
        parameters = {name: parameter for parameter, name in self._names.items()}
        # Tables owe nothing, and shall not be moved by an old gradient
        for name in self._tables:
            parameters[name].grad = None
        for names, reducer in self._buckets.known.items():
            total = reducer.flush(like=parameters[names[0]])
            for name, part in self._buckets.parts(names, total):
                parameter = parameters[name]
                # .grad may be a view of DDP's own bucket: write into it, and do not replace it
                mean = (part / self.comm.size).view(parameter.shape).to(parameter)
                parameter.grad = mean if parameter.grad is None else parameter.grad.copy_(mean)
        if self._stepping is not None:
            self._stepping.flushed = True

    def state_dict(self) -> dict[str, Any]:
        """Return all that this rank needs to continue bit for bit: plain values and tensors; between steps.

        `torch.save` writes it, and `torch.load` reads it.
        """
        return dict(as_tensors(sealed({"steps": self.steps} | self._buckets.state_dict())))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on the same rank of as many ranks, before the first step. Collective.

        DDP may have other buckets now: in the first step after this, gradients are regrouped into the buckets of
        ``state``; if DDP keeps its new buckets, what is remembered moves there.

        Raises:
            ValueError: it is of other parameters, or was saved with other arguments; raised on every rank.
        """
        if self._late:
            self._meet()
        with same_on_all_ranks(self.comm) as say:
            state = as_arrays(state)
            check_form(state)
            check_whole("state['steps']", state.get("steps"), 0, "steps", WHOLE)
            self._buckets.check_state(state)
            say(steps=state["steps"], buckets=[saved["names"] for saved in state["buckets"]])
        self._buckets.load_state_dict(state)
        self.steps, self._before = state["steps"], set(self._buckets.known)

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begin to reduce a bucket of DDP and return the future of its mean."""
        if self._late:
            self._meet()
        if bucket.index() == 0:  # of a step that has failed nothing is left
            self._now, self._sparse, self._under_way = [], [], []
        arrival = _Arrival(self._names_in(bucket), bucket.buffer(), _future_on(bucket.buffer().device))
        if arrival.buffer.is_sparse:
            self._sparse.append(arrival)
        else:
            self._now.append(arrival)
            if self._scaler is None:  # else nothing may begin before all ranks know that no gradient has overflowed
                self._begin(arrival)
        if bucket.is_last():
            # All gradients are here. A callback of autograd would be too late: DDP with static_graph=True waits for
            # the futures of its first step within one.
            self._complete()
        return arrival.future

    def _complete(self) -> None:
        """Reduce what is left of this step, whose gradients are all here, and complete DDP's futures."""
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        if self._scaler is not None:
            buffers = [arrival.buffer for arrival in self._now]
            if self._overflowed([*buffers, *(arrival.buffer._values() for arrival in self._sparse)]):
                return self._skip()
            # Residuals, and rows of tables, are without the scale
            for buffer in [*buffers, *(arrival.buffer for arrival in self._sparse)]:
                buffer.div_(scale)
            for arrival in self._now:
                self._begin(arrival)
        moves = self._regroup([late for late in self._now if late.names not in self._buckets.known])
        self._finish(moves, self._start_sparse(), scale)

    def _overflowed(self, buffers: list[torch.Tensor]) -> bool:
        found = np.array([not all(bool(buffer.isfinite().all()) for buffer in buffers)], np.uint8)
        return bool(in_turn(self.comm, lambda: self.comm.allreduce(found, "max", control=True))[0])

    def _skip(self) -> None:
        """Complete DDP's futures with NaN, by which a loss scaler skips the step; residuals stay as they are."""
        for arrival in [*self._now, *self._sparse]:
            (arrival.buffer._values() if arrival.buffer.is_sparse else arrival.buffer).fill_(torch.nan)
            arrival.future.set_result(arrival.buffer)
        self._now, self._sparse = [], []

    def _begin(self, arrival: _Arrival) -> None:
        # DDP rebuilds its buckets after the first step; later ones are adopted when they come twice in a row.
        if arrival.names not in self._buckets.known and (self.steps <= 1 or arrival.names in self._before):
            self._buckets.adopt(arrival.names)
        if arrival.names in self._buckets.known:
            self._start(arrival.names, arrival.buffer)

    def _start_sparse(self) -> Handle[RowSum] | None:
        if not self._sparse:
            return None
        given = [staged(arrival.buffer, arrival.buffer, arrival.buffer.sparse_dim()) for arrival in self._sparse]
        self._tables.update(name for arrival in self._sparse for name in arrival.names)
        return progress_thread_of(self.comm).start(partial(summed, given, self.comm))

    def _start(self, names: Names, gradient: torch.Tensor) -> None:
        reducer = self._buckets.known[names]
        asserting = self.check_every > 0 and self.steps % self.check_every == 0
        handle = reducer.start(gradient, check=asserting, dense=self.steps < self.dense_steps)
        self._under_way.append((handle, gradient, names))

    def _regroup(self, late: list[_Arrival]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Reduce the gradients that arrived in buckets not adopted yet.

        They are regrouped into the adopted buckets that did not arrive. If these do not have exactly the same
        parameters, the new buckets are adopted as they are.

        Returns:
            Pairs of views ``(n,)``: the second is to be overwritten with the first after the reduction.
        """
        # Do the adopted buckets that did not arrive have the very parameters that arrived in other buckets?
        here = {arrival.names for arrival in self._now}
        absent = [names for names in self._buckets.known if names not in here]
        if sorted(sum(absent, ())) != sorted(sum((arrival.names for arrival in late), ())):
            # No: adopt DDP's new buckets, to which what is remembered moves
            for arrival in late:
                self._buckets.adopt(arrival.names)
                self._start(arrival.names, arrival.buffer)
            return []
        # Yes: put their gradients together from the pieces; their means go back the same way
        arrived = {name: part for arrival in late for name, part in self._buckets.parts(arrival.names, arrival.buffer)}
        moves = []
        for names in absent:
            gathered = torch.cat([arrived[name] for name in names])
            self._start(names, gathered)
            moves += [(part, arrived[name]) for name, part in self._buckets.parts(names, gathered)]
        return moves

    def _finish(
        self, moves: list[tuple[torch.Tensor, torch.Tensor]], rows: Handle[RowSum] | None, scale: float
    ) -> None:
        # Forget the step first, so that an error leaves nothing of it
        sparse, under_way, arrivals = self._sparse, self._under_way, self._now
        self._sparse, self._under_way, self._now = [], [], []
        waited: set[str] = set()  # the names of parameters whose sums are sparse
        for handle, gradient, names in under_way:
            total = handle.wait()
            write_mean(total, self.comm.size / scale, gradient)
            waited |= set(names) if isinstance(total, SparseVector) else set()
        if self._stepping is not None:
            self._stepping.momentum.waited = {parameter for parameter, name in self._names.items() if name in waited}
            self._stepping.flushed = False
        # Regrouped gradients were reduced in other memory than DDP's
        for part, place in moves:
            place.copy_(part)
        tables = rows.wait() if rows is not None else None
        reports = [self._buckets.known[names].report for _, _, names in under_way]
        self.report = combined([*reports, tables and tables.report])
        self.steps += 1
        self._before = {arrival.names for arrival in arrivals}
        # DDP takes the means from its futures: all of them are written by now
        for arrival in arrivals:
            arrival.future.set_result(arrival.buffer)
        for arrival, found in zip(sparse, tables.sums if tables is not None else (), strict=True):
            arrival.future.set_result(mean_of(found, arrival.buffer, self.comm.size / scale))

    def _names_in(self, bucket: GradBucket) -> Names:
        for parameter in bucket.parameters():
            if parameter not in self._names:
                raise ValueError(
                    f"named_parameters must have every parameter that DDP reduces, lacks a {describe(parameter)}; "
                    "pass named_parameters() of the very model that DDP wraps"
                )
        return tuple(self._names[parameter] for parameter in bucket.parameters())


def sparse_hook(state: SparseState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket sparsely; its mean over the ranks comes back in the bucket's own buffer, dtype and device.

    Half precision is added up in float32. Give a loss scaler to ``state``.

    In ``model.join()`` a rank that has run out of inputs goes on to send what it owes. Means are over all ranks then,
    too, as DDP leaves ``divide_by_initial_world_size`` to its hook. Momentum that ``state`` has taken over stays the
    same on all ranks; what an optimizer keeps does not, as ever, also for Nesterov's and the momentum of weight decay.

    `DistributedOptimizer` can do what DDP cannot: an embedding with ``sparse=True`` that has no gradient on some rank
    in some step is an error of DDP, and with ``find_unused_parameters=True`` it drops what arrives late of a parameter
    that no rank has used in the step.

    Raises:
        ValueError: the bucket has a parameter that ``state`` does not have.
        FloatingPointError, LawError, TypeError: as `SparseAllreduce.step` does; raised by ``backward()``.
    """
    return state._reduce(bucket)


def _check_same_ranks(comm: Comm) -> None:
    ours, theirs = (comm.rank, comm.size), (dist.get_rank(), dist.get_world_size())
    if ours != theirs:
        raise ValueError(
            f"comm must have the ranks of the process group, got rank {ours[0]} of {ours[1]} where that has rank "
            f"{theirs[0]} of {theirs[1]}; initialise it with the rank and size of MPI.COMM_WORLD, or pass comm"
        )


def _future_on(device: torch.device) -> torch.futures.Future[torch.Tensor]:
    return torch.futures.Future(devices=None if device.type == "cpu" else [device])
