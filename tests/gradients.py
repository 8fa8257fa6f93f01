"""The gradients that tests reduce where it does not matter what they are."""

from __future__ import annotations

import numpy as np


def gradient(rank: int, step: int, size: int, seed: int = 0) -> np.ndarray:
    """Return the normal gradient of a rank in a step: ``(size,)`` float32, the same whenever it is asked for."""
    return np.random.default_rng((seed, rank, step)).standard_normal(size).astype(np.float32)
