"""What is carried to a machine with a GPU: a library of CUDA with the code for one kind of GPU."""

from __future__ import annotations

import struct

import pytest

from runs.gpu_check.carry import FATBIN, prune

PTX, CODE = 1, 2


def entry(kind: int, arch: int, code: bytes, header: int = 64) -> bytes:
    fields = struct.pack("<HHIQIIII", kind, 257, header, len(code), len(code), 0, 65544, arch)
    return fields.ljust(header, b"h") + code


def fat(*entries: bytes) -> bytes:
    return FATBIN + struct.pack("<HHQ", 1, 16, sum(map(len, entries))) + b"".join(entries)


def library(old: bytes, ours: bytes, ptx: bytes, new: bytes) -> bytes:
    first = fat(entry(CODE, 80, old), entry(CODE, 90, ours), entry(PTX, 90, ptx), entry(CODE, 100, new, header=112))
    return b"\x7fELF" + first + b"between" + fat(entry(CODE, 100, new, header=104)) + b"end"


def test_code_of_other_gpus_is_zeroed_and_the_rest_stays():
    # Code may look like the head of a fat binary, which is no reason to begin anew there
    old, ours, ptx, new = b"a" * 8, FATBIN * 6, b".version", b"c" * 24
    image = bytearray(library(old, ours, ptx, new))
    assert prune(image, 90) == len(ours)
    assert image == library(bytes(8), ours, bytes(8), bytes(24))


def test_a_library_without_code_for_the_gpu_is_refused():
    with pytest.raises(ValueError, match="no code for sm_70"):
        prune(bytearray(library(b"a" * 8, b"b" * 8, b"p" * 8, b"c" * 8)), 70)


def test_an_entry_beyond_its_fat_binary_is_refused():
    image = bytearray(fat(entry(CODE, 90, b"a" * 8)))
    struct.pack_into("<Q", image, 16 + 8, 16)
    with pytest.raises(ValueError, match="reaches 8 bytes beyond"):
        prune(image, 90)
