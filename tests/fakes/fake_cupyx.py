"""``cupyx.scipy.sparse`` pretended: matrices that hold arrays of the `fake_device`, made of those of SciPy.

As in CuPy, values are of five types, and a COO matrix checks its indices, for which the host waits.
"""

from __future__ import annotations

import sys
from types import ModuleType

from .fake_array import asarray

TYPES = "?fdFD"


class _Matrix:
    """What matrices of all formats have."""

    format, parts = "", ("data",)
    dtype = property(lambda self: self.data.dtype)
    device = property(lambda self: self.data.device)

    def __init__(self, host) -> None:
        from scipy.sparse import issparse  # here, for a conftest imports this file where there is no SciPy, too

        assert issparse(host)
        host = host.asformat(self.format)
        if host.dtype.char not in TYPES:
            raise ValueError("Only bool, float32, float64, complex64 and complex128 are supported")
        self.shape = host.shape
        for part in self.parts:
            setattr(self, part, asarray(getattr(host, part)))


class coo_matrix(_Matrix):
    format, parts = "coo", ("data", "row", "col")

    def __init__(self, host) -> None:
        super().__init__(host)
        self.has_canonical_format = host.has_canonical_format
        if len(self.data):
            assert self.row.max() < self.shape[0] and self.col.max() < self.shape[1]
            assert self.row.min() >= 0 and self.col.min() >= 0


class csr_matrix(_Matrix):
    format, parts = "csr", ("data", "indices", "indptr")


class csc_matrix(csr_matrix):
    format = "csc"


class dia_matrix(_Matrix):
    format, parts = "dia", ("data", "offsets")


def install(monkeypatch) -> None:
    """On top of `fake_array.install`."""
    sparse = ModuleType("cupyx.scipy.sparse")
    sparse.issparse = lambda x: isinstance(x, _Matrix)
    for made in (coo_matrix, csr_matrix, csc_matrix, dia_matrix):
        setattr(sparse, made.__name__, made)
    monkeypatch.setitem(sys.modules, "cupyx.scipy.sparse", sparse)
