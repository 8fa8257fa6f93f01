"""The sparse sum over the replicas of a model that FSDP2 shards, see `sparse_mpi.fsdp`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.reduction.clipping import factor_of
from sparse_mpi.training.clip_line import ClipLine
from sparse_mpi.training.door import Door
from sparse_mpi.training.fsdp_snapshot import ShardedSnapshot, raised_by_all
from sparse_mpi.training.fsdp_units import Unit, UnitVector, joined
from sparse_mpi.training.grammar import StepOrder
from sparse_mpi.training.live_ranks import refuse_copy
from sparse_mpi.training.named_gradients import NamedGradients
from sparse_mpi.training.optimizer_rule import Rule
from sparse_mpi.training.step_pass import Pass, finished

JOINED_BYTES = 250e6  # the most gradients on a GPU that are one vector
ATTACHED: WeakSet[torch.nn.Module] = WeakSet()  # modules whose hook is ours


class ShardedReduction(Door):
    """Reduces the shards of each unit over the replicas behind the backward pass, from FSDP2's hooks.

    `sparse_mpi.fsdp.attach` makes it. Vectors of units are reduced in the model's reverse order, so that replicas may
    go through units in any order, or leave some out. With ``clip_norm`` they wait for all gradients.
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
        clip_norm: float | None = None,
        joined_bytes: float | None = None,
    ) -> None:
        super().__init__(gradients, optimizer, dense_steps=dense_steps, average=average)
        self.units: list[Unit] = [unit for unit in units if unit.parameters]
        if joined_bytes is None:  # a CPU has room for overlap, and its launches cost nothing
            on_gpu = any(unit.device.type != "cpu" for unit in self.units)
            size = sum(unit.elements * unit.dtype.itemsize for unit in self.units)
            joined_bytes = min(JOINED_BYTES, size / 4) if on_gpu else 0
        # Vectors in the order in which they are reduced
        self._vectors = [
            UnitVector(some, gradients.adopt(tuple(name for unit in some for name in unit.names)))
            for some in joined(self.units[::-1], joined_bytes)[::-1]
        ][::-1]
        self._vector_of = {unit: vector for vector in self._vectors for unit in vector.units}
        # Of a mean; a sum is as many times as long
        self._max_norm = clip_norm if clip_norm is None or average else clip_norm / gradients.comm.size
        self._backward: int | None = None  # the backward pass under way, by autograd's number
        self._begun = 0  # vectors begun in that pass
        self._pass = Pass()
        self._order = StepOrder(optimizer, rule.mode)
        self.clip_line = ClipLine(gradients, clip_norm is not None, self._clip, self._over_shards)
        self.lead(rule, self._order.stepped)
        self._snapshot = ShardedSnapshot(gradients, units[0].mesh)
        self._attached = units
        for unit in units:
            unit.module.set_all_reduce_hook(partial(self._arrive, unit))
            ATTACHED.add(unit.module)

    def detach(self) -> None:
        """Undo `sparse_mpi.fsdp.attach`: FSDP2 sums, and the optimizer has its momentum; residuals stay here."""
        super().detach()
        for unit in self._attached:
            unit.module.set_all_reduce_hook(None)
            ATTACHED.discard(unit.module)

    def _refuse_flush(self) -> None:
        self._order.check_flush()

    def save(self, folder: Any) -> None:
        """Write the state of a resumable run to ``folder``, by torch.distributed.checkpoint. Collective."""
        self._snapshot.save(folder, self.steps, self.clip_line.limit)

    def load(self, folder: Any) -> None:
        """Restore a `save`, on any number of replicas and shards, before the first step. Collective.

        On the same numbers training goes on bit for bit. On others residuals are dealt out anew, with the same total;
        states of algorithms and selectors begin afresh.

        Raises:
            ValueError: it was saved with another algorithm or feedback, or of other parameters.
        """
        self.steps, limit = self._snapshot.load(folder, self._average)
        if limit is not None:
            self.clip_line.begin(limit)

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        # Ranks of the door are the replicas of one shard: the other shards are to learn of an error, too
        with raised_by_all(self._attached[0].mesh.get_group(), "state must be as state_dict() returned it"):
            super().take_over(states, ranks)

    @torch.no_grad()
    def _arrive(self, unit: Unit, shard: Tensor) -> None:
        """Take ``shard``, a unit's padded gradients, and start all reductions that are ready."""
        number = torch._C._current_graph_task_id()
        if number != self._backward:
            self._finish()  # a backward pass may have failed
            self._backward, self._begun = number, 0
            # Behind the callbacks that FSDP2 has queued, or will queue within this pass for other roots
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._finish))
        if unit.parameters:
            self._vector_of[unit].take(unit, shard)
        elif (objection := unit.objection(shard)) is not None:  # this process holds padding alone
            raise objection
        for vector in self._vectors[self._begun :] if self._max_norm is None else ():
            if not vector.complete:
                break
            self._start(vector)
            self._begun += 1

    def _start(self, vector: UnitVector) -> None:
        self._order.check(vector.vector, vector.flat)
        self._pass.begin(vector, **self.options)

    @torch.no_grad()
    def _finish(self) -> None:
        if self._backward is None:
            return
        try:
            finished(self._rest())
        finally:
            self._backward, self.steps, self.gradients.flushed = None, self.steps + 1, False

    def _rest(self) -> Iterator[Callable[[], None]]:
        left = self._vectors[self._begun :]
        # Also of a process that holds padding alone, for the others
        factor = 1.0 if self._max_norm is None else self._clipping_factor(left, self._max_norm)
        while left or self._pass.begun:
            for vector in left:
                vector.factor = factor
                self._start(vector)
            yield self._write
            left = [vector for vector in self._vectors if vector.came]  # units that have come twice

    def _clipping_factor(self, vectors: Sequence[UnitVector], most: float) -> float:
        """Return the factor that clips the mean of all shards together to the norm ``most``."""
        norm = self.gradients.live.norm_of_mean([vector.flat for vector in vectors], most)
        return factor_of(float(self._over_shards(np.array([norm**2]))[0]) ** 0.5, most)

    def _over_shards(self, numbers: np.ndarray) -> np.ndarray:
        whole = torch.from_numpy(numbers).to(self._attached[0].device)
        torch.distributed.all_reduce(whole, group=self._attached[0].mesh.get_group())
        return whole.cpu().numpy()

    def _clip(self, norm: float | None) -> None:
        self._max_norm = norm

    def _write(self) -> None:
        vectors, divisor = [place.vector for place in self._pass.begun], self.divisor()
        self._pass.write(lambda vector: divisor)
        self._order.reduced(*(v for v in vectors if len(v.reducer.absence.everywhere) < len(v.parameters)))
