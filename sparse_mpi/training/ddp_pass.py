"""A backward pass of DistributedDataParallel: `BackwardPass`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.arrays import describe
from sparse_mpi.comm.background import in_turn, progress_thread_of
from sparse_mpi.monitor.step_report import StepReport, combined
from sparse_mpi.training.grammar import StepOrder
from sparse_mpi.training.hooks import in_backward
from sparse_mpi.training.named_gradients import GradientVector, NamedGradients, Names, finished, refusal, write_mean
from sparse_mpi.training.sparse_gradients import mean_of, refused_in, staged, summed


class Arrival(NamedTuple):
    """A bucket of DDP."""

    names: Names
    buffer: Tensor  # (n,) the gradients, later their means; or a sparse tensor
    future: torch.futures.Future[Tensor]


class BackwardPass:
    """Reduces the buckets of one backward pass, each on arrival, or with a scaler when all are there.

    Args:
        before: the buckets of the last pass, by their names: one that recurs becomes a vector.
        used: parameters whose gradients have grown since the last reduction.
        options: of `SparseAllreduce.start`.

    Attributes:
        arrivals: the buckets so far, in their order.
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
        self.arrivals: list[Arrival] = []
        self._gradients, self._order = gradients, order
        self._before, self._used, self._options = before, used, options
        # Reductions: their vectors, the buffers that get the means, and the places of DDP that get their parts
        self._under_way: list[tuple[GradientVector, Tensor, Sequence[Tensor]]] = []
        self._waiting: list[Arrival] = []  # buckets that are no vectors

    def add(self, names: Names, buffer: Tensor) -> torch.futures.Future[Tensor]:
        devices: list[int | str | torch.device] | None = None if buffer.device.type == "cpu" else [buffer.device]
        self.arrivals.append(Arrival(names, buffer, torch.futures.Future(devices=devices)))
        if not self._order.scaled:  # else nothing may begin before all ranks know that no gradient has overflowed
            self._begin(self.arrivals[-1])
        return self.arrivals[-1].future

    def _begin(self, arrival: Arrival) -> None:
        if arrival.buffer.is_sparse or not arrival.buffer.numel():  # parameters without elements send nothing
            return
        if arrival.names in self._gradients.vectors or arrival.names in self._before:
            self._adopt(arrival)
        else:
            self._waiting.append(arrival)

    def _adopt(self, arrival: Arrival) -> None:
        plain = all(self._gradients.parameters[name].is_contiguous() for name in arrival.names)
        self._start(self._gradients.adopt(arrival.names), [arrival.buffer] if plain else self._places(arrival))

    def _places(self, arrival: Arrival) -> list[Tensor]:
        members = [self._gradients.parameters[name] for name in arrival.names]
        parts = arrival.buffer.split([p.numel() for p in members])
        # In memory a gradient lies as its parameter, channels_last or transposed, if that is dense
        strides = [p.stride() if torch.empty_like(p, device="meta").stride() == p.stride() else None for p in members]
        shaped = zip(members, parts, strides, strict=True)
        return [part.as_strided(p.shape, of) if of else part.view(p.shape) for p, part, of in shaped]

    def _start(self, vector: GradientVector, places: Sequence[Tensor]) -> None:
        gradient = places[0].reshape(-1) if len(places) == 1 else torch.cat([place.reshape(-1) for place in places])
        members, buckets = vector.parameters, {place.untyped_storage().data_ptr() for place in places}
        views = [(p, g) for p in members if (g := p.grad) is not None and g.untyped_storage().data_ptr() in buckets]
        # A pass adds to each gradient, and where they are views of DDP's bucket each of these counts for all
        self._order.check(vector, gradient, vector.left(members, len(members) if views else 1))
        for parameter, view in views:  # behind zero_grad() DDP's own comes again, which is then another object
            parameter.grad = view.detach()
        # Where torch's optimizers leave a parameter alone, momentum stays as it is
        parts = enumerate(zip(members, vector.split(gradient), strict=True))
        absent = [number for number, (p, part) in parts if p.grad is None and not bool(part.any())]
        vector.start(gradient, absent, **self._options)
        self._under_way.append((vector, gradient, places))

    def finish(self) -> StepReport | None:
        """Reduce the rest, once all buckets are there, and give DDP the means.

        Returns None if a gradient of some rank was not finite, and nothing was reduced: DDP gets NaN. Raises the first
        error of a reduction, with nothing under way.
        """
        scale, comm = 1.0, self._gradients.comm
        if self._order.scaled:
            scale = self._order.loss_scale()
            values = [buffer._values() if buffer.is_sparse else buffer for _, buffer, _ in self.arrivals]
            overflows = np.array([not all(bool(x.isfinite().all()) for x in values)], np.uint8)
            if in_turn(comm, lambda: comm.allreduce(overflows, "max", control=True))[0]:
                self._leave_out()
                return None
            # Residuals, and rows of tables, are without the scale
            for arrival in self.arrivals:
                arrival.buffer.div_(scale)
                self._begin(arrival)
        self._regroup()
        own = [staged(rows, rows, rows.sparse_dim()) for _, rows, _ in self.arrivals if rows.is_sparse]
        skips = self._gradients.settings.nonfinite == "skip"
        rows = progress_thread_of(comm).start(partial(summed, own, comm, skips=skips)) if own else None
        if refusal((vector for vector, *_ in self._under_way), refused_in(rows)) is not None:
            self._leave_out()
            return None
        try:
            finished(partial(self._write_mean, *reduction, comm.size / scale) for reduction in self._under_way)
        finally:
            tables = rows.wait() if rows is not None else None
        vectors = [vector for vector, *_ in self._under_way]
        self._order.reduced(*vectors)
        self._gradients.flushed = False
        # DDP takes the means from its futures: all of them are written by now
        sums = iter(tables.sums if tables is not None else ())
        for _, buffer, future in self.arrivals:
            future.set_result(mean_of(next(sums), buffer, comm.size / scale) if buffer.is_sparse else buffer)
        return combined([*(vector.reducer.report for vector in vectors), tables and tables.report])

    def _regroup(self) -> None:
        """Reduce gradients of buckets that are no vectors in unused vectors, if they fit; else as they are."""
        absent = [vector for vector in self._gradients if all(vector is not one for one, *_ in self._under_way)]
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

    def _write_mean(self, vector: GradientVector, gradient: Tensor, places: Sequence[Tensor], divisor: float) -> None:
        write_mean(vector.wait(), divisor, gradient)
        for place, part in zip(places, gradient.split([place.numel() for place in places]), strict=True):
            if place.data_ptr() != part.data_ptr():  # reduced in other memory than DDP's
                place.copy_(part.view_as(place))
        # DDP leaves .grad of a parameter alone that no rank has used: residuals and momentum are written here. Within
        # join, outside of a backward pass, all gradients stay as they are
        parts = vector.split(gradient) if in_backward() else []
        for parameter, part in zip(vector.parameters, parts, strict=False):
            if parameter in self._used:
                continue
            if parameter.grad is not None:
                parameter.grad.copy_(part)
            elif parameter.requires_grad and bool(part.any()):
                parameter.grad = part.to(parameter, copy=True)


def names_of_bucket(bucket: Any, names: Mapping[Tensor, str]) -> Names:
    """Return the names of the parameters of a bucket of DDP, or raise ValueError if one is not in ``names``."""
    for parameter in bucket.parameters():
        if parameter not in names:
            raise ValueError(
                f"named_parameters must have every parameter that DDP reduces, lacks a {describe(parameter)}; "
                "pass named_parameters() of the very model that DDP wraps"
            )
    return tuple(names[parameter] for parameter in bucket.parameters())
