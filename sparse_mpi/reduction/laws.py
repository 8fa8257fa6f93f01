"""Assert the two laws on a step of a running job, for the price of two dense allreduces."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from sparse_mpi.algorithms import Algorithm, Reduction
from sparse_mpi.arrays import Array, namespace, to_host
from sparse_mpi.comm import Comm
from sparse_mpi.feedback import Feedback
from sparse_mpi.sparse import SparseVector


class LawError(RuntimeError):
    """A step broke one of the two laws; raised on every rank alike.

    Attributes:
        entries: number of wrong entries of the sum, at least 1.
    """

    def __init__(self, message: str, entries: int = 1) -> None:
        super().__init__(message)
        self.entries = entries


def check_laws(reduction: Reduction, acc: Array, feedback: Feedback, algorithm: Algorithm, comm: Comm) -> None:
    # Agreement first: then all ranks check conservation against the same total, and raise alike
    total = reduction.total
    check_agreement(total, comm)
    if algorithm.traits.conserves:
        given, kept = feedback.contribution(acc, reduction.sent), 1 - feedback.traits.leak
        check_conservation(total, given, acc, comm, algorithm.traits.rounds_relative_to_norm, kept)


def check_agreement(total: SparseVector | Array, comm: Comm) -> None:
    parts = (total.indices, total.values) if isinstance(total, SparseVector) else (total,)
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(to_host(part).tobytes())
    # Ranks compare 16 bytes in place of whole totals
    digests = comm.allgather(np.frombuffer(digest.digest(), np.uint8), control=True)
    different = [rank for rank in range(comm.size) if (digests[rank] != digests[0]).any()]
    if different:
        text = f"law 1 (agreement) is broken: total on ranks {different} differs from rank 0's"
        raise LawError(text, max(1, _disagreeing(total, comm)))


def _disagreeing(total: SparseVector | Array, comm: Comm) -> int:
    """Return the number of entries with bits that differ between ranks. Collective; control."""
    dense = np.ascontiguousarray(to_host(total.to_dense() if isinstance(total, SparseVector) else total))
    bits = dense.view(f"i{dense.itemsize}")
    highest, lowest = comm.allreduce(bits, "max", control=True), ~comm.allreduce(~bits, "max", control=True)
    return int(np.count_nonzero(highest != lowest))


def check_conservation(
    total: SparseVector | Array, given: Array, acc: Array, comm: Comm, normwise: bool, kept: float = 1.0
) -> None:
    """Raise `LawError` unless the sum of ``given`` over the ranks is ``total``, to rounding.

    Args:
        total: the step's result.
        given: part ``(n,)`` of this rank's acc lost in the step.
        acc: acc ``(n,)`` before the step, which limits the precision of ``given``.
        comm: communicator of the step.
        normwise: True for an algorithm that multiplies matrices, where rounding is relative to norms: the norm of acc
            counts as a magnitude.
        kept: remaining share of a leaky residual, by which ``given`` was divided; 0 if it was not.

    The tolerance is for adding P + 2 numbers of the magnitudes really added, at least the least normal number, as
    subnormal ones are rounded absolutely. Elements with NaN or Inf are not checked.
    """
    xp = namespace(given)
    dense = total.to_dense() if isinstance(total, SparseVector) else total
    # given was divided by the leak, and so is the least normal number
    least = np.finfo(given.dtype).tiny / (kept or 1)
    with np.errstate(invalid="ignore", over="ignore"):
        lost = comm.allreduce(given, control=True) - dense  # given by ranks and missing in total: 0 but for rounding
        magnitude = xp.maximum(xp.abs(given) + xp.abs(acc) + (_norm(acc) if normwise else 0), given.dtype.type(least))
    allowed = comm.allreduce(magnitude, control=True) * (4 * (comm.size + 2) * np.finfo(given.dtype).eps)
    wrong = xp.flatnonzero(xp.isfinite(dense) & (xp.abs(lost) > allowed))
    if len(wrong):
        at = int(wrong[0])
        raise LawError(
            f"law 2 (nothing is lost) is broken at {len(wrong)} of {len(given)} elements: at index {at} the ranks gave "
            f"{float(lost[at] + dense[at]):.9g} and total has {float(dense[at]):.9g}",
            len(wrong),
        )


def _norm(acc: Array) -> Array:
    """Return the L2 norm of the finite elements of ``acc``, also where squares overflow or underflow."""
    xp = namespace(acc)
    finite = xp.where(xp.isfinite(acc), acc, 0).astype(np.float64)
    # Numbers of at most 1 are squared; tiny stands in where all are 0
    largest = xp.maximum(xp.abs(finite).max(), np.finfo(np.float64).tiny)
    finite /= largest
    return (largest * xp.sqrt(finite.dot(finite))).astype(acc.dtype)


def raise_nonfinite(total: SparseVector | Array) -> None:
    values = total.values if isinstance(total, SparseVector) else total
    bad = int(namespace(values).count_nonzero(~namespace(values).isfinite(values)))
    if bad:
        raise FloatingPointError(f"total has {bad} entries that are NaN or Inf; lower the loss scale or learning rate")
