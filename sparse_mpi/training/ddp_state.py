"""The hook by which torch's DistributedDataParallel reduces sparsely, and its state: see `sparse_mpi.ddp`."""

# Annotations are not postponed here: DDP compares those of a hook with the types themselves.

from collections.abc import Iterable, Set
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import as_arrays, as_tensors, check, describe
from sparse_mpi.checks import check_whole
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import Handle, in_turn, progress_thread_of
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.feedback import Feedback
from sparse_mpi.feedback.base import check_sizes, whole_state
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import make_algorithm, usual_density
from sparse_mpi.reduction.form import WHOLE, check_form, check_list, check_mapping, sealed
from sparse_mpi.reduction.report import StepReport, combined
from sparse_mpi.reduction.second_moment import SecondMoment
from sparse_mpi.reduction.settings import Settings, make_settings
from sparse_mpi.sparse import Layout
from sparse_mpi.training.optimizer_momentum import USUAL_DENSITY, momentum_rule
from sparse_mpi.training.parameters import cut_by_tensor, joined, mean_moment, write_mean
from sparse_mpi.training.sparse_gradients import RowSum, mean_of, staged, summed
from sparse_mpi.training.staleness_adam import ADAMS, TRAVELLING, move_along, second_beta, second_betas

# Reduce the buckets of DistributedDataParallel, and move residuals along when parameters change buckets.


Names = tuple[str, ...]


def names_of(named_parameters: Iterable[tuple[str, torch.Tensor]]) -> dict[torch.Tensor, str]:
    """Return the name of each parameter, or raise TypeError or ValueError if one cannot be reduced."""
    try:
        names = {parameter: name for name, parameter in named_parameters}
    except (TypeError, ValueError):
        names = {}
    if not names or not all(isinstance(x, torch.Tensor) and isinstance(name, str) for x, name in names.items()):
        raise TypeError("named_parameters must be pairs of name and tensor, and some; pass model.named_parameters()")
    for parameter, name in names.items():
        if parameter.requires_grad:
            check(parameter, f"named_parameters: {name}")
    return names


