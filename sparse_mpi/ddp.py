"""The allreduce of torch's DistributedDataParallel, made sparse: a communication hook, and the state it works with.

    model = DistributedDataParallel(net)
    model.register_comm_hook(SparseState(net.named_parameters(), density=0.01, algorithm="oktopk"), sparse_hook)

Every bucket of gradients is reduced on its own, in the background while backward goes on, and comes back as the mean
over the ranks. What a rank did not send of a parameter it remembers for that parameter, whatever bucket this is in: DDP
sorts its parameters into other buckets after the first step, and again when a resumed job begins.
"""

# no postponed annotations: DDP compares those of a hook with the types themselves

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import check, describe
from sparse_mpi.buckets.ddp import Buckets, Names
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import Handle
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.process_group import wrapped
from sparse_mpi.comm.runtime import LAUNCHERS
from sparse_mpi.feedback import Memory
from sparse_mpi.reducer.arguments import check_together, make_algorithm, make_memory, resolve_k
from sparse_mpi.sparse import SparseVector


class SparseState:
    """What `sparse_hook` remembers from step to step, on one rank. Making one is collective.

    Args:
        named_parameters: ``model.named_parameters()`` of the model that DDP wraps; their names are those in a
            checkpoint.
        density, algorithm, memory, options: as for `SparseAllreduce`, for each bucket, but no ``"auto"``.
        comm: a communicator or process group of the ranks of the model's process group, in its order. None is
            MPI.COMM_WORLD where MPI's launcher started the job, else the default process group. Duplicated.
        dense_steps: so many steps at the beginning are dense.
        check_every: assert both laws in every so many-th step, 0 for never; costs two dense allreduces.

    Raises:
        TypeError, ValueError: bad arguments, arguments that differ between ranks, or a process group that is not
            MPI.COMM_WORLD's; on every rank alike.
        RuntimeError: torch.distributed was not initialised.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        density: float | None = None,
        algorithm: str | Algorithm = "oktopk",
        comm: Any = None,
        *,
        memory: str | Memory = "residual",
        dense_steps: int = 2,
        check_every: int = 0,
        **options: Any,
    ) -> None:
        transport = as_comm(comm) if comm is not None else _default_comm()
        with same_on_all_ranks(transport) as say:
            if comm is None:
                _check_same_ranks(transport)
            self._names = _names_of(named_parameters)
            self.algorithm, kind = make_algorithm(algorithm, options), make_memory(memory, None, False)
            check_together(kind, self.algorithm)
            resolve_k(1, None, density)
            for argument, steps in (("dense_steps", dense_steps), ("check_every", check_every)):
                if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
                    raise ValueError(f"{argument} must be a whole number of steps, 0 or more, got {steps!r}")
            say(density=density, algorithm=self.algorithm, memory=kind)
            say(dense_steps=dense_steps, check_every=check_every, named_parameters=list(self._names.values()))
        self.comm: Comm = transport.duplicate()
        self.density, self.dense_steps, self.check_every = density, dense_steps, check_every
        self.steps = 0  # that were made
        shapes = {name: tuple(parameter.shape) for parameter, name in self._names.items()}
        self._buckets = Buckets(shapes, self.comm, density, self.algorithm, kind)
        self._before: set[Names] = set()  # the buckets DDP had in the last step
        self._now: list[_Arrival] = []  # those of this step, so far
        self._under_way: list[tuple[Handle[Any], torch.Tensor]] = []

    def residuals(self) -> dict[str, np.ndarray]:
        """What this rank has not sent yet of each parameter ``(n,)``, by name, in host memory; between steps."""
        return self._buckets.residuals()

    def state_dict(self) -> dict[str, Any]:
        """Everything this rank needs to go on to the same bits, between steps: numbers, strings and NumPy arrays."""
        return {"steps": self.steps} | self._buckets.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` returned, on the same rank of as many ranks, before the first step. Collective.

        DDP's buckets may be others: in the first step after this, gradients are put together as they were in the
        buckets of ``state``, and if DDP keeps to new ones, what is remembered moves there.

        Raises:
            ValueError: it is of other parameters, or was saved with other arguments; on every rank alike.
        """
        with same_on_all_ranks(self.comm) as say:
            if "steps" not in state:
                raise ValueError(f"state must have 'steps', got {sorted(state)}; load what was saved, whole")
            self._buckets.check_state(state)
            say(steps=state["steps"])
        self._buckets.load_state_dict(state)
        self.steps, self._before = state["steps"], set(self._buckets.known)

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        arrival = _Arrival(self._names_in(bucket), bucket.buffer(), _future_on(bucket.buffer().device))
        self._now.append(arrival)
        # DDP's first buckets are makeshift; later ones are believed when they come twice
        if arrival.names not in self._buckets.known and (self.steps <= 1 or arrival.names in self._before):
            self._buckets.adopt(arrival.names)
        if arrival.names in self._buckets.known:
            self._start(arrival.names, arrival.buffer)
        if bucket.is_last():
            moves = self._regroup([late for late in self._now if late.names not in self._buckets.known])
            # at the end of backward, on its thread, before DDP looks at the futures
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._finish(moves))
        return arrival.future

    def _start(self, names: Names, gradient: torch.Tensor) -> None:
        bucket = self._buckets.known[names]
        reducer = bucket.dense if self.steps < self.dense_steps else bucket.sparse
        asserting = self.check_every > 0 and self.steps % self.check_every == 0
        self._under_way.append((reducer.start(gradient, asserting), gradient))

    def _regroup(self, late: list["_Arrival"]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Reduce the gradients that came in buckets unknown so far; which views ``(n,)`` to copy where afterwards.

        They are put together as in the known buckets that did not come; if there are none for just these parameters,
        the new ones are taken as they are.
        """
        here = {arrival.names for arrival in self._now}
        absent = [names for names in self._buckets.known if names not in here]
        if sorted(sum(absent, ())) != sorted(sum((arrival.names for arrival in late), ())):
            for arrival in late:
                self._buckets.adopt(arrival.names)
                self._start(arrival.names, arrival.buffer)
            return []
        came = {name: part for arrival in late for name, part in self._buckets.parts(arrival.names, arrival.buffer)}
        moves = []
        for names in absent:
            gathered = torch.cat([came[name] for name in names])
            self._start(names, gathered)
            moves += [(part, came[name]) for name, part in self._buckets.parts(names, gathered)]
        return moves

    def _finish(self, moves: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Wait for all reductions of this step, put their means where the gradients were, and tell DDP."""
        under_way, arrivals = self._under_way, self._now
        self._under_way, self._now = [], []
        for handle, gradient in under_way:
            _write_mean(handle.wait(), self.comm.size, gradient)
        for part, place in moves:
            place.copy_(part)
        self.steps += 1
        self._before = {arrival.names for arrival in arrivals}
        for arrival in arrivals:
            arrival.future.set_result(arrival.buffer)

    def _names_in(self, bucket: GradBucket) -> Names:
        for parameter in bucket.parameters():
            if parameter not in self._names:
                raise ValueError(
                    f"named_parameters must have every parameter that DDP reduces, lacks a {describe(parameter)}; "
                    "pass named_parameters() of the very model that DDP wraps"
                )
        return tuple(self._names[parameter] for parameter in bucket.parameters())


def sparse_hook(state: SparseState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of the bucket over the ranks, sparsely reduced; in the bucket's own memory, dtype and device.

    Half precision is added in float32. Not for ``model.join()``, for parameters with sparse gradients, or for a loss
    scaler that changes its scale, in which residuals are kept: `DistributedOptimizer` takes those.

    Raises:
        ValueError: a parameter that ``state`` does not have.
        FloatingPointError, LawError, TypeError: what `SparseAllreduce.step` raises, from ``backward()``.
    """
    return state._reduce(bucket)


class _Arrival(NamedTuple):
    """A bucket of DDP in this step."""

    names: Names
    buffer: torch.Tensor  # (n,) the gradients, and then their means
    future: torch.futures.Future[torch.Tensor]


def _default_comm() -> Comm:
    """MPI's world if MPI's launcher started this process and torchrun did not, else the default process group."""
    by_mpi = any(name in os.environ for name in LAUNCHERS) and not dist.is_torchelastic_launched()
    return as_comm() if by_mpi else wrapped()


def _check_same_ranks(comm: Comm) -> None:
    """Raise unless this process has the same rank, of as many, in ``comm`` and in the default process group."""
    if not dist.is_initialized():
        raise RuntimeError("torch.distributed must be initialised first; call torch.distributed.init_process_group")
    ours, theirs = (comm.rank, comm.size), (dist.get_rank(), dist.get_world_size())
    if ours != theirs:
        raise ValueError(
            f"comm must have the ranks of the process group, got rank {ours[0]} of {ours[1]} where that has rank "
            f"{theirs[0]} of {theirs[1]}; initialise it with the rank and size of MPI.COMM_WORLD, or pass comm"
        )


def _names_of(named_parameters: Iterable[tuple[str, torch.Tensor]]) -> dict[torch.Tensor, str]:
    """The name of each parameter, if they can be reduced."""
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


def _future_on(device: torch.device) -> torch.futures.Future[torch.Tensor]:
    return torch.futures.Future(devices=None if device.type == "cpu" else [device])


def _write_mean(total: SparseVector | torch.Tensor, ranks: int, gradient: torch.Tensor) -> None:
    """``total / ranks`` in place of ``gradient`` ``(n,)``."""
    if isinstance(total, SparseVector):
        gradient.zero_().index_copy_(0, total.indices.long(), (total.values / ranks).to(gradient.dtype))
    else:
        gradient.copy_(total / ranks)
