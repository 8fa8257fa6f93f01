"""Check the options of a `GradientReduction`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

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