class DDPBuckets:
    """The buckets of a model, by the names of their parameters; no parameter is in two of them.

    Args:
        shapes: the shape of every parameter of the model, by name.
        settings: of every bucket, but for layout and k.
        density: the share of a bucket's entries that is sent.
        comm: the ranks.
    """

    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        settings: Settings,
        density: float,
        comm: Comm,
    ) -> None:
        self.known: dict[Names, SparseAllreduce] = {}
        self._shapes, self._comm = shapes, comm
        self._settings, self._density = settings, density
        # What error feedback remembers of parameters that are in no bucket, and the second moments of their gradients
        self._owed: dict[str, dict[str, np.ndarray]] = {}
        self._moments: dict[str, dict[str, Any]] = {}

    def adopt(self, names: Names) -> SparseAllreduce:
        """Make a bucket of the parameters ``names`` and return it. Collective.

        Other buckets that hold any of these parameters are dissolved; the new one takes over what they remember of
        its parameters.
        """
        # Dissolve: what other buckets with these parameters remember is cut by parameter, and kept
        for other in [other for other in self.known if set(other) & set(names)]:
            dissolved = self.known.pop(other)
            self._owed |= _by_name(other, dissolved)
            if dissolved.second_moment is not None:
                self._moments |= dict(zip(other, dissolved.second_moment.by_tensor(), strict=True))
        settings = self._settings.part([self._shapes[name] for name in names], self._density)

        def make() -> SparseAllreduce:
            return SparseAllreduce(settings=settings, comm=self._comm)

        reducer = self.known[names] = in_turn(self._comm, make)  # after work under way
        # Take over: what is remembered of these parameters moves into the new bucket
        owed = [self._owed.pop(name, {}) for name in names]
        if any(owed):
            reducer.feedback.load(joined(owed, reducer.layout.sizes))
        if (moment := reducer.second_moment) is not None and not self._moments.keys().isdisjoint(names):
            pairs = zip(names, moment.by_tensor(), strict=True)
            moment.load(moment.joined([self._moments.pop(name, unknown) for name, unknown in pairs]))
        return reducer

    def parts(self, names: Names, flat: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Return each of the parameters ``names`` with its view ``(n,)`` in the vector ``flat`` of them all."""
        sizes = Layout.of([self._shapes[name] for name in names]).sizes
        return list(zip(names, flat.split(sizes), strict=True))

    def residuals(self, without: Set[str] = frozenset()) -> dict[str, np.ndarray]:
        """Return what this rank has not sent yet of each parameter but some, ``(n,)`` in host memory."""
        shapes = {name: shape for name, shape in self._shapes.items() if name not in without}
        # Nothing, what was kept of parameters in no bucket, and what buckets owe: the later ones prevail
        nothing = {name: np.zeros(Layout.of([shape]).size, np.float32) for name, shape in shapes.items()}
        owed = {name: remembered.get("residual", nothing[name]) for name, remembered in self._owed.items()}
        for names, reducer in self.known.items():
            tensors = cut_by_tensor({"residual": reducer.residual}, reducer.layout.sizes)
            owed |= {name: tensor["residual"] for name, tensor in zip(names, tensors, strict=True)}
        return nothing | owed

    def adopt_rest(self) -> None:
        """Make a bucket of the parameters that are in none, if anything is remembered of them. Collective."""
        if self._owed:
            self.adopt(tuple(self._owed))

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue bit for bit: numbers, strings and NumPy arrays."""
        buckets = [{"names": list(names), "reducer": r.state_dict()} for names, r in self.known.items()]
        return {"buckets": buckets, "owed": dict(self._owed), "moments": dict(self._moments)}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise TypeError or ValueError unless ``state`` is whole, of this model's parameters; change nothing."""
        check_list(state.get("buckets"), "state['buckets']")
        check_mapping(state.get("owed"), "state['owed']")
        names = [*state["owed"]]
        for number, saved in enumerate(state["buckets"]):
            check_mapping(saved, f"state['buckets'][{number}]")
            check_list(saved.get("names"), f"state['buckets'][{number}]['names']")
            check_mapping(saved.get("reducer"), f"state['buckets'][{number}]['reducer']")
            names += saved["names"]
        for name in names:
            if name not in self._shapes or names.count(name) > 1:
                raise ValueError(f"state must have each of this model's parameters at most once, got {name!r}; {WHOLE}")
        for name, arrays in state["owed"].items():
            check_mapping(arrays, f"state['owed'][{name!r}]")
            check_sizes(arrays, arrays, Layout.of([self._shapes[name]]).size)
        moments, beta = state.get("moments", {}), self._settings.second_moment
        check_mapping(moments, "state['moments']")
        for name, moment in moments.items():
            check_mapping(moment, f"state['moments'][{name!r}]")
            SecondMoment(beta or 0.0, Layout.of([self._shapes[name]])).check_state(moment)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, in place of all buckets there are. Collective."""
        self.known.clear()
        self._owed, self._moments = dict(state["owed"]), dict(state.get("moments", {}))  # earlier versions had none
        for saved in state["buckets"]:
            self.adopt(tuple(saved["names"])).load_state_dict(saved["reducer"])


def _by_name(names: Names, reducer: SparseAllreduce) -> dict[str, dict[str, np.ndarray]]:
    """Return the arrays that ``reducer`` remembers of each of the parameters ``names``, in host memory."""
    return dict(zip(names, cut_by_tensor(whole_state(reducer.feedback), reducer.layout.sizes), strict=True))


class _Arrival(NamedTuple):
    """A bucket that DDP has handed over in this step."""

    names: Names
    buffer: torch.Tensor  # (n,) the gradients, later their means
    future: torch.futures.Future[torch.Tensor]


class SparseState:
    """The state of `sparse_hook` on one rank, kept from step to step. Making one is collective.

    Args:
        named_parameters: ``model.named_parameters()`` of the model that DDP wraps; checkpoints use these names.
        density, algorithm, feedback, options: as for `SparseAllreduce`, for each bucket, but ``"auto"`` is not
            available.
        optimizer: Adam, AdamW, NAdam or RMSprop of these parameters, to move them by second moments that travel with
            the entries, as ``momentum="second-moment"`` does in `DistributedOptimizer`. The density is .021 then, if
            none is given: a moment takes a byte an entry. Its ``step`` sets ``.grad`` to None, and takes no closure and
            no loss scaler. None: optimizers get the means as they come, of which Adam makes less than of dense ones.
        comm: a communicator or process group of the ranks of the model's process group, in its order; duplicated.
            None: all ranks of the job, see `as_comm`.
        dense_steps: the number of steps at the beginning that are dense.
        check_every: assert both laws in one step out of this many, 0 for never; costs two dense allreduces.

    Attributes:
        report: what the last step did on this rank, all buckets together, as `GradientReduction.report`; at first None.

    Raises:
        TypeError, ValueError: bad arguments, arguments that differ between ranks, or a process group that is not
            MPI.COMM_WORLD's; raised on every rank.
        RuntimeError: torch.distributed was not initialised.
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
        **options: Any,
    ) -> None:
        if comm is None and not dist.is_initialized():
            raise RuntimeError("torch.distributed must be initialised first; call torch.distributed.init_process_group")
        transport = as_comm(comm)
        with same_on_all_ranks(transport) as say:
            if comm is None:
                _check_same_ranks(transport)
            self._names = names_of(named_parameters)
            self.algorithm: Algorithm = make_algorithm(algorithm, options)  # "auto" is none
            shapes = {name: tuple(parameter.shape) for parameter, name in self._names.items()}
            share, beta = usual_density(self.algorithm) if density is None else density, None
            if optimizer is not None:
                if not isinstance(optimizer, ADAMS[TRAVELLING]):
                    raise TypeError(
                        f"optimizer must divide by a second moment, as torch's Adam, AdamW, NAdam and RMSprop do, got "
                        f"{type(optimizer).__name__}; leave it out: others step along what the hook returns"
                    )
                momentum_rule(optimizer, feedback, TRAVELLING)
                share = USUAL_DENSITY if density is None else density
                beta = second_beta(optimizer.param_groups[0])
            settings = make_settings(
                list(shapes.values()), density=share, algorithm=self.algorithm, feedback=feedback, second_moment=beta
            )
            rule = settings.feedback
            if rule.traits.previews:
                raise ValueError(
                    f"feedback must not move weights before the gradient is computed, as a hook cannot, got {rule!r}; "
                    "use feedback='residual', or DistributedOptimizer"
                )
            for argument, steps in (("dense_steps", dense_steps), ("check_every", check_every)):
                check_whole(argument, steps, 0, "steps")
            say(density=density, algorithm=self.algorithm, feedback=rule, second_moment=beta)
            say(dense_steps=dense_steps, check_every=check_every, named_parameters=list(self._names.values()))
        self.comm: Comm = transport.duplicate()
        self.density: float | None = density
        self.dense_steps: int = dense_steps
        self.check_every: int = check_every
        self.steps: int = 0  # steps made so far
        self.report: StepReport | None = None
        self._buckets = DDPBuckets(shapes, settings, share, self.comm)
        if optimizer is not None:
            optimizer.register_step_pre_hook(self._move)
            optimizer._step_supports_amp_scaling = True  # type: ignore[union-attr]  # a scaler leaves its mark
        self._before: set[Names] = set()  # the buckets that DDP had in the last step
        self._now: list[_Arrival] = []  # the buckets of this step that have arrived
        # Reductions of this step: their handles, the buffers that get the means, and the reducers
        self._under_way: list[tuple[Handle[Any], torch.Tensor, SparseAllreduce]] = []
        self._sparse: list[_Arrival] = []  # of this step, the buckets of a single sparse tensor each
        self._tables: set[str] = set()  # the names of their parameters, of which nothing is ever owed

    def residuals(self) -> dict[str, np.ndarray]:
        """Return what this rank has not sent yet of each parameter, ``(n,)`` in host memory, by name; between steps.

        Without parameters whose gradients are sparse tensors, of which everything is sent.
        """
        return self._buckets.residuals(self._tables)

    @torch.no_grad()
    def flush(self) -> None:
        """Set ``.grad`` of every parameter to the mean of all that the ranks owe, and leave residuals of 0. Collective.

        Between steps; let the optimizer take a step then, preferably without weight decay and momentum. See
        `SparseAllreduce.flush`.

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
        with same_on_all_ranks(self.comm) as say:
            state = as_arrays(state)
            check_form(state)
            check_whole("state['steps']", state.get("steps"), 0, "steps", WHOLE)
            self._buckets.check_state(state)
            say(steps=state["steps"], buckets=[saved["names"] for saved in state["buckets"]])
        self._buckets.load_state_dict(state)
        self.steps, self._before = state["steps"], set(self._buckets.known)

    def _move(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Take the step of ``optimizer`` in its place; called before each."""
        if any(argument is not None for argument in (*args[1:], *options.values())):
            raise TypeError("step must have no closure: the hook reduces gradients before it; call backward() first")
        if getattr(optimizer, "found_inf", None) is not None:
            raise TypeError(
                "step must not be taken by a GradScaler, whose scale the second moments of the hook have; train in "
                "bfloat16, or give the scaler to DistributedOptimizer"
            )
        parameters = {name: parameter for parameter, name in self._names.items()}
        moments = [(names, reducer.second_moment) for names, reducer in self._buckets.known.items()]
        seconds: dict[torch.Tensor, torch.Tensor] = {}
        for names, moment in moments:
            flat = None if moment is None else mean_moment(moment, self.comm.size, parameters[names[0]])
            for name, part in self._buckets.parts(names, flat) if flat is not None else ():
                seconds[parameters[name]] = part.view_as(parameters[name])
        move_along(optimizer, seconds)
        betas = second_betas(optimizer)
        for names, moment in moments:
            if moment is not None:  # a parameter of no group keeps its beta
                pairs = zip(names, moment.betas, strict=True)
                moment.betas = [betas.get(parameters[name], beta) for name, beta in pairs]

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begin to reduce a bucket of DDP and return the future of its mean."""
        arrival = _Arrival(self._names_in(bucket), bucket.buffer(), _future_on(bucket.buffer().device))
        if arrival.buffer.is_sparse:
            self._sparse.append(arrival)
        else:
            self._arrive(arrival)
        if bucket.is_last():
            moves = self._regroup([late for late in self._now if late.names not in self._buckets.known])
            # All gradients are here. A callback of autograd would be too late: DDP with static_graph=True waits for
            # the futures of its first step within one.
            self._finish(moves, self._start_sparse())
        return arrival.future

    def _arrive(self, arrival: _Arrival) -> None:
        """Begin to reduce a bucket that is not sparse, if it is adopted."""
        self._now.append(arrival)
        # DDP rebuilds its buckets after the first step; later ones are adopted when they come twice in a row.
        if arrival.names not in self._buckets.known and (self.steps <= 1 or arrival.names in self._before):
            self._buckets.adopt(arrival.names)
        if arrival.names in self._buckets.known:
            self._start(arrival.names, arrival.buffer)

    def _start_sparse(self) -> Handle[RowSum] | None:
        """Begin to add up the sparse tensors of this step, if there are any."""
        if not self._sparse:
            return None
        given = [staged(arrival.buffer, arrival.buffer, arrival.buffer.sparse_dim()) for arrival in self._sparse]
        self._tables.update(name for arrival in self._sparse for name in arrival.names)
        return progress_thread_of(self.comm).start(partial(summed, given, self.comm))

    def _start(self, names: Names, gradient: torch.Tensor) -> None:
        """Begin to reduce the gradient ``(n,)`` of an adopted bucket."""
        reducer = self._buckets.known[names]
        asserting = self.check_every > 0 and self.steps % self.check_every == 0
        handle = reducer.start(gradient, check=asserting, dense=self.steps < self.dense_steps)
        self._under_way.append((handle, gradient, reducer))

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

    def _finish(self, moves: list[tuple[torch.Tensor, torch.Tensor]], rows: Handle[RowSum] | None) -> None:
        """Wait for all reductions of this step, write the means over the gradients, and complete DDP's futures."""
        # Forget the step first, so that an error leaves nothing of it to the next one
        sparse, self._sparse = self._sparse, []
        under_way, arrivals = self._under_way, self._now
        self._under_way, self._now = [], []
        for handle, gradient, _ in under_way:
            write_mean(handle.wait(), self.comm.size, gradient)
        # Regrouped gradients were reduced in other memory than DDP's
        for part, place in moves:
            place.copy_(part)
        tables = rows.wait() if rows is not None else None
        self.report = combined([*(reducer.report for _, _, reducer in under_way), tables and tables.report])
        self.steps += 1
        self._before = {arrival.names for arrival in arrivals}
        # DDP takes the means from its futures: all of them are written by now
        for arrival in arrivals:
            arrival.future.set_result(arrival.buffer)
        for arrival, found in zip(sparse, tables.sums if tables is not None else (), strict=True):
            arrival.future.set_result(mean_of(found, arrival.buffer, self.comm.size))

    def _names_in(self, bucket: GradBucket) -> Names:
        """Return the names of the parameters of a bucket, or raise ValueError if it has one without a name."""
        for parameter in bucket.parameters():
            if parameter not in self._names:
                raise ValueError(
                    f"named_parameters must have every parameter that DDP reduces, lacks a {describe(parameter)}; "
                    "pass named_parameters() of the very model that DDP wraps"
                )
        return tuple(self._names[parameter] for parameter in bucket.parameters())


