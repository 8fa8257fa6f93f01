"""MPI datatypes of rows: messages are counted in rows, so that they may have more than 2^31 bytes."""

from __future__ import annotations

from typing import Any

from sparse_mpi.arrays import Array
from sparse_mpi.comm.buffers import row_bytes

CHUNK = 2**30  # rows or elements of one MPI message


class RowTypes:
    """The datatypes of rows of any number of bytes, made when they are first needed."""

    def __init__(self, MPI: Any) -> None:
        self._mpi = MPI
        self._made: dict[int, Any] = {}

    def of(self, size: int) -> Any:
        """Return the MPI datatype of ``size`` bytes."""
        rowtype = self._made.get(size)
        if rowtype is None:
            rowtype = self._made[size] = self._mpi.BYTE.Create_contiguous(size).Commit()
        return rowtype

    def pieces(self, rows: Array) -> list[list[Any]]:
        """Cut ``rows`` into MPI messages; the last one is shorter than ``CHUNK`` and may be empty."""
        rowtype = self.of(row_bytes(rows))
        if len(rows) < CHUNK:
            return [[rows, len(rows), rowtype]]
        cuts = range(0, len(rows) + 1, CHUNK)
        return [[rows[at : at + CHUNK], min(CHUNK, len(rows) - at), rowtype] for at in cuts]

    def free(self) -> None:
        """Free all datatypes."""
        for rowtype in self._made.values():
            rowtype.Free()
        self._made.clear()
