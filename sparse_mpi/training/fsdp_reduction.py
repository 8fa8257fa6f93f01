"""The sparse sum over the replicas of a model that FSDP2 shards, see `sparse_mpi.fsdp`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.comm import Comm
from sparse_mpi.monitor.step_report import StepReport, combined
from sparse_mpi.training.fsdp_snapshot import ShardedSnapshot
from sparse_mpi.training.fsdp_units import Unit, UnitVector, joined, sharded_like
from sparse_mpi.training.grammar import StepOrder
from sparse_mpi.training.live_ranks import refuse_copy
from sparse_mpi.training.named_gradients import NamedGradients, finished
from sparse_mpi.training.optimizer_rule import Rule
from sparse_mpi.training.optimizer_steps import OptimizerSteps
from sparse_mpi.training.parameters import local

JOINED_BYTES = 250e6  # the most gradients on a GPU that are one vector
ATTACHED: WeakSet[torch.nn.Module] = WeakSet()  # modules whose hook is ours


class ShardedReduction:
    """Reduces the shards of each unit over the replicas behind the backward pass, from FSDP2's hooks.

    `sparse_mpi.fsdp.attach` makes it. Vectors of units are reduced in one order, the model's reversed, so that replicas
    may go through units in different orders, or leave some out. Where the transport cannot work in the background, the
    backward pass waits.

    Attributes:
        comm: this rank's replicas: the processes that hold the same shard.
        units: that have elements in this shard.
        parameters: by name.
        dense_steps: the number of dense steps at the beginning.
        check_every: assert both laws in one step out of this many, 0 for never; costs two dense allreduces. Must be
            equal on all replicas.
    """

    __reduce_ex__ = refuse_copy

    def __init__(
        self,
        units: list[Unit],
        gradients: NamedGradients,
        rule: Rule,
        optimizer: torch.optim.Optimizer | None,
        *,
        average: bool,
        dense_steps: int,
        joined_bytes: float | None = None,
    ) -> None:
        self.comm: Comm = gradients.comm
        self.parameters: dict[str, Any] = gradients.parameters
        self.units: list[Unit] = [unit for unit in units if unit.parameters]
        self.dense_steps, self.check_every = dense_steps, 0
        self._average, self._divisor = average, self.comm.size if average else 1
        self._gradients, self._steps = gradients, 0
        if joined_bytes is None:  # on a CPU there is room for overlap, and a launch costs nothing
            on_gpu = any(unit.device.type != "cpu" for unit in self.units)
            size = sum(unit.elements * unit.dtype.itemsize for unit in self.units)
            joined_bytes = min(JOINED_BYTES, size / 4) if on_gpu else 0
        # Vectors in the order in which they are reduced
        self._vectors = [
            UnitVector(some, gradients.adopt(tuple(name for unit in some for name in unit.names)))
            for some in joined(self.units[::-1], joined_bytes)[::-1]
        ][::-1]
        self._vector_of = {unit: vector for vector in self._vectors for unit in vector.units}
        self._pass: int | None = None  # the backward pass under way, by autograd's number
        self._begun = 0  # of the vectors, in that pass
        self._order = StepOrder(optimizer, rule.mode)
        self._optimizer_steps: OptimizerSteps | None = None
        if optimizer is not None:
            gradients.follow(optimizer)
            ready, divisor = self._order.stepped, self._divisor
            self._optimizer_steps = OptimizerSteps(optimizer, rule, gradients, divisor=lambda: divisor, ready=ready)
        self._snapshot = ShardedSnapshot(gradients, units[0].mesh)
        self._attached = units
        for unit in units:
            unit.module.set_all_reduce_hook(partial(self._arrive, unit))
            ATTACHED.add(unit.module)

    @property
    def report(self) -> StepReport | None:
        """Return the report of this rank's last backward pass, all units together; None before the first."""
        return combined(vector.reducer.report for vector in self._gradients)

    def residuals(self) -> dict[str, np.ndarray]:
        """Return this rank's residual of its shard of each parameter, ``(n,)`` in host memory, by name."""
        return self._gradients.residuals()

    def detach(self) -> None:
        """Undo `sparse_mpi.fsdp.attach`: FSDP2 sums, and the optimizer has its momentum; residuals stay here."""
        if self._optimizer_steps is not None:
            self._optimizer_steps.remove()
        for unit in self._attached:
            unit.module.set_all_reduce_hook(None)
            ATTACHED.discard(unit.module)

    @torch.no_grad()
    def flush(self) -> None:
        """Set ``.grad`` of all parameters to the mean of the replicas' residuals, and clear these. Collective.

        Between steps, and the optimizer steps then, see `sparse_mpi.ddp.SparseState.flush`.
        """
        self._order.check_flush()
        for parameter, total in self._gradients.flush():
            if parameter.requires_grad:
                parameter.grad = sharded_like(parameter, (total / self._divisor).to(local(parameter)))

    def save(self, folder: Any) -> None:
        """Write the state of a resumable run to ``folder``, by torch.distributed.checkpoint. Collective."""
        self._snapshot.save(folder, self._steps)

    def load(self, folder: Any) -> None:
        """Restore a `save`, on any number of replicas and shards, before the first step. Collective.

        On the same numbers of replicas and shards training goes on bit for bit. On others residuals are dealt out anew,
        with the same total; the states of algorithms and selectors begin afresh.

        Raises:
            ValueError: it was saved with another algorithm or feedback, or of other parameters.
        """
        self._steps = self._snapshot.load(folder, self._average)

    @torch.no_grad()
    def _arrive(self, unit: Unit, shard: Tensor) -> None:
        """Take ``shard``, the padded vector of a unit's gradients, and start all reductions that are ready."""
        number = torch._C._current_graph_task_id()
        if number != self._pass:
            self._finish()  # of a backward pass that has failed
            self._pass, self._begun = number, 0
            # Behind the callbacks that FSDP2 has queued, or will queue within this pass for other roots
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._finish))
        if unit.parameters:
            self._vector_of[unit].take(unit, shard)
        elif (objection := unit.objection(shard)) is not None:  # this process holds padding alone
            raise objection
        while self._begun < len(self._vectors) and (vector := self._vectors[self._begun]).complete:
            self._start(vector)
            self._begun += 1

    def _start(self, vector: UnitVector) -> None:
        self._order.check(vector.vector, vector.flat)
        asserting = self.check_every > 0 and self._steps % self.check_every == 0
        vector.start(check=asserting, dense=self._steps < self.dense_steps)

    @torch.no_grad()
    def _finish(self) -> None:
        if self._pass is None:
            return
        try:
            finished(self._rest())
        finally:
            self._pass, self._steps, self._gradients.flushed = None, self._steps + 1, False

    def _rest(self) -> Iterator[Callable[[], None]]:
        left = self._vectors[self._begun :]
        while left or any(vector.handle is not None for vector in self._gradients):
            for vector in left:
                self._start(vector)
            yield from [partial(self._write, vector) for vector in self._vectors if vector.vector.handle is not None]
            left = [vector for vector in self._vectors if vector.came]  # units that have come twice

    def _write(self, vector: UnitVector) -> None:
        vector.finish(self._divisor)
        if len(vector.vector.reducer.absence.everywhere) < len(vector.vector.parameters):
            self._order.reduced(vector.vector)
