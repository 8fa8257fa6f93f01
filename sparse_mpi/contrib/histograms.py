"""Filled bins of boost-histogram: ``sparse_mpi.allreduce(histogram_entries(histogram))``."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np

from sparse_mpi.arrays import describe
from sparse_mpi.collectives.entries import Entries
from sparse_mpi.collectives.kinds import Adaptable, InputAdapter, checked

STORAGES = ("Int64", "AtomicInt64", "Double", "Weight")  # storages whose numbers add up


class _HistogramEntries(Adaptable):
    """A histogram's filled bins, as keys and values; see `histogram_entries`."""

    def __init__(self, histogram: Any) -> None:
        self.histogram = histogram

    def adapt(self) -> InputAdapter:
        """Return the filled bins, under- and overflow too.

        Raises:
            TypeError: it is no histogram, or its storage has numbers that do not add up, for example means.
        """
        x = self.histogram
        if not hasattr(x, "storage_type"):
            raise TypeError(f"histogram must be a boost_histogram.Histogram, got {describe(x)}")
        storage = x.storage_type.__name__
        if storage not in STORAGES:
            known = ", ".join(STORAGES)
            raise TypeError(f"histogram must have a storage of {known}, whose numbers add up, got {storage}")
        bins = _bins(x)
        filled = np.flatnonzero(bins if bins.ndim == 1 else bins.any(axis=1))

        def leave(result: Entries) -> Any:
            made = x.copy().reset()
            _bins(made)[result.keys] = result.values
            return made

        # An axis prints only some digits of its edges
        edges = b"".join(np.ascontiguousarray(axis.edges).tobytes() for axis in x.axes)
        facts = {"kind": f"{type(x).__name__} of {storage}", "axes": [*x.axes]}
        facts["digest of edges"] = blake2b(edges, digest_size=4).hexdigest()
        return checked(filled, bins[filled], facts, leave)


def histogram_entries(histogram: Any) -> Any:
    """Return the filled bins of a histogram for `sparse_mpi.allreduce` and others, which return a histogram.

    Args:
        histogram: a `boost_histogram.Histogram` of storage Int64, AtomicInt64, Double or Weight, with the same axes on
            all ranks. It is not modified. Errors are raised by the call, on every rank.
    """
    return _HistogramEntries(histogram)


def _bins(x: Any) -> np.ndarray:
    """Return a view of a histogram's numbers, with under- and overflow; (n, 2) for `Weight`."""
    flat = x.view(flow=True).view(np.ndarray).T.reshape(-1)  # the first axis is the fastest
    return flat if flat.dtype.names is None else flat.view(np.float64).reshape(-1, 2)
