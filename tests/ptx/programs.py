"""Small programs in PTX, written by hand, and their launches."""

from __future__ import annotations

import numpy as np

from .buffers import Buffers
from .machine import Counts
from .text import module

REGISTERS = "".join(f".reg .{kind} %{name}<20>;" for name, kind in (("p", "pred"), ("h", "b16"), ("r", "b32")))
REGISTERS += ".reg .b64 %l<20>; .reg .f32 %f<20>; .reg .f64 %d<20>;"
# %r0 the number of a thread in its block, %r1 of its block, %l0 and %l1 the addresses of the two arrays, and %l2 and
# %l3 those of the thread's own words of 4 bytes in them
FIRST = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mad.lo.u32 %r3, %r1, %r2, %r0;
    ld.param.u64 %l0, [given];
    ld.param.u64 %l1, [found];
    mul.wide.u32 %l4, %r3, 4;
    add.s64 %l2, %l0, %l4;
    add.s64 %l3, %l1, %l4;
"""


def run(
    body: str, given: np.ndarray, found: np.ndarray, blocks: int = 1, threads: int = 32, written: bool = True, **options
) -> Counts:
    """Run a program; a part before `---` declares variables. Nobody has ``written`` what is in ``found``, or so."""
    variables, _, body = body.rpartition("---")
    header = ".visible .entry program(.param .u64 given, .param .u64 found)"
    kernel = module(f"{variables} {header} {{ {REGISTERS} {FIRST} {body} ret; }}")["program"]
    defined = [None, None if written else np.zeros(found.nbytes, bool)]
    return Buffers(kernel, [given, found], defined).launch([given, found], blocks, threads, **options)
