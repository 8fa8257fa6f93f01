"""The sum over the replicas of a model that FSDP2 shards, made sparse: `ShardedReduction`, see `sparse_mpi.fsdp`."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import check
from sparse_mpi.checks import check_choice, check_whole
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.feedback import Feedback
from sparse_mpi.monitor.step_report import StepReport, combined
from sparse_mpi.sparse import SparseVector
from sparse_mpi.training.fsdp_snapshot import ShardedSnapshot
from sparse_mpi.training.fsdp_units import Unit, parameters_of, place_of, sharded_like, units_of
from sparse_mpi.training.hook_optimizer import HookOptimizer, hook_settings
from sparse_mpi.training.named_reducers import NamedReducers
from sparse_mpi.training.parameters import write_mean

_ATTACHED: WeakSet[torch.nn.Module] = WeakSet()  # modules whose hook is ours


class ShardedReduction:
    """Reduces the shards of each unit over the replicas, from the hooks that FSDP2 calls. Making one is collective.

    Args: see `sparse_mpi.fsdp.attach`.

    Attributes:
        comm: this rank's replicas: the processes that hold the same shard.
        units: that have elements in this shard.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        replicas: object,
        *,
        density: float | None,
        algorithm: str | Algorithm,
        feedback: str | Feedback,
        optimizer: torch.optim.Optimizer | None,
        op: str,
        dense_steps: int,
        check_every: int,
        options: dict[str, Any],
    ) -> None:
        transport = as_comm(replicas)
        place = same_on_all_ranks(transport, 3)
        with place:
            units = units_of(model)
            if any(unit.module in _ATTACHED for unit in units):
                raise ValueError("model must be attached once, got one that is; call its detach() first")
            _check_optimizer(optimizer)
            shard, shards = place_of(units)
            place.words[:] = shard, len(shards), shards[0]
        # Rows of a mesh: replicas hold the same shard of models of their own
        if len({tuple(row) for row in place.rows[:, :2].tolist()}) > 1 or len(set(place.rows[:, 2])) < transport.size:
            held = ", ".join(f"{shard} of {count} from {first} on" for shard, count, first in place.rows.tolist())
            raise ValueError(
                f"replicas must hold the same shard of models of their own, got shards and their processes {held}; "
                'give the other dimension of the mesh, mesh["replicate"]'
            )
        self.parameters = dict(parameters_of(units))
        shapes = {name: tuple(parameter.to_local().shape) for name, parameter in self.parameters.items()}
        with same_on_all_ranks(transport) as say:
            check_choice("op", op, ("average", "sum"))
            for argument, steps in (("dense_steps", dense_steps), ("check_every", check_every)):
                check_whole(argument, steps, 0, "steps")
            if options.get("clip_norm") is not None:
                raise ValueError(
                    "clip_norm must be None where a rank knows its shard alone; call "
                    "torch.nn.utils.clip_grad_norm_(model.parameters(), ...) before the step"
                )
            for name, parameter in self.parameters.items():
                check(parameter.to_local(), f"model: {name}")
            settings = hook_settings(
                list(shapes.values()) or 1,
                density=density,
                algorithm=algorithm,
                feedback=feedback,
                optimizer=optimizer,
                options=options,
            )
            say(density=settings.density, op=op, dense_steps=dense_steps, check_every=check_every)
            say(**settings.reducers.statement, units=[unit.names for unit in units])
        self.comm: Comm = transport.duplicate()
        self.units: list[Unit] = [unit for unit in units if unit.parameters]
        self.dense_steps, self.check_every = dense_steps, check_every
        self._op, self._divisor = op, self.comm.size if op == "average" else 1
        self._steps = dict.fromkeys((unit.names for unit in self.units), 0)
        self._reducers = NamedReducers(shapes, settings.reducers, settings.density, self.comm)
        self._snapshot = ShardedSnapshot(self.parameters, self._reducers, self.comm, shard, len(shards))
        self._stepping: HookOptimizer | None = None
        if optimizer is not None:
            by_parameter = {parameter: name for name, parameter in self.parameters.items()}
            self._stepping = HookOptimizer(optimizer, settings.mode, by_parameter, self._reducers, self._divisor)
        for unit in self.units:
            self._reducers.adopt(unit.names)
        self._attached = units
        for unit in units:
            unit.module.set_all_reduce_hook(lambda shard, unit=unit: self._reduce(unit, shard))
            _ATTACHED.add(unit.module)

    @property
    def report(self) -> StepReport | None:
        """Return what the last backward pass did on this rank, all units together; None before the first."""
        return combined(reducer.report for reducer in self._reducers.known.values())

    def residuals(self) -> dict[str, np.ndarray]:
        """Return what this rank has not sent yet of its shard of each parameter, ``(n,)`` in host memory, by name."""
        return self._reducers.residuals()

    def detach(self) -> None:
        """Leave the sum over the replicas to somebody else; what has not been sent stays here."""
        for unit in self._attached:
            unit.module.set_all_reduce_hook(None)
            _ATTACHED.discard(unit.module)

    @torch.no_grad()
    def flush(self) -> None:
        """Set ``.grad`` of all parameters to the mean of what the replicas owe, and leave residuals of 0. Collective.

        Between steps; let the optimizer take a step then. One that was given to this takes it without weight decay and
        momentum, which is best for others too. See `SparseAllreduce.flush`.
        """
        for names, reducer in self._reducers.known.items():
            total = reducer.flush(like=self.parameters[names[0]].to_local())
            for name, part in self._reducers.parts(names, total):
                parameter = self.parameters[name]
                shard = (part / self._divisor).view(self._reducers.shapes[name]).to(parameter.dtype)
                parameter.grad = sharded_like(parameter, shard)
        if self._stepping is not None:
            self._stepping.flushed = True

    def save(self, folder: Any) -> None:
        """Write all that a resumed run needs to ``folder``, by torch.distributed.checkpoint. Collective over the job.

        Between steps. Residuals are written as DTensors of their parameters, one set for each replica.
        """
        self._snapshot.save(folder, max(self._steps.values(), default=0))

    def load(self, folder: Any) -> None:
        """Restore what `save` wrote, on any number of replicas and shards, before the first step. Collective.

        On as many replicas and shards training goes on bit for bit. On others residuals are dealt out anew, so that the
        replicas together owe what the former ones did; the states of algorithms and selectors begin afresh.

        Raises:
            ValueError: it was saved with another algorithm or feedback, or of other parameters.
        """
        self._steps = dict.fromkeys(self._steps, self._snapshot.load(folder, self._op == "average"))

    def _reduce(self, unit: Unit, shard: Tensor) -> None:
        """Overwrite ``shard``, the padded vector of a unit's gradients, with its mean or sum over the replicas."""
        if len(shard) != unit.length:
            raise ValueError(
                f"a backward pass must bring gradients of all parameters of a unit, {unit.length} numbers for "
                f"{', '.join(unit.names)}, got {len(shard)}; call model.set_reduce_scatter_unused_params(True) where "
                "some are not used, and attach again after freezing or unfreezing"
            )
        if not unit.parameters:  # this process holds padding alone
            return
        steps = self._steps[unit.names]
        flat, reducer = unit.without_padding(shard), self._reducers.known[unit.names]
        asserting = self.check_every > 0 and steps % self.check_every == 0
        total = reducer.step(flat, check=asserting, dense=steps < self.dense_steps)
        unit.write(write_mean(total, self._divisor, flat), shard)
        self._steps[unit.names] = steps + 1
        if self._stepping is not None:
            late = set(unit.parameters) if isinstance(total, SparseVector) else set()
            momentum = self._stepping.momentum
            momentum.waited = momentum.waited - set(unit.parameters) | late
            self._stepping.flushed = False


def _check_optimizer(optimizer: torch.optim.Optimizer | None) -> None:
    for group in () if optimizer is None else optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and not hasattr(parameter, "device_mesh"):
                raise ValueError(
                    f"optimizer must have the parameters of the sharded model, got one of shape "
                    f"{tuple(parameter.shape)} that is not; make it after fully_shard"
                )
