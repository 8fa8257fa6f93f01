"""Reduce the gradients of some parameters of a torch model together, as one flat vector: a bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.comm.background import Handle, progress_thread_of
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.second_moment import SecondMoment
from sparse_mpi.sparse import SparseVector
from sparse_mpi.training.arrivals import DENSE, UNSEEN, Arrivals, kind_of
from sparse_mpi.training.parameters import FlatParameters, cut_by_tensor, joined, mean_moment, write_mean


def cut(parameters: Sequence[Tensor], max_bytes: float) -> list[list[Tensor]]:
    """Cut parameters into buckets, in about the order in which a backward pass finishes them: the last come first.

    A bucket holds neighbours of one dtype and device, in the order of ``parameters``, and at most ``max_bytes`` unless
    it is a single parameter. The bucket that is finished last holds an eighth of that, because no backward pass is left
    to hide its reduction.
    """
    # The model's first parameters get their gradients last
    first = _leading(parameters, max_bytes / 8)
    buckets: list[list[Tensor]] = []
    # The others are cut from the end, as a backward pass goes, but keep their order within a bucket
    for _, same in groupby(reversed(parameters[len(first) :]), key=_kind):
        rest = list(same)
        while rest:
            buckets.append(_leading(rest, max_bytes)[::-1])
            rest = rest[len(buckets[-1]) :]
    return [*buckets, first] if first else buckets


def _leading(parameters: Sequence[Tensor], max_bytes: float) -> list[Tensor]:
    """Return as many of the first parameters, of one dtype and device, as fit; at least one if there is any."""
    taken: list[Tensor] = []
    size = 0
    for parameter in parameters:
        size += parameter.numel() * parameter.element_size()
        if taken and (size > max_bytes or _kind(parameter) != _kind(taken[0])):
            break
        taken.append(parameter)
    return taken


def _kind(parameter: Tensor) -> tuple[torch.dtype, torch.device]:
    return parameter.dtype, parameter.device


MakeReducer = Callable[[list[tuple[int, ...]]], SparseAllreduce]


class Bucket:
    """Some parameters and their gradients, which it collects as they become final, reduces, and hands back.

    It is settled once the ranks know of all its gradients that they are no sparse tensors, which leave it before. Until
    then gradients stay where they are until they are reduced, so that no memory is taken for those that leave. All have
    one dtype and device, and are the sum of ``passes`` backward passes.
    """

    def __init__(self, parameters: Sequence[Tensor], make_reducer: MakeReducer, *, passes: int, average: bool) -> None:
        self.members = FlatParameters(parameters)
        self.parameters: list[Tensor] = self.members.parameters
        self.reducer: SparseAllreduce = make_reducer(self.members.shapes)
        self._average = average
        self._passes = passes
        self.handle: Handle[Any] | None = None  # of the reduction under way
        self.kinds: np.ndarray = np.zeros(len(self.parameters), np.uint8)  # of the gradients, as far as all ranks know
        self.remembers: bool = False  # there was a step, or a state was loaded
        self.arrivals: Arrivals = Arrivals(self.parameters, passes)
        self._numbers = {parameter: number for number, parameter in enumerate(self.parameters)}
        self._missing = set(range(len(self.parameters)))  # numbers of gradients that are not collected yet
        self._absent: list[int] = []  # numbers of the parameters that have no gradient on this rank
        self._skipped: Sequence[int] = ()  # numbers of those that had none on any rank in the last step
        self._arrived: Tensor | None = None  # indices of the entries that came with the last result; None: all came
        self._flushing = False

    @cached_property
    def flat(self) -> Tensor:
        """Return the gradient, and then the result ``(n,)``, made when the first part of it is collected."""
        return self.members.zeros()

    @cached_property
    def _views(self) -> list[Tensor]:
        return self.members.split(self.flat)

    def kind(self, parameter: Tensor) -> int:
        return int(self.kinds[self._numbers[parameter]])

    @property
    def settled(self) -> bool:
        return bool(self.kinds.all())

    @property
    def ready(self) -> bool:
        return self.settled and self.arrivals.complete

    def seen(self) -> np.ndarray:
        """Return the kinds of this rank's gradients ``(p,)``, for as long as all ranks do not know them."""
        own = np.array([kind_of(parameter.grad) for parameter in self.parameters], np.uint8)
        # What all ranks know stays, also where this rank has no gradient in this step
        return np.where(self.kinds == UNSEEN, own, self.kinds)

    def without_sparse(self, make_reducer: MakeReducer) -> Bucket | None:
        """Return the bucket of those parameters whose gradients are no sparse tensors; None if there are none.

        It remembers what this one remembers of them. Collective if any parameter leaves and any stays.
        """
        stay = np.flatnonzero(self.kinds <= DENSE).tolist()
        if len(stay) == len(self.parameters):
            return self
        if not stay:
            return None
        # A new bucket takes the others, their algorithm and what is remembered of them
        members = [self.parameters[number] for number in stay]
        made = Bucket(members, make_reducer, passes=self._passes, average=self._average)
        made.kinds, made.reducer.watch = self.kinds[stay], self.reducer.watch
        made.reducer.use(self.reducer.algorithm)
        if self.remembers:
            tensors = cut_by_tensor(whole_state(self.reducer.feedback), self.members.sizes)
            made.reducer.feedback.load(joined([tensors[number] for number in stay], made.members.sizes))
            made.remembers = True
        if self.reducer.second_moment is not None and made.reducer.second_moment is not None:
            moments = self.reducer.second_moment.by_tensor()
            made.reducer.second_moment.load(SecondMoment.joined([moments[number] for number in stay]))
        return made

    def arrive(self, parameter: Tensor, scale: float) -> None:
        """Count a backward pass of a parameter; after the last one collect its gradient, divided by ``scale``."""
        if self.arrivals.count(parameter) and self.settled:
            self._take(self._numbers[parameter], scale)

    def take_missing(self, scale: float) -> None:
        for number in sorted(self._missing):
            self._take(number, scale)

    def reset(self) -> None:
        self.arrivals.reset()
        self._missing, self._absent = set(range(len(self.parameters))), []

    @torch.no_grad()
    def _take(self, number: int, scale: float) -> None:
        """Copy ``.grad`` of a parameter, divided by ``scale``, to the buffer that is reduced; None is zero."""
        parameter, view = self.parameters[number], self._views[number]
        gradient = parameter.grad
        self._missing.discard(number)
        if gradient is None:
            self._absent.append(number)
            view.zero_()
        elif gradient is not view:
            # Autograd or the caller has put the gradient elsewhere: take it into the buffer
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            if scale == 1.0:
                view.copy_(gradient)
            else:
                torch.div(gradient, scale, out=view)
            # A single copy of the gradient is enough: its other memory is freed
            parameter.grad = view
        elif scale != 1.0:
            # The gradient is in the buffer already, where it must not keep the loss scale
            view.div_(scale)

    def start(self, *, density: float | None, check: bool, dense: bool = False, factor: float = 1.0) -> Handle[Any]:
        """Begin to reduce what was collected, times ``factor``; half precision is widened before it is scaled."""
        wide = torch.promote_types(self.flat.dtype, torch.float32)
        gradient = self.flat if factor == 1 else self.flat.to(wide) * factor
        self.remembers = True
        # What this rank lacks: the ranks ask each other only if that is news
        self.reducer.absence.here, self._flushing = self._absent, False
        self.handle = self.reducer.start(gradient, density=density, check=check, dense=dense)
        return self.handle

    def start_flush(self, *, check: bool) -> None:
        self.remembers = self._flushing = True
        work = partial(self.reducer.flush, like=self.flat, check=check)
        self.handle = progress_thread_of(self.reducer.comm).start(work, self.flat)

    @torch.no_grad()
    def finish(self, scale: float = 1.0) -> SparseVector[Tensor] | Tensor:
        """Wait for the sum and return it; set ``.grad`` of the parameters to its mean times ``scale``."""
        handle, self.handle = self.handle, None
        if handle is None:
            raise RuntimeError("finish must follow start or start_flush")
        total = handle.wait()
        # Skipped are parameters without a gradient on any rank; in a flush there is no gradient at all
        self._skipped = range(len(self.parameters)) if self._flushing else self.reducer.absence.everywhere
        if self._flushing:
            self._arrived = torch.empty(0, dtype=torch.long)  # but for what is not 0
        else:
            # Where every entry was to be sent, those that are 0 have arrived as well
            partly = isinstance(total, SparseVector) and not self.reducer.whole
            self._arrived = total.indices if partly else None
        # The loss scaler, which divides .grad by the scale, is to find it there
        write_mean(total, self._divisor / scale, self.flat)
        for number, parameter in enumerate(self.parameters):
            parameter.grad = self._gradient(number) if parameter.requires_grad else None
        return total

    @property
    def _divisor(self) -> float:
        return self.reducer.ranks if self._average else 1.0

    @torch.no_grad()
    def second_moments(self) -> dict[Tensor, Tensor]:
        """Return by parameter the second moment of the last result, as `mean_moment` does, if the reducer has them."""
        moment = self.reducer.second_moment
        flat = None if moment is None else mean_moment(moment, self._divisor, self.flat)
        return {} if flat is None else dict(zip(self.parameters, self.members.split(flat), strict=True))

    @torch.no_grad()
    def fail(self) -> None:
        """Set ``.grad`` of the parameters to NaN, so that a loss scaler sees that gradients overflowed."""
        self.flat.fill_(torch.nan)
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view if parameter.requires_grad else None

    def _gradient(self, number: int) -> Tensor | None:
        mean = self._views[number]
        # None makes torch's optimizers leave a parameter alone, as they do on one rank
        return None if number in self._skipped and not bool(mean.any()) else mean

    def arrived(self) -> dict[Tensor, Tensor]:
        """Return where an entry of the gradient has come with the last result, unless all have: a mask by parameter.

        An entry has come if the result has its index. If the step was to send every entry, or the result is dense, all
        have come, those too that are 0. What is not 0 although it has not come was added since, by the caller.
        """
        if self._arrived is None:
            return {}
        mask = self.flat != 0
        mask[self._arrived.to(mask.device, torch.long)] = True
        return dict(zip(self.parameters, self.members.split(mask), strict=True))
