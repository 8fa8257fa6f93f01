"""Adam for entries that arrive late, by whole-array functions; training/adam_steps.py explains them.

A table has a row for each tensor of a vector, with the columns below.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array

NAMES = (
    "MOVES",  # 1 where the tensor moves, 0 where it stays as it is
    "STEP",  # number of this step
    "RATE",  # learning rate
    "SIGN",  # 1, or -1 to maximize
    "BETA1",
    "BETA2",
    "EPS",
    "DECAY",  # weight decay that is part of the gradient
    "BIAS",  # 1 minus the weight of the zeros with which second moments began
    "FACTOR",  # multiplies second moments that travel
    "NOW",  # NAdam's beta of this step
    "NEXT",  # NAdam's beta of the next one
    "PRODUCT",  # NAdam's product of these betas so far
)
COLUMNS = len(NAMES)
MOVES, STEP, RATE, SIGN, BETA1, BETA2, EPS, DECAY, BIAS, FACTOR, NOW, NEXT, PRODUCT = range(COLUMNS)
ADAM, NADAM, RMSPROP = range(3)  # kinds of a step


def adam(
    kind: int,
    gradient: Array,
    arrived: Array | None,
    seconds: Array | None,
    state: tuple[Array, Array, Array],
    weights: Array | None,
    table: np.ndarray,
    ends: np.ndarray,
    update: Array,
) -> Array | None:
    rest, squares, last = state
    dense = seconds if seconds is None or len(seconds) == len(gradient) else spread(gradient, arrived, seconds)
    at = entries(gradient, arrived)
    owners = np.searchsorted(ends, at, side="right")
    moves = table[owners, MOVES] > 0
    at, row = at[moves], table[owners[moves]].T
    total = row[SIGN] * gradient[at].astype(np.float64)
    with np.errstate(all="ignore"):
        if kind == RMSPROP:
            moment, moved = row[BIAS] * _travelled(dense, at, row, total), total
        else:
            waited = row[STEP].astype(np.int64) - last[at]
            if weights is not None:
                total += row[DECAY] * waited * weights[at]
            # Second moment of equal gradients in all steps of the wait: Adam's own where all come in every step
            mean = total / waited
            moment = (mean**2 + (squares[at] - mean**2) * _power_of(row[BETA2], waited)) / row[BIAS]
            if dense is not None:
                late = waited > 1 if arrived is None else np.ones(len(at), bool)
                moment = np.where(late, _travelled(dense, at, row, total), moment)
            # Filter: the rest of earlier arrivals comes along, and a part stays for later ones
            beta, power = row[BETA1], waited**2
            stays = _power_of(beta, power)
            gathered = total + beta / (1 - beta) * rest[at]
            moved = (1 - stays) * gathered
            if kind == NADAM:
                own = (1 - _power_of(row[NOW], power)) * total / (1 - row[PRODUCT])
                moved = own + _power_of(row[NEXT], power) * moved / (1 - row[PRODUCT] * row[NEXT])
            else:
                moved /= 1 - stays * _power_of(beta, last[at])  # all of it, where nothing has come before
            # In torch's measure: moments that begin at 0
            rest[at] = (1 - beta) * _power_of(beta, power - 1) * gathered
            squares[at] = moment * row[BIAS]
            last[at] = row[STEP]
        update[at] = row[RATE] * moved / (np.sqrt(moment) + row[EPS])
    return None if arrived is None else at


def entries(gradient: Array, arrived: Array | None) -> Array:
    """Return ascending entries: all if ``arrived`` is None, else those and entries with a nonzero gradient."""
    if arrived is None:
        return np.arange(len(gradient))
    mask = gradient != 0
    mask[arrived] = True
    return np.flatnonzero(mask)


def _power_of(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Return ``base**exponent`` for whole exponents >= 0, with the same bits from all kernels."""
    result, rest = np.ones_like(base), exponent.astype(np.int64)
    while rest.any():
        result = np.where(rest & 1, result * base, result)
        base, rest = base * base, rest >> 1
    return result


def spread(gradient: Array, arrived: Array | None, seconds: Array) -> Array:
    """Return ``seconds`` ``(m,)`` at the ``arrived`` entries of a vector as long as ``gradient``, and 0 elsewhere."""
    dense = np.zeros_like(gradient)
    dense[arrived] = seconds
    return dense


def _travelled(seconds: Array | None, at: Array, row: np.ndarray, total: Array) -> Array:
    """Return second moments; where they are 0, as after additions to a gradient, its square."""
    if seconds is None:
        raise ValueError("seconds must have travelled where there are no second moments, got None")
    second = seconds[at] * row[FACTOR].astype(seconds.dtype)
    return np.where(second == 0, total**2, second.astype(np.float64))
