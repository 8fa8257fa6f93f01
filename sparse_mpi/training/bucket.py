"""The gradients of some parameters as one flat vector: `Bucket`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from sparse_mpi import arrays
from sparse_mpi.checks import check_range
from sparse_mpi.training.named_gradients import GradientVector, Total, write_mean, zeros_among

RUN, EVERY = 512, 32  # entries of a run, 2 kB of float32; runs of which one is looked at
LARGE = RUN * EVERY  # entries of a gradient that is looked at by runs
HOST_MB, DEVICE_MB = 25.0, 250.0  # size of a bucket in 10^6 bytes; few buckets on a device


def largest_bucket(bucket_cap_mb: float | str | None, parameters: Collection[Tensor]) -> float | None:
    """Return the most that a bucket of these parameters holds, in 10^6 bytes; resolves "auto".

    Raises:
        TypeError, ValueError: no number above 0, None or "auto".
    """
    if bucket_cap_mb is None:
        return None
    if not isinstance(bucket_cap_mb, str) or bucket_cap_mb != "auto":
        check_range(
            "bucket_cap_mb", bucket_cap_mb, "(0, inf]", "None reduces everything at once, 'auto' is the default"
        )
        return float(bucket_cap_mb)
    if not any(parameter.is_cuda for parameter in parameters):
        return HOST_MB
    return max(DEVICE_MB, sum(parameter.numel() * parameter.element_size() for parameter in parameters) / 4e6)


def cut(parameters: Sequence[Tensor], max_bytes: float) -> list[list[Tensor]]:
    """Cut parameters into buckets, about as a backward pass finishes them: the last come first.

    A bucket holds neighbours of one dtype and device, in the order of ``parameters``, and at most ``max_bytes``, or one
    parameter. The last bucket holds ``max_bytes / 8``: no backward pass is left to hide its reduction.
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


