"""Message formats turn a `SparseVector` into contiguous buffers and back; no other code reads messages."""

from __future__ import annotations

from sparse_mpi.checks import Registry
from sparse_mpi.wire.base import Packed, SizeBound, Wire, pack_whole, unpack_whole
from sparse_mpi.wire.codecs import BFloat16, Float16, Int2, Int4, Int8
from sparse_mpi.wire.coo import Coo, decode, encode, pair_bytes
from sparse_mpi.wire.packed import BitPacked

WIRES = Registry(
    "wire",
    {
        "coo32": Coo(),
        "packed": BitPacked(),
        "packed+bf16": BitPacked(BFloat16()),
        "packed+fp16": BitPacked(Float16()),
        "packed+int8": BitPacked(Int8()),
        "packed+int4": BitPacked(Int4()),
        "packed+int2": BitPacked(Int2()),
    },
)

__all__ = [
    "WIRES",
    "BFloat16",
    "BitPacked",
    "Coo",
    "Float16",
    "Int2",
    "Int4",
    "Int8",
    "SizeBound",
    "Packed",
    "Wire",
    "decode",
    "encode",
    "pack_whole",
    "pair_bytes",
    "unpack_whole",
]
