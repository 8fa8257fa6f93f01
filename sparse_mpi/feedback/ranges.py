"""Check that a hyperparameter is a number between 0 and 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

INTERVALS: dict[str, Callable[[Any], bool]] = {
    "[0, 1)": lambda x: 0 <= x < 1,
    "(0, 1]": lambda x: 0 < x <= 1,
    "[0, 1]": lambda x: 0 <= x <= 1,
}


def check_range(name: str, value: Any, interval: str, usual: str) -> None:
    """Raise TypeError or ValueError unless ``value`` is a number in ``interval``.

    Args:
        name: of the argument.
        value: what was given for it.
        interval: a key of `INTERVALS`.
        usual: the end of the message, which says what to give.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} must be a number in {interval}, got {value!r}")
    if not INTERVALS[interval](value):
        raise ValueError(f"{name} must be in {interval}, got {value}; {usual}")