class Bucket:
    """The gradients of some parameters in a buffer of their own: the `Place` of `DistributedOptimizer`.

    Attributes:
        factor: multiplies the gradients that `collect` returns next.
    """

    def __init__(self, vector: GradientVector) -> None:
        self.vector, self.reducer, self.parameters = vector, vector.reducer, vector.parameters
        self._absent: list[int] = []  # collected parameters without a gradient
        self.factor = 1.0  # clipping factor of the gathered gradients
        self._taken: dict[Tensor, tuple[Tensor, int]] = {}  # gradients taken apart, and torch's count of their changes
        self._turn = 0  # the runs to be looked at

    @cached_property
    def flat(self) -> Tensor:
        """Return the gradient, and then the result ``(n,)``, made on first use."""
        return torch.zeros(self.reducer.layout.size, dtype=self.parameters[0].dtype, device=self.parameters[0].device)

    @cached_property
    def _views(self) -> dict[Tensor, Tensor]:
        return dict(zip(self.parameters, self.vector.split(self.flat), strict=True))

    @cached_property
    def _apart(self) -> dict[Tensor, Tensor]:
        # A view has the count of changes of the whole, its data has one of its own
        views = self.vector.split(torch.zeros_like(self.flat))
        return {parameter: view.data for parameter, view in zip(self.parameters, views, strict=True)}

    @property
    def finite(self) -> bool:
        return arrays.finite(arrays.enter(self.flat))

    @property
    @torch.no_grad()
    def changed(self) -> bool:
        """Tell if a gradient taken ``apart`` has changed since, by its bits.

        Unless torch has counted a change, only a sample of a large gradient's runs is compared, another one in each
        step: what ``.data`` or NumPy changes in a single run is seen with odds of 1 to 31, and in 64 kB for sure.
        """
        now: list[Tensor] = []
        taken: list[Tensor] = []
        for parameter, view in self._views.items() if self._taken else ():
            gradient = parameter.grad
            if not parameter.requires_grad:
                continue
            if gradient is None:
                return True
            if view.numel() < LARGE or not self._known(parameter, gradient):
                now.append(gradient.to_dense() if gradient.is_sparse else gradient)
                taken.append(view)
            else:
                now += self._sample(gradient)
                taken += self._sample(view)
        return bool(now) and bool(torch.stack(torch._foreach_norm(torch._foreach_sub(now, taken), torch.inf)).any())

    @property
    def touched(self) -> bool:
        """Tell if a gradient taken ``apart`` has `changed`, or torch has counted a change."""
        own = [(parameter, parameter.grad) for parameter in self._taken if parameter.requires_grad]
        return any(g is None or not (g.is_sparse or self._known(p, g)) for p, g in own) or self.changed

    def _known(self, parameter: Tensor, gradient: Tensor) -> bool:
        taken, count = self._taken.get(parameter, (None, 0))
        return gradient is taken and not gradient.is_sparse and gradient._version == count

    def _sample(self, x: Tensor) -> list[Tensor]:
        flat = x.reshape(-1)
        whole = len(flat) // LARGE * LARGE
        return [flat[:whole].view(-1, EVERY, RUN)[:, self._turn], *([flat[whole:]] if whole < len(flat) else [])]

    @torch.no_grad()
    def take(self, parameters: Collection[Tensor], apart: bool = False) -> None:
        """Copy ``.grad`` of ``parameters`` to the buffer; None is zero.

        ``.grad`` then lies in the buffer, or ``apart``, so that a change shows.
        """
        into: list[Tensor] = []
        copied: list[Tensor] = []
        taken: list[tuple[Tensor, Tensor]] = []
        for parameter in parameters:
            view, gradient = self._views[parameter], parameter.grad if parameter.requires_grad else None
            if gradient is None or (apart and self._known(parameter, gradient)):
                continue
            own = view
            if apart:
                # In host memory autograd's is freed, and is at hand for the next gradient: new pages cost a step more
                stays = gradient.is_sparse or (gradient.is_cuda and gradient is not view)
                own = gradient if stays else self._apart[parameter]
                taken.append((parameter, own))
            for place in {view, own} - {gradient}:
                into.append(place)
                copied.append(gradient.to_dense() if gradient.is_sparse else gradient)
            parameter.grad = own
        if copied:
            torch._foreach_copy_(into, copied)
        for parameter, own in taken:
            self._taken[parameter] = own, 0 if own.is_sparse else own._version

    def gather(self, scale: float = 1.0, apart: bool = False) -> None:
        """Take all gradients as they are now, see `take`, divided by a loss ``scale``."""
        self.take(self.parameters, apart)
        own = enumerate(self.parameters)
        self._absent = [number for number, p in own if p.grad is None or not p.requires_grad]
        if self._absent:
            torch._foreach_zero_([self._views[self.parameters[number]] for number in self._absent])
        self._turn = (self._turn + 1) % EVERY
        if scale != 1.0:
            self.flat.div_(scale)

    def collect(self) -> tuple[Tensor, Collection[int]]:
        """Return the gathered gradients, times `factor`; half precision is widened before it is scaled."""
        factor, self.factor = self.factor, 1.0
        wide = torch.promote_types(self.flat.dtype, torch.float32)
        return self.flat if factor == 1 else self.flat.to(wide) * factor, self._absent

    @torch.no_grad()
    def write(self, total: Total, divisor: float) -> None:
        self._taken.clear()
        write_mean(total, divisor, self.flat)
        # Skipped are parameters without a gradient on any rank
        self._hand_back(self.vector.reducer.absence.everywhere)

    @torch.no_grad()
    def fail(self) -> None:
        self._taken.clear()
        self.flat.fill_(torch.nan)
        self._hand_back(())

    def _hand_back(self, skipped: Collection[int]) -> None:
        idle = zeros_among({n: v for n, v in enumerate(self._views.values()) if n in skipped}) if skipped else ()
        for number, (parameter, view) in enumerate(self._views.items()):
            # None makes torch's optimizers leave a parameter alone, as they do on one rank
            parameter.grad = None if number in idle or not parameter.requires_grad else view
