"""Adam's step along a vector of gradients that arrive late, by a kernel: `AdamVector`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import NAdam, Optimizer, RMSprop
from torch.utils.dlpack import from_dlpack

from sparse_mpi import arrays, kernels
from sparse_mpi.arrays import Array
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.kernels import adam
from sparse_mpi.reduction.second_moment import SecondMoment
from sparse_mpi.sparse import SparseVector
from sparse_mpi.training.adam_steps import ARRIVED, State, begin_state, decoupled, second_beta, set_aside
from sparse_mpi.training.named_gradients import GradientVector
from sparse_mpi.training.parameters import local, sharded_like

FLAT = ("exp_avg", "exp_avg_sq", ARRIVED)  # keys of an optimizer's state that are views of flat vectors
ROUNDINGS = 4  # most roundings of a gradient that is multiplied by a factor


class AdamVector:
    """Moves the weights of a vector's parameters; their states in the optimizer are views of flat vectors.

    Args:
        optimizer: Adam, AdamW, NAdam or RMSprop of some or all parameters.
    """

    def __init__(self, vector: GradientVector, optimizer: Optimizer) -> None:
        layout, first = vector.reducer.layout, local(vector.parameters[0])
        self._vector = vector
        self._kind = adam.RMSPROP if isinstance(optimizer, RMSprop) else adam.ADAM
        self._kind = adam.NADAM if isinstance(optimizer, NAdam) else self._kind
        self._ends = np.cumsum(layout.sizes)
        size = 0 if self._kind == adam.RMSPROP else layout.size
        self._state = [first.new_zeros(size, dtype=dtype) for dtype in (first.dtype, first.dtype, torch.int32)]
        # Of each parameter: number of its steps, and NAdam's product
        self._steps, self._products = (np.zeros(len(layout.sizes), np.float32) for _ in range(2))
        views = [vector.split(flat) for flat in self._state] if size else []
        self._views: list[dict[str, Tensor]] = [dict(zip(FLAT, row, strict=True)) for row in zip(*views, strict=True)]
        numbers = {"step": self._steps, "mu_product": self._products}
        for name, row in numbers.items() if size else ():
            for own, number in zip(self._views, torch.from_numpy(row).unbind(), strict=True):
                own[name] = number
        self._moving: dict[int, Tensor] = {}  # parameters with a gradient in this step, by number
        self._gradient: Tensor | None = None  # their gradients as one vector, in a step
        self._shown: list[State] = [{} for _ in vector.parameters]  # views that the optimizer's state has
        # Memory of a step, 0 between steps
        self._update = first.new_zeros(layout.size, dtype=torch.promote_types(first.dtype, torch.float32))
        self._updates = vector.split(self._update)
        self._copies: dict[str, tuple[Tensor, list[Tensor]]] = {}  # vectors of what lies in many tensors, and views

    def collect(self, optimizer: Optimizer, groups: Mapping[Tensor, State]) -> None:
        """Take the gradients of a step; ``groups`` maps the optimizer's parameters to their groups."""
        moment = self._vector.reducer.second_moment
        known = moment is None or moment.sums is not None  # else there was no step
        pairs = enumerate(self._vector.parameters if known else ())
        self._moving = {number: p for number, p in pairs if p.grad is not None and p in groups}
        for number, parameter in self._moving.items() if self._views else ():
            self._adopt(number, parameter, optimizer.state[parameter], groups[parameter])
        self._gradient = self._gathered() if self._moving else None

    @property
    def moves(self) -> bool:
        return bool(self._moving)

    @property
    def first(self) -> bool:
        """Tell if the last sum was of the first step of training."""
        moment = self._vector.reducer.second_moment
        return moment is not None and max(moment.steps, default=0) == 1

    def scale(self, factor: float) -> None:
        """Scale the first gradients, with residuals, by ``factor``, and their second moments."""
        reducer: Any = self._vector.reducer
        for array in whole_state(reducer.feedback).values():
            array *= factor
        mean = reducer.second_moment.mean
        mean *= factor**2

    @property
    def square(self) -> float:
        """Return the squared norm of the sum over the ranks."""
        total = self._vector.total
        values = total.values if isinstance(total, SparseVector) else total
        return 0.0 if values is None else float(values.double().square().sum())

    def factor(self, divisor: float) -> float | None:
        """Return the one factor that multiplied all gradients behind the reduction, or None."""
        total, now = self._vector.total, self._gradient
        if total is None or now is None or len(self._moving) < len(self._vector.parameters):
            return None
        was = total.values if isinstance(total, SparseVector) else total
        if isinstance(total, SparseVector):
            now = now.index_select(0, total.indices.long())
        was = (was / divisor).to(now.dtype)
        if not was.numel() or torch.equal(now, was):
            return 1.0
        largest = was.abs().argmax()
        found = float(now[largest].double() / was[largest].double())
        alike = torch.isclose(now, was * found, rtol=ROUNDINGS * torch.finfo(now.dtype).eps, atol=0.0).all()
        return found if bool(alike) else None

    @torch.no_grad()
    def move(
        self,
        optimizer: Optimizer,
        groups: Mapping[Tensor, State],
        divisor: float,
        flushed: bool,
        factors: tuple[float, float],
    ) -> list[tuple[Tensor, Tensor]]:
        """Move the weights of arrived gradients as far as Adam would have since their last arrival.

        Args:
            optimizer: its options may have changed.
            groups: groups of its parameters.
            divisor: P for means, 1 for sums.
            flushed: True where gradients are flushed residuals.
            factors: factor of gradients, to be taken back, and of second moments.

        Returns:
            Parameters and gradients. ``.grad`` becomes None, so that the optimizer's own step skips them.
        """
        vector, moment, moving = self._vector, self._vector.reducer.second_moment, self._moving
        gradient, self._gradient, vector.total = self._gradient, None, None
        if gradient is None:
            return []
        members: dict[int, tuple[State, list[int]]] = {}  # groups and the numbers of their parameters
        for number, parameter in moving.items():
            group = groups[parameter]
            members.setdefault(id(group), (group, []))[1].append(number)
        table, coupled = self._table(optimizer, list(members.values()), moment), False
        table[:, adam.SIGN] /= factors[0]
        table[:, adam.FACTOR] *= factors[1]
        for group, numbers in members.values():
            if not group["weight_decay"]:
                continue
            if decoupled(optimizer, group):  # all weights decay
                weights = [local(moving[number]) for number in numbers]
                torch._foreach_mul_(weights, 1 - float(group["lr"]) * group["weight_decay"])
            else:  # part of each gradient of the wait
                table[numbers, adam.DECAY] = group["weight_decay"]
                coupled = True
        written = self._run(gradient, table, coupled, moment, divisor, flushed)
        changes = self._updates
        if self._update.dtype != local(vector.parameters[0]).dtype:
            changes = vector.split(self._update.to(local(vector.parameters[0]).dtype))
        torch._foreach_sub_([local(p) for p in moving.values()], [changes[number] for number in moving])
        if written is None:
            self._update.zero_()
        else:
            update = arrays.enter(self._update)
            kernels.of(update).clear(update, written)
        return set_aside(moving.values())

    def _adopt(self, number: int, parameter: Tensor, state: State, group: State) -> None:
        """Turn the optimizer's state of a parameter into views of the flat one."""
        shown, own = self._shown[number], self._views[number]
        if shown and all(state.get(key) is tensor for key, tensor in shown.items()):
            return
        begin_state(parameter, state, group)
        for key in (key for key in own if key in state):
            own[key].copy_(local(state[key]))
            view = own[key]
            if key in FLAT and local(parameter) is not parameter:
                # torch copies no DTensor whose shard begins within its memory
                view = sharded_like(parameter, from_dlpack(view))
            shown[key] = view
        state.update(shown)

    def _table(
        self, optimizer: Optimizer, members: Sequence[tuple[State, list[int]]], moment: SecondMoment | None
    ) -> np.ndarray:
        """Return the table of a step, see `kernels.adam`, and count it."""
        table = np.zeros((len(self._ends), adam.COLUMNS))
        table[:, adam.FACTOR] = 1
        if moment is not None:  # the ranks' mean is larger where they agree, by as much
            table[:, adam.FACTOR] = moment.agreement.of_tensors(self._vector.reducer.comm.size)
        for group, numbers in members:
            self._steps[numbers] += 1
            steps = self._steps[numbers].astype(np.float64)
            columns: dict[int, Any] = {
                adam.MOVES: 1,
                adam.STEP: steps,
                adam.RATE: float(group["lr"]),
                adam.SIGN: -1 if group["maximize"] else 1,
                adam.EPS: group["eps"],
            }
            if self._kind == adam.RMSPROP:
                counted = np.array([] if moment is None else moment.steps)[numbers]
                columns[adam.BIAS] = 1 - second_beta(group) ** counted
            else:
                columns[adam.BETA1], beta2 = map(float, group["betas"])
                columns |= {adam.BETA2: beta2, adam.BIAS: 1 - beta2**steps}
            if self._kind == adam.NADAM:  # betas rise to beta1
                fall = 0.96 ** group["momentum_decay"]
                for column, at in ((adam.NOW, steps), (adam.NEXT, steps + 1)):
                    columns[column] = columns[adam.BETA1] * (1 - 0.5 * fall**at)
                self._products[numbers] *= columns[adam.NOW].astype(np.float32)
                columns[adam.PRODUCT] = self._products[numbers].astype(np.float64)
            for column, values in columns.items():
                table[numbers, column] = values
        return table

    def _gathered(self) -> Tensor:
        gradients = {number: local(parameter.grad) for number, parameter in self._moving.items()}  # type: ignore[arg-type]
        if len(gradients) == len(self._ends) and (whole := _one_behind_another(list(gradients.values()))) is not None:
            return whole
        return self._copied("gradients", gradients)

    def _copied(self, name: str, tensors: Mapping[int, Tensor]) -> Tensor:
        if name not in self._copies:
            flat = next(iter(tensors.values())).new_zeros(len(self._update))
            self._copies[name] = flat, self._vector.split(flat)
        flat, views = self._copies[name]
        torch._foreach_copy_([views[number] for number in tensors], list(tensors.values()))
        return flat

    def _run(
        self,
        gradient: Tensor,
        table: np.ndarray,
        coupled: bool,
        moment: SecondMoment | None,
        divisor: float,
        flushed: bool,
    ) -> Array | None:
        """Run the kernel; return the written entries of the update, None: perhaps all."""
        flat, update = arrays.widened(arrays.enter(gradient)), arrays.enter(self._update)
        flat = flat.astype(update.dtype, copy=False)
        arrived: Any = self._vector.arrived
        if arrived is not None:
            arrived = arrays.enter(arrived.to(gradient.device))
        weights: Array | None = None
        if coupled:
            known = {number: local(parameter) for number, parameter in enumerate(self._vector.parameters)}
            weights = arrays.enter(self._copied("weights", known).to(self._update.dtype))
        *wide, last = self._state
        half = wide[0].dtype != self._update.dtype
        wide = [one.to(self._update.dtype) for one in wide] if half else wide
        written = kernels.of(flat).adam(
            self._kind,
            flat,
            arrived,
            None if moment is None else self._seconds(moment, arrived, flat, divisor, flushed),
            (arrays.enter(wide[0]), arrays.enter(wide[1]), arrays.enter(last)),
            weights,
            table,
            self._ends,
            update,
        )
        for own, new in zip(self._state, wide if half else (), strict=False):
            own.copy_(new)
        return written

    def _seconds(
        self, moment: SecondMoment, arrived: Array | None, like: Array, divisor: float, flushed: bool
    ) -> Array:
        """Return the second moments of the mean, of arrived entries ``(m,)`` or of all ``(n,)``.

        Second moments of independent gradients add up.
        """
        sums: Any = moment.sums
        if not isinstance(sums, SparseVector):
            return arrays.like(sums / divisor**2, like).astype(like.dtype, copy=False)
        values = arrays.like(sums.values / divisor**2, like).astype(like.dtype, copy=False)
        if arrived is not None and not flushed:
            return values
        return SparseVector(arrays.like(sums.indices, like), values, len(like)).to_dense()


def _one_behind_another(parts: Sequence[Tensor]) -> Tensor | None:
    """Return tensors as one vector if they are contiguous neighbours in memory, else None."""
    first = parts[0]
    memory, at = first.untyped_storage(), first.data_ptr()
    for part in parts:
        if part.data_ptr() != at or not part.is_contiguous() or part.dtype != first.dtype:
            return None
        at += part.numel() * part.element_size()
    if at > memory.data_ptr() + memory.nbytes():
        return None
    return first.as_strided(((at - first.data_ptr()) // first.element_size(),), (1,))
