"""Check the options of a `GradientReduction`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from sparse_mpi.checks import check_range, check_switch, check_whole


def check_options(parameters: Sequence[Tensor], cap: float | None, passes: int, scaler: Any, **switches: bool) -> None:
    """Raise TypeError or ValueError unless gradients of ``parameters`` can be reduced with these options."""
    if not parameters:
        raise ValueError("parameters must have one that needs a gradient, got none; is the model frozen?")
    if cap is not None:
        check_range("bucket_cap_mb", cap, "(0, inf]", "None reduces everything at once")
    check_whole("backward_passes_per_step", passes, 1)
    for name, value in switches.items():
        check_switch(name, value)
    if switches["in_place"] and scaler is not None:
        raise ValueError("in_place must be False with a scaler, whose scale the residual must not have, got True")


def ordered(optimizer: Any, named: Iterable[tuple[str, Tensor]] | None) -> list[Tensor]:
    """Return the parameters of ``optimizer`` in the order of ``named``, by default in the optimizer's own.

    Raises:
        TypeError: ``optimizer`` is not a plain torch optimizer.
        ValueError: ``named`` lacks a parameter of the optimizer, or has a name twice.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a plain torch.optim.Optimizer, got {type(optimizer).__name__}")
    own = [p for group in optimizer.param_groups for p in group["params"]]
    if named is None:
        return own
    listed = list(named)
    names = [name for name, _ in listed]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"named_parameters must have unique names, got {twice[0]!r} twice; pass those of one model")
    wanted = set(own)
    ordered = list(dict.fromkeys(p for _, p in listed if p in wanted))  # tied ones may have several names
    if len(ordered) < len(wanted):
        raise ValueError(
            f"named_parameters must have all {len(wanted)} parameters of the optimizer, got {len(ordered)} of them; "
            "pass model.named_parameters() of the whole model, or leave it out"
        )
    return ordered
