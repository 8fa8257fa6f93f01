"""Small programs in PTX, written by hand, and their launches."""

from __future__ import annotations

import numpy as np

from .buffers import Buffers
from .machine import Counts
from .text import module, width_of

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


def computed(text: str, kinds: tuple[str, ...], inputs: list[np.ndarray]) -> np.ndarray:
    """Return what one instruction makes of inputs, a thread each: %d of %a, %b and %c, whose types ``kinds`` has."""
    names, count = "dabc"[: len(kinds)], len(inputs[0])
    registers = "".join(f".reg .b{max(16, width_of(kind))} %{name};" for name, kind in zip(names, kinds, strict=True))
    header = ", ".join(f".param .u64 {name}" for name in names)
    code = "mov.u32 %r0, %tid.x; cvt.u64.u32 %l0, %r0;"
    for name, kind in zip(names, kinds, strict=True):
        code += f"ld.param.u64 %l1, [{name}]; mad.lo.s64 %l2, %l0, {width_of(kind) // 8}, %l1;"
        code += f"ld.global.{kind} %{name}, [%l2];" if name != "d" else "mov.u64 %l3, %l2;"
    code += f"{text}; st.global.{kinds[0]} [%l3], %d; ret;"
    kernel = module(f".visible .entry one({header}) {{ {REGISTERS} {registers} {code} }}")["one"]
    padded = [np.concatenate([part, np.repeat(part[-1:], -count % 32)]) for part in inputs]
    result = np.zeros(len(padded[0]), f"u{width_of(kinds[0]) // 8}")
    Buffers(kernel, [result, *padded]).launch([result, *padded], 1, len(result))
    return result[:count]