def sparse_hook(state: SparseState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket sparsely; its mean over the ranks comes back in the bucket's own buffer, dtype and device.

    Half precision is added up in float32. Not supported are ``model.join()``, and a loss scaler that changes its scale,
    because residuals contain the scale: use `DistributedOptimizer` there, and also where an embedding with
    ``sparse=True`` has no gradient on some rank in some step, which DDP takes for an error.

    Raises:
        ValueError: the bucket has a parameter that ``state`` does not have.
        FloatingPointError, LawError, TypeError: as `SparseAllreduce.step` does; raised by ``backward()``.
    """
    return state._reduce(bucket)


def _check_same_ranks(comm: Comm) -> None:
    """Raise unless ``comm`` and the default process group have the same size, and this process the same rank."""
    ours, theirs = (comm.rank, comm.size), (dist.get_rank(), dist.get_world_size())
    if ours != theirs:
        raise ValueError(
            f"comm must have the ranks of the process group, got rank {ours[0]} of {ours[1]} where that has rank "
            f"{theirs[0]} of {theirs[1]}; initialise it with the rank and size of MPI.COMM_WORLD, or pass comm"
        )


def _future_on(device: torch.device) -> torch.futures.Future[torch.Tensor]:
    """Return a future for a tensor on ``device``."""
    return torch.futures.Future(devices=None if device.type == "cpu" else [device])
