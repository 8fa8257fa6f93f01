"""Steps of one rank's feedback rule, without an algorithm."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from sparse_mpi import kernels
from sparse_mpi.feedback import ErrorFeedback
from sparse_mpi.sparse import Layout, SparseVector

RANKS = 2
# Multiples of 1/4 with few digits: sums and halves of them are exact, so that laws hold to the bit
QUARTERS = st.lists(st.integers(-400, 400).map(lambda i: i / 4), min_size=5, max_size=5).map(np.array)
STEPS = st.lists(st.tuples(QUARTERS, st.sets(st.integers(0, 4))), min_size=1, max_size=6)


def joined(memory, gradient):
    acc, missing = memory.accumulate(gradient)
    if missing is not None:
        kernels.of(acc).accumulate(acc, missing)
    return acc


def started(memory=None, size=5):
    return (memory or ErrorFeedback()).start(Layout.of(size), RANKS)


def consume(feedback, sent):
    """End a step in which this rank was the only one that sent anything."""
    feedback.consume(sent, sent)


def sparse(indices, values, size):
    return SparseVector(np.array(indices, np.int32), np.array(values), size)


def picked(acc, chosen):
    return sparse(sorted(chosen), acc[sorted(chosen)], len(acc))
