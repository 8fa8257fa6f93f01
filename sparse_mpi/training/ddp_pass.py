"""A backward pass of DistributedDataParallel: `BackwardPass`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparse_mpi.arrays import describe
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import in_turn, progress_thread_of
from sparse_mpi.monitor.step_report import StepReport, combined
from sparse_mpi.reduction.once import sparse_allreduce
from sparse_mpi.training.grammar import StepOrder
from sparse_mpi.training.hooks import in_backward
from sparse_mpi.training.named_gradients import GradientVector, NamedGradients, Names, Total, write_mean, zeros_among
from sparse_mpi.training.sparse_gradients import mean_of, refused_in, staged, summed
from sparse_mpi.training.step_pass import Pass


class _Arrival(NamedTuple):
    """A bucket of DDP."""

    names: Names
    buffer: Tensor  # (n,) the gradients, later their means; or a sparse tensor
    future: torch.futures.Future[Tensor]


class DDPBuckets:
    """Gradients of a vector in parts of DDP's buckets: the `Place` of DDP's hook.

    Args:
        parts: gradients by parameter in DDP's buckets; or one bucket ``(n,)``.
        used: parameters with gradients that have grown since the last reduction.

    Attributes:
        views: parameters with views of DDP's buckets as gradients, and the views.
        viewed: True where DDP's gradients are views of its buckets.
    """

    def __init__(self, vector: GradientVector, parts: Sequence[Tensor], used: Collection[Tensor]) -> None:
        self.vector, self._parts, self._used = vector, parts, used
        self.flat = parts[0].reshape(-1) if len(parts) == 1 else torch.cat([part.reshape(-1) for part in parts])
        memory = {part.untyped_storage().data_ptr() for part in parts}
        members = [(p, p.grad) for p in vector.parameters if p.grad is not None]
        self.views = [(p, gradient) for p, gradient in members if gradient.untyped_storage().data_ptr() in memory]

        self.viewed = bool(self.views)

    def collect(self) -> tuple[Tensor, list[int]]:
        for parameter, gradient in self.views:  # DDP's own comes back after zero_grad(), as another object
            parameter.grad = gradient.detach()
        # Where torch's optimizers leave a parameter alone, momentum stays as it is
        parts = enumerate(zip(self.vector.parameters, self.vector.split(self.flat), strict=True))
        return self.flat, sorted(zeros_among({number: part for number, (p, part) in parts if p.grad is None}))

    def write(self, total: Total, divisor: float) -> None:
        flat = write_mean(total, divisor, self.flat)
        for own, part in zip(self._parts, flat.split([part.numel() for part in self._parts]), strict=True):
            if own.data_ptr() != part.data_ptr():  # reduced in other memory than DDP's
                own.copy_(part.view_as(own))
        # DDP leaves .grad of a parameter alone that no rank has used: residuals and momentum are written here. Within
        # join, outside of a backward pass, all gradients stay as they are
        parts = self.vector.split(flat) if in_backward() else []
        unused = {n: p for n, p in enumerate(self.vector.parameters[: len(parts)]) if p not in self._used}
        idle = zeros_among({number: parts[number] for number, p in unused.items() if p.grad is None})
        for number, parameter in unused.items():
            part = parts[number]
            if parameter.grad is not None:
                parameter.grad.copy_(part)
            elif parameter.requires_grad and number not in idle:
                # DDP wants its own memory back, where other ranks have used the parameter
                own = self._parts[number] if len(self._parts) == len(self.vector.names) else part
                parameter.grad = own.view(parameter.shape) if self.viewed else part.to(parameter, copy=True)

    def fail(self) -> None:
        """Leave that to the pass, which has DDP's whole buckets."""


