"""Check the options of a `GradientReduction`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def check_options(parameters: Sequence[Tensor], cap: float | None, passes: int, in_place: bool, scaler: Any) -> None:
    """Raise ValueError unless gradients of ``parameters`` can be reduced with these options."""
    if not parameters:
        raise ValueError("parameters must have one that needs a gradient, got none; is the model frozen?")
    if cap is not None and not cap > 0:
        raise ValueError(f"bucket_cap_mb must be above 0, got {cap}; None reduces everything at once")
    if passes < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, got {passes}")
    if in_place and scaler is not None:
        raise ValueError("in_place must be False with a scaler, whose scale the residual must not have, got True")
