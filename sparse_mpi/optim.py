"""`DistributedOptimizer`: any torch optimizer, made to step along gradients that all ranks have reduced.

Names and order of arguments are Horovod's (Sergeev and Del Balso, 2018), so that a program changes in three lines.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.buckets.reduction import GradientReduction
from sparse_mpi.comm import as_comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.sparse import SparseVector

Average, Sum = "average", "sum"
OPS = (Average, Sum)


class _Reducing:
    """What a distributed optimizer does differently; stands before the optimizer's own class."""

    reduction: GradientReduction
    _synchronizes: bool  # whether `step` does it
    _synchronized: bool  # whether it was done since the last step

    def synchronize(self) -> list[SparseVector | Tensor]:
        """Finish the reduction: ``.grad`` of every parameter is its mean (or sum) over the ranks. Collective.

        `step` does it. Call it where gradients are needed before, for clipping or a loss scaler, and then step in
        `skip_synchronize`. Returns what `GradientReduction.synchronize` returns.
        """
        self.reduction.add(p for group in self.param_groups for p in group["params"])  # type: ignore[attr-defined]
        self._synchronized = True
        return self.reduction.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within, `step` takes the gradients as they are."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients unless `synchronize` has done so, and step along them; with a closure, after each call
        of it."""
        if closure is None:
            self._reduce()
            self._synchronized = False
            return super().step()  # type: ignore[misc]

        def reduced() -> Any:
            loss = closure()
            self._reduce()
            self._synchronized = False
            return loss

        return super().step(reduced)  # type: ignore[misc]

    step.hooked = True  # type: ignore[attr-defined]  # the optimizer's own step calls the hooks of a step

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients.

        Raises:
            RuntimeError: they are being reduced, see `GradientReduction.discard`.
        """
        self.reduction.discard()
        self._synchronized = False
        self.reduction.detach()
        super().zero_grad(set_to_none)  # type: ignore[misc]
        self.reduction.attach()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, whose gradients are reduced too. Collective."""
        super().add_param_group(param_group)  # type: ignore[misc]
        self.reduction.add(self.param_groups[-1]["params"])  # type: ignore[attr-defined]

    def _reduce(self) -> None:
        if self._synchronizes and not (self._synchronized and not self.reduction.arrived):
            self.synchronize()


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = "oktopk",
    backward_passes_per_step: int = 1,
    op: str = Average,
    *,
    density: float | None = None,
    k: int | None = None,
    comm: Any = None,
    bucket_cap_mb: float | None = 25.0,
    overlap: bool = True,
    memory: Any = "residual",
    clip_norm: float | None = None,
    in_place: bool = False,
    nonfinite: str = "keep",
    scaler: Any = None,
    **options: Any,
) -> Any:
    """``optimizer``, stepping along the gradients of all ranks; reductions start while the backward pass still runs.

    Args:
        optimizer: any of torch's. Its parameters and state become those of the result; use only that from here on.
        named_parameters: ``model.named_parameters()``, to have it checked that the optimizer has parameters of that
            model, and to reduce in the model's order; by default the optimizer's.
        compression: the algorithm, a name in `ALGORITHMS` or an instance.
        backward_passes_per_step: gradients of so many backward passes are added up before they are reduced.
        op: "average" or "sum".
        density, k: what share, or number, of the gradient's entries a rank may send in a step; 0.01 if neither.
        comm: mpi4py communicator or `Comm`; ``MPI.COMM_WORLD`` if None. Duplicated.
        bucket_cap_mb: 10^6 bytes of gradients that are reduced together, at most; None: everything at once, which
            selects the largest entries of all and overlaps with nothing.
        overlap: whether reductions start before `step`, as gradients become final.
        memory, clip_norm, nonfinite, options: see `SparseAllreduce`.
        in_place: gradients are added into the residual's own memory, which spares a pass over both; then clear
            gradients with the optimizer's ``zero_grad``, not the model's.
        scaler: the ``torch.amp.GradScaler`` in use, if any: reductions begin in ``synchronize()``, when it is known
            that no rank's gradient has overflowed. Call that before ``scaler.step``, which goes into
            ``skip_synchronize()``.

    An exception that nobody catches ends the whole job from here on: other ranks would wait for this one for ever.

    Returns:
        An optimizer of a class derived from that of ``optimizer``, with ``synchronize()``, ``skip_synchronize()`` and
        the attribute ``reduction``, a `GradientReduction`.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; on every rank alike.
    """
    transport = as_comm(comm)
    transport.guard()
    with same_on_all_ranks(transport) as say:
        if op not in OPS:
            raise ValueError(f"op must be one of {OPS}, got {op!r}")
        parameters = _ordered(optimizer, named_parameters)
        say(op=op, parameters=len(parameters))
    kind = type(optimizer)
    made: Any = object.__new__(type(kind.__name__, (_Reducing, kind), {}))
    # A scheduler made before has put a step of its own among the attributes, which would stand before the new one
    made.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    made._synchronizes, made._synchronized = True, False
    made.reduction = GradientReduction(
        parameters,
        density,
        k,
        transport,
        compression,
        bucket_cap_mb=bucket_cap_mb,
        overlap=overlap,
        passes=backward_passes_per_step,
        average=op == Average,
        in_place=in_place,
        scaler=scaler,
        memory=memory,
        clip_norm=clip_norm,
        nonfinite=nonfinite,
        **options,
    )
    return made


def broadcast_parameters(params: Any, root_rank: int = 0, comm: Any = None) -> None:
    """Give tensors the values they have on ``root_rank``, in place: a model starts alike on all ranks.

    Args:
        params: ``model.state_dict()`` (parameters and buffers) or ``model.named_parameters()``.

    Raises:
        ValueError: names, shapes or dtypes differ between ranks; on every rank alike.
    """
    transport = as_comm(comm)
    named = list(params.items() if isinstance(params, Mapping) else params)
    tensors = [(name, p) for name, p in named if isinstance(p, Tensor)]
    with same_on_all_ranks(transport) as say:
        say(params=" ".join(f"{name}:{tuple(p.shape)}:{p.dtype}" for name, p in tensors))
    with torch.no_grad():
        for _, p in tensors:
            flat = p.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            came = torch.from_numpy(transport.bcast(flat, root_rank))
            p.copy_(came.view(p.dtype).view(p.shape))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, comm: Any = None) -> None:
    """Give ``optimizer`` the state and options it has on ``root_rank``, as after loading a checkpoint there."""
    transport = as_comm(comm)
    file = io.BytesIO()
    if transport.rank == root_rank:
        torch.save(optimizer.state_dict(), file)
    came = transport.bcast(np.frombuffer(file.getvalue(), np.uint8), root_rank)
    if transport.rank != root_rank:
        optimizer.load_state_dict(torch.load(io.BytesIO(came.tobytes()), weights_only=True))


def _ordered(optimizer: Any, named: Iterable[tuple[str, Tensor]] | None) -> list[Tensor]:
    """The parameters of ``optimizer`` in the order of ``named``."""
    if isinstance(optimizer, _Reducing) or not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a plain torch.optim.Optimizer, got {type(optimizer).__name__}")
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if named is None:
        return held
    listed = list(named)
    names = [name for name, _ in listed]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"named_parameters must have unique names, got {twice[0]!r} twice; pass those of one model")
    mine = set(held)
    ordered = list(dict.fromkeys(p for _, p in listed if p in mine))  # tied ones may have several names
    if len(ordered) < len(mine):
        raise ValueError(
            f"named_parameters must have all {len(mine)} parameters of the optimizer, got {len(ordered)} of them; "
            "pass model.named_parameters() of the whole model, or leave it out"
        )
    return ordered