class BackwardPass:
    """Reduces the buckets of one backward pass, each on arrival, or with a scaler when all are there.

    Args:
        before: names of the last pass's buckets: a bucket that recurs becomes a vector.
        used: see `DDPBuckets`.
        options: options of `SparseAllreduce.start`.

    Attributes:
        arrivals: buckets so far, in their order.
    """

    def __init__(
        self,
        gradients: NamedGradients,
        order: StepOrder,
        *,
        before: Collection[Names],
        used: Collection[Tensor],
        **options: Any,
    ) -> None:
        self.arrivals: list[_Arrival] = []
        self._gradients, self._order = gradients, order
        self._before, self._used, self._options = before, used, options
        self._pass = Pass()
        self._begun: list[DDPBuckets] = []
        self._waiting: list[_Arrival] = []  # buckets that are no vectors
        self._unfit = False  # a gradient that a scaler has scaled has overflowed

    def add(self, names: Names, buffer: Tensor) -> torch.futures.Future[Tensor]:
        devices: list[int | str | torch.device] | None = None if buffer.device.type == "cpu" else [buffer.device]
        self.arrivals.append(_Arrival(names, buffer, torch.futures.Future(devices=devices)))
        if not self._order.scaled:  # else nothing may begin before all ranks know that no gradient has overflowed
            self._begin(self.arrivals[-1])
        return self.arrivals[-1].future

    def _begin(self, arrival: _Arrival) -> None:
        if arrival.buffer.is_sparse or not arrival.buffer.numel():  # parameters without elements send nothing
            return
        if arrival.names in self._gradients.vectors or arrival.names in self._before:
            self._adopt(arrival)
        else:
            self._waiting.append(arrival)

    def _adopt(self, arrival: _Arrival) -> None:
        plain = all(self._gradients.parameters[name].is_contiguous() for name in arrival.names)
        self._start(self._gradients.adopt(arrival.names), [arrival.buffer] if plain else self._places(arrival))

    def _places(self, arrival: _Arrival) -> list[Tensor]:
        members = [self._gradients.parameters[name] for name in arrival.names]
        parts = arrival.buffer.split([p.numel() for p in members])
        # In memory a gradient lies as its parameter, channels_last or transposed, if that is dense
        strides = [p.stride() if torch.empty_like(p, device="meta").stride() == p.stride() else None for p in members]
        shaped = zip(members, parts, strides, strict=True)
        return [part.as_strided(p.shape, of) if of else part.view(p.shape) for p, part, of in shaped]

    def _start(self, vector: GradientVector, parts: Sequence[Tensor]) -> None:
        place = DDPBuckets(vector, parts, self._used)
        # A pass adds to each gradient, and where they are views of DDP's bucket each of these counts for all
        members = vector.parameters
        self._order.check(vector, place.flat, vector.left(members, len(members) if place.views else 1))
        vector.reducer.engine.unfit = self._unfit
        self._begun.append(place)
        self._pass.begin(place, **self._options)

    def finish(self) -> StepReport | None:
        """Reduce the rest, once all buckets are there, and give DDP the means.

        Returns None, and DDP gets NaN, if a gradient of some rank was not finite. Raises the first error of a
        reduction, with nothing under way.
        """
        scale, comm = self._order.loss_scale() if self._order.scaled else 1.0, self._gradients.comm
        if self._order.scaled:
            values = [buffer._values() if buffer.is_sparse else buffer for _, buffer, _ in self.arrivals]
            self._unfit = not all(bool(x.isfinite().all()) for x in values)
            # Residuals, and rows of tables, are without the scale
            for arrival in self.arrivals:
                arrival.buffer.div_(scale)
                self._begin(arrival)
        self._regroup()
        own = [staged(rows, rows, rows.sparse_dim()) for _, rows, _ in self.arrivals if rows.is_sparse]
        skips = self._gradients.settings.nonfinite == "skip"
        rows = (
            progress_thread_of(comm).start(partial(summed, own, comm, skips=skips, unfit=self._unfit)) if own else None
        )
        if self._pass.refused(refused_in(rows)) is not None:
            self._leave_out()
            return None
        vectors = [place.vector for place in self._begun]
        for place in self._begun:
            place.viewed = any(one.views for one in self._begun)
        try:
            self._pass.write(lambda vector: comm.size / scale)
        finally:
            tables = rows.wait() if rows is not None else None
        self._order.reduced(*vectors)
        self._gradients.flushed = False
        # DDP takes the means from its futures: all of them are written by now
        sums = iter(tables.sums if tables is not None else ())
        for _, buffer, future in self.arrivals:
            future.set_result(mean_of(next(sums), buffer, comm.size / scale) if buffer.is_sparse else buffer)
        return combined([*(vector.reducer.report for vector in vectors), tables and tables.report])

    def _regroup(self) -> None:
        """Reduce buckets that are no vectors in unused vectors, if they fit; else as they are."""
        begun = {place.vector for place in self._begun}
        absent = [vector for vector in self._gradients if vector not in begun]
        parts: dict[str, Tensor] = {}
        for arrival in self._waiting:
            parts |= zip(arrival.names, self._places(arrival), strict=True)
        if parts.keys() == {name for vector in absent for name in vector.names}:
            for vector in absent:
                self._start(vector, [parts[name] for name in vector.names])
        else:
            for arrival in self._waiting:
                self._adopt(arrival)

    def _leave_out(self) -> None:
        for _, buffer, future in self.arrivals:
            (buffer._values() if buffer.is_sparse else buffer).fill_(torch.nan)
            future.set_result(buffer)


def plain_mean(buffer: Tensor, comm: Comm) -> torch.futures.Future[Tensor]:
    """Return a bucket's dense mean in its own buffer; of sparse tensors row by row. Collective."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    if buffer.is_sparse:
        own = staged(buffer, buffer, buffer.sparse_dim())
        future.set_result(mean_of(in_turn(comm, lambda: summed([own], comm)).sums[0], buffer, comm.size))
    else:
        total = in_turn(comm, lambda: sparse_allreduce(buffer, comm=comm, algorithm="dense").total)
        future.set_result(write_mean(total, comm.size, buffer))
    return future


def names_of_bucket(bucket: Any, names: Mapping[Tensor, str]) -> Names:
    """Return the names of a DDP bucket's parameters; ValueError if ``names`` lacks one."""
    for parameter in bucket.parameters():
        if parameter not in names:
            raise ValueError(
                f"named_parameters must have every parameter that DDP reduces, lacks a {describe(parameter)}; "
                "pass named_parameters() of the very model that DDP wraps"
            )
    return tuple(names[parameter] for parameter in bucket.parameters())
