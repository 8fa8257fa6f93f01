"""Adam for entries that arrive late, in one pass over them."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.adam import (
    BETA1,
    BETA2,
    BIAS,
    DECAY,
    EPS,
    FACTOR,
    MOVES,
    NADAM,
    NEXT,
    NOW,
    PRODUCT,
    RATE,
    RMSPROP,
    SIGN,
    STEP,
    entries,
    spread,
)
from sparse_mpi.kernels.cpu.counts import count
from sparse_mpi.kernels.cpu.first_use import compiled

WORK = 16  # entries of other passes that cost as much as one of this
ONE = np.ones(1, np.int64)


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
    none, at = gradient[:0], np.empty(0, np.int64) if arrived is None else arrived
    # The caller may have added to other entries than arrived
    if arrived is not None and count(gradient, ONE)[0] > np.count_nonzero(gradient[arrived]):
        at = entries(gradient, arrived)
        if seconds is not None and len(seconds) < len(gradient):
            seconds = spread(gradient, arrived, seconds)
    given = gradient, at, none if seconds is None else seconds, *state, none if weights is None else weights
    size = len(gradient) if arrived is None else len(at)
    threads.each(
        lambda lo, hi: _adam(kind, lo, hi, arrived is None, *given, table, ends, update),
        threads.parts(size, weight=WORK),
    )
    return None if arrived is None else at


@compiled
def _power_of(base, exponent):
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@compiled
def _adam(kind, lo, hi, whole, gradient, arrived, seconds, rest, squares, last, weights, table, ends, update):
    dense, own, owner, until = seconds.size == gradient.size, table[0], -1, np.int64(0)
    for j in range(lo, hi):
        i = j if whole else np.int64(arrived[j])
        if i >= until:
            owner = np.searchsorted(ends, i, side="right")
            own, until = table[owner], ends[owner]
        if own[MOVES] == 0:
            continue
        total, moment = own[SIGN] * np.float64(gradient[i]), 0.0
        step, beta, moved = own[STEP], own[BETA1], total
        waited = np.int64(1) if kind == RMSPROP else np.int64(step) - last[i]
        if weights.size:
            total += own[DECAY] * waited * weights[i]
        travelled = seconds.size and (kind == RMSPROP or not whole or waited > 1)
        if travelled:
            second = (seconds[i] if dense else seconds[j]) * seconds.dtype.type(own[FACTOR])
            moment = total * total if second == 0 else np.float64(second)
        if kind == RMSPROP:
            moment *= own[BIAS]
        else:
            if not travelled:
                mean = total / waited
                moment = (mean * mean + (squares[i] - mean * mean) * _power_of(own[BETA2], waited)) / own[BIAS]
            power = waited * waited
            stays = _power_of(beta, power)
            gathered = total + beta / (1 - beta) * rest[i]
            moved = (1 - stays) * gathered
            if kind == NADAM:
                ahead = _power_of(own[NEXT], power) * moved / (1 - own[PRODUCT] * own[NEXT])
                moved = (1 - _power_of(own[NOW], power)) * total / (1 - own[PRODUCT]) + ahead
            else:
                moved /= 1 - stays * _power_of(beta, np.int64(last[i]))
            rest[i] = (1 - beta) * _power_of(beta, power - 1) * gathered
            squares[i] = moment * own[BIAS]
            last[i] = np.int32(step)
        update[i] = own[RATE] * moved / (np.sqrt(moment) + own[EPS])
