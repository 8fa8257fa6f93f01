"""How many entries a selector must return."""

from __future__ import annotations

import numpy as np

from sparse_mpi.select.base import Selector


def in_band(selector: Selector, count: int, k: int, x: np.ndarray) -> bool:
    """The band holds on any ``x``, except that zeros need not be selected where positions may differ."""
    fewest = np.floor(selector.band[0] * k)
    if not selector.patterned and not selector.shared:
        fewest = min(fewest, np.count_nonzero(x))
    return fewest <= count <= np.ceil(selector.band[1] * k)
