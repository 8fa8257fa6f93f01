"""Parameters of a model as one flat vector, and what is remembered of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from sparse_mpi.arrays import Array, synchronize_device, to_host
from sparse_mpi.feedback import Feedback
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.reduction.second_moment import SecondMoment
from sparse_mpi.sparse import SparseVector, leave


def local(tensor: Tensor) -> Tensor:
    """Return the part of ``tensor`` that this process holds: of a DTensor its shard, whose memory it shares."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def write_mean(total: SparseVector[Tensor] | Tensor, divisor: float, out: Tensor) -> Tensor:
    """Overwrite ``out`` ``(n,)`` with ``total / divisor``, zero where ``total`` has no entry; return it."""
    if isinstance(total, SparseVector):
        return out.zero_().index_copy_(0, total.indices.long(), (total.values / divisor).to(out.dtype))
    return out.copy_(total / divisor)


def mean_moment(moment: SecondMoment, divisor: float, like: Tensor) -> Tensor | None:
    """Return the second moment ``(n,)`` of the mean over the ranks, 0 where no entry has come; None before a step.

    That of a sum of gradients which are independent of each other is the sum of theirs.

    Args:
        moment: of a rank's own gradients, with the sums of the last result.
        divisor: makes sums over the ranks to means.
        like: a tensor on the device.
    """
    if moment.sums is None:
        return None
    sums = leave(moment.sums, like)
    values = sums.values if isinstance(sums, SparseVector) else sums
    return write_mean(sums, divisor**2, values.new_zeros(len(moment.mean)))


def keep_mean(feedback: Feedback, before: int, now: int) -> None:
    """Scale what ``feedback`` remembers, so that means over ``now`` ranks move a model as far as over those before."""
    for array in whole_state(feedback).values() if now != before else ():
        array *= now / before


def cut_by_tensor(arrays: Mapping[str, Array], sizes: Sequence[int]) -> list[dict[str, np.ndarray]]:
    """Return copies in host memory of arrays ``(n,)``, by name, cut into tensors of these ``sizes``."""
    ends = np.cumsum(sizes)[:-1]
    parts: dict[str, list[np.ndarray]] = {}
    for name, array in arrays.items():
        synchronize_device(array)
        parts[name] = np.split(to_host(array).copy(), ends)  # copies, for arrays of error feedback change in place
    return [{name: parts[name][number] for name in parts} for number in range(len(sizes))]


def joined(tensors: Sequence[Mapping[str, np.ndarray]], sizes: Sequence[int]) -> dict[str, np.ndarray]:
    """Invert `cut_by_tensor`; a tensor that lacks an array which others have counts as zeros."""
    names = {name: None for tensor in tensors for name in tensor}  # a dict keeps their order
    pairs = list(zip(tensors, sizes, strict=True))
    return {name: np.concatenate([t.get(name, np.zeros(n, np.float32)) for t, n in pairs]) for name in names}
