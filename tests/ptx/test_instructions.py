"""Instructions of PTX, one at a time, against results that are written down here or computed in another way."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from .arithmetic import TYPES
from .memory import Fault
from .programs import computed
from .text import width_of

TINY, LOW = 1e-40, 2.0**-149  # subnormal numbers of single precision
KNOWN = [  # instruction, types of its result and sources, numbers of each source, results
    ("add.s32 %d, %a, %b", "s32 s32 s32", [[1, -3, 2**31 - 1], [2, -4, 1]], [3, -7, -(2**31)]),
    ("add.s64 %d, %a, -8", "s64 s64", [[1, -3]], [-7, -11]),
    ("sub.s32 %d, %a, %b", "s32 s32 s32", [[1, -(2**31)], [2, 1]], [-1, 2**31 - 1]),
    ("mul.lo.s32 %d, %a, %b", "s32 s32 s32", [[7, -3, 65536], [6, 5, 65536]], [42, -15, 0]),
    ("mul.wide.s32 %d, %a, %b", "s64 s32 s32", [[-3, 2**30], [5, 4]], [-15, 2**32]),
    ("mul.wide.u32 %d, %a, %b", "u64 u32 u32", [[2**32 - 1], [2**32 - 1]], [(2**32 - 1) ** 2]),
    ("mul.wide.u16 %d, %a, %b", "u32 u16 u16", [[65535], [65535]], [65535**2]),
    ("mad.lo.u32 %d, %a, %b, %c", "u32 u32 u32 u32", [[3], [4], [5]], [17]),
    ("div.s64 %d, %a, %b", "s64 s64 s64", [[7, -7, 7, -7, 6], [2, 2, -2, -2, 3]], [3, -3, -3, 3, 2]),
    ("div.u32 %d, %a, %b", "u32 u32 u32", [[2**32 - 1, 5], [2, 7]], [2**31 - 1, 0]),
    ("rem.s32 %d, %a, %b", "s32 s32 s32", [[7, -7], [2, 2]], [1, -1]),
    ("min.s32 %d, %a, %b", "s32 s32 s32", [[-1, 5], [3, 4]], [-1, 4]),
    ("max.u32 %d, %a, %b", "u32 u32 u32", [[2**32 - 1, 5], [3, 6]], [2**32 - 1, 6]),
    ("neg.s64 %d, %a", "s64 s64", [[3, -4]], [-3, 4]),
    ("and.b32 %d, %a, %b", "u32 u32 u32", [[12, 7], [10, 8]], [8, 0]),
    ("or.b64 %d, %a, %b", "u64 u64 u64", [[12], [2**40]], [2**40 + 12]),
    ("xor.b32 %d, %a, %b", "u32 u32 u32", [[12], [10]], [6]),
    ("not.b32 %d, %a", "u32 u32", [[0, 1]], [2**32 - 1, 2**32 - 2]),
    ("shl.b32 %d, %a, %b", "u32 u32 u32", [[1, 1, 1, 3], [0, 31, 32, 31]], [1, 2**31, 0, 2**31]),
    ("shl.b64 %d, %a, %b", "u64 u64 u32", [[1, 1], [40, 64]], [2**40, 0]),
    ("shr.u32 %d, %a, %b", "u32 u32 u32", [[2**31, 2**31, 5], [31, 40, 1]], [1, 0, 2]),
    ("shr.s32 %d, %a, %b", "s32 s32 u32", [[-8, -8, 8], [1, 40, 40]], [-4, -1, 0]),
    ("shr.s64 %d, %a, 63", "s64 s64", [[-8, 8]], [-1, 0]),
    ("brev.b32 %d, %a", "u32 u32", [[1, 2, 2**31]], [2**31, 2**30, 1]),
    ("popc.b32 %d, %a", "u32 u32", [[0, 255, 2**32 - 1]], [0, 8, 32]),
    ("popc.b64 %d, %a", "u32 u64", [[2**64 - 1, 2**40]], [64, 1]),
    ("clz.b32 %d, %a", "u32 u32", [[0, 1, 2**31]], [32, 31, 0]),
    ("clz.b64 %d, %a", "u32 u64", [[0, 1, 2**40]], [64, 63, 23]),
    ("bfind.shiftamt.u32 %d, %a", "u32 u32", [[0, 1, 2**31]], [2**32 - 1, 31, 0]),
    ("bfi.b32 %d, %a, %b, 4, 8", "u32 u32 u32", [[0xFFF, 0], [0, 0xFFFF]], [0xFF0, 0xF00F]),
    ("bfi.b64 %d, %a, %b, 32, 32", "u64 u64 u64", [[5], [7]], [(5 << 32) + 7]),
    ("prmt.b32 %d, %a, %b, 0x5410", "u32 u32 u32", [[0x33221100], [0x77665544]], [0x55441100]),
    ("prmt.b32 %d, %a, %b, 0xb000", "u32 u32 u32", [[0x80000011], [0]], [0xFF111111]),
    ("selp.b32 %d, %a, %b, %p1", "u32 u32 u32", [[1, 2], [3, 4]], [3, 4]),  # nobody sets %p1
    ("setp.lt.s32 %p2, %a, %b; selp.u32 %d, 1, 0, %p2", "u32 s32 s32", [[-1, 1, 2], [1, -1, 2]], [1, 0, 0]),
    ("setp.gt.u32 %p2, %a, %b; selp.u32 %d, 1, 0, %p2", "u32 u32 u32", [[2**31, 1], [1, 1]], [1, 0]),
    ("setp.eq.s16 %p2, %a, 7; selp.u32 %d, 1, 0, %p2", "u32 s16", [[7, -7]], [1, 0]),
    ("setp.ne.s64 %p2, %a, 7; selp.u32 %d, 1, 0, %p2", "u32 s64", [[7, -7]], [0, 1]),
    ("setp.ge.f32 %p2, %a, 0f3F800000; selp.u32 %d, 1, 0, %p2", "u32 f32", [[2, 1, 0.5, np.nan]], [1, 1, 0, 0]),
    ("setp.leu.f32 %p2, %a, 0f3F800000; selp.u32 %d, 1, 0, %p2", "u32 f32", [[2, 1, 0.5, np.nan]], [0, 1, 1, 1]),
    ("setp.neu.f64 %p2, %a, %a; selp.u32 %d, 1, 0, %p2", "u32 f64", [[2, np.nan]], [0, 1]),
    ("setp.lt.s32 %p2, %a, 0; not.pred %p3, %p2; selp.u32 %d, 1, 0, %p3", "u32 s32", [[-1, 1]], [0, 1]),
    ("setp.lt.s32 %p2, %a, 5; setp.gt.s32 %p3, %a, 0; and.pred %p4, %p2, %p3; selp.u32 %d, 1, 0, %p4", "u32 s32",
     [[-1, 1, 6]], [0, 1, 0]),
    ("add.f32 %d, %a, %b", "f32 f32 f32", [[1, LOW, np.inf], [2, LOW, 1]], [3, 2 * LOW, np.inf]),
    ("add.ftz.f32 %d, %a, %b", "f32 f32 f32", [[1, TINY, -TINY, 2e-38], [2, 1, -0.0, -1.5e-38]], [3, 1, -0.0, 0]),
    ("sub.f64 %d, %a, %b", "f64 f64 f64", [[1], [1e-17]], [1]),
    ("mul.f32 %d, %a, %b", "f32 f32 f32", [[2.0**-100, 3], [2.0**-49, 4]], [LOW, 12]),
    ("mul.ftz.f32 %d, %a, %b", "f32 f32 f32", [[2.0**-100, LOW], [2.0**-49, 2.0**126]], [0, 0]),
    ("mul.rn.f64 %d, %a, %b", "f64 f64 f64", [[0.1], [3]], [0.1 * 3]),
    ("div.rn.f32 %d, %a, %b", "f32 f32 f32", [[1, 1], [3, 0]], [np.float32(1) / np.float32(3), np.inf]),
    ("sqrt.rn.f32 %d, %a", "f32 f32", [[2, 4]], [np.sqrt(np.float32(2)), 2]),
    ("min.f32 %d, %a, %b", "f32 f32 f32", [[0.0, -0.0, np.nan, 3], [-0.0, 0.0, 1, 2]], [-0.0, -0.0, 1, 2]),
    ("max.f32 %d, %a, %b", "f32 f32 f32", [[0.0, -0.0, np.nan, 3], [-0.0, 0.0, 1, 2]], [0.0, 0.0, 1, 3]),
    ("neg.f32 %d, %a", "f32 f32", [[0.0, 2]], [-0.0, -2]),
    ("rcp.approx.ftz.f64 %d, %a", "f64 f64", [[4, 0, 1e-310]], [0.25, np.inf, np.inf]),
    ("cvt.s64.s8 %d, %a", "s64 s8", [[-3, 4]], [-3, 4]),
    ("cvt.s32.s16 %d, %a", "s32 s16", [[-3, 4]], [-3, 4]),
    ("cvt.u32.u16 %d, %a", "u32 u16", [[65533]], [65533]),
    ("cvt.u64.u32 %d, %a", "u64 u32", [[2**32 - 1]], [2**32 - 1]),
    ("cvt.u32.u64 %d, %a", "u32 u64", [[2**40 + 5]], [5]),
    ("cvt.s64.s32 %d, %a", "s64 s32", [[-5]], [-5]),
    ("cvt.u16.u32 %d, %a", "u16 u32", [[65536 + 3]], [3]),
    ("cvt.f64.f32 %d, %a", "f64 f32", [[TINY, 1.5]], [np.float32(TINY), 1.5]),
    ("cvt.ftz.f64.f32 %d, %a", "f64 f32", [[TINY, 1.5]], [0, 1.5]),
    ("cvt.rn.f32.f64 %d, %a", "f32 f64", [[1 + 2.0**-24, 1 + 3 * 2.0**-24]], [1, 1 + 2.0**-22]),
    ("cvt.rn.f32.u64 %d, %a", "f32 u64", [[2**24 + 1, 2**63]], [2**24, 2.0**63]),
    ("cvt.rn.f32.u32 %d, %a", "f32 u32", [[2**24 + 3]], [2**24 + 4]),
    ("cvt.rmi.f32.f32 %d, %a", "f32 f32", [[1.5, -1.5]], [1, -2]),
    ("cvt.rzi.s32.f32 %d, %a", "s32 f32", [[1.9, -1.9, 1e10, -1e10, np.nan]], [1, -1, 2**31 - 1, -(2**31), 0]),
    ("cvt.rzi.u32.f32 %d, %a", "u32 f32", [[1.9, -1.9, 1e10]], [1, 0, 2**32 - 1]),
    ("cvt.rzi.u64.f32 %d, %a", "u64 f32", [[2.0**40, 1e30]], [2**40, 2**64 - 1]),
    ("mov.b64 {%r1, %r2}, %a; mov.b64 %d, {%r2, %r1}", "u64 u64", [[(5 << 32) + 7]], [(7 << 32) + 5]),
    ("mov.u32 %d, 7; @%p1 mov.u32 %d, %a; @!%p1 add.u32 %d, %d, 1", "u32 u32", [[1]], [8]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kinds", "inputs", "expected"), KNOWN, ids=[row[0].split(" %")[0] for row in KNOWN])
def test_an_instruction_gives_what_is_known(text, kinds, inputs, expected):
    kinds = tuple(kinds.split())
    given = [np.array(numbers, TYPES[kind]) for kind, numbers in zip(kinds[1:], inputs, strict=True)]
    wanted = np.array(expected, TYPES[kinds[0]])
    assert computed(text, kinds, given).tobytes() == wanted.tobytes()


NO_NUMBERS = [0x7FC00000, 0xFFC00001, 0x7FFFFFFF]
NO_DOUBLES = [0x7FF8000000000000, 0xFFF8000000000001, 0x7FFFFFFFFFFFFFFF]


@pytest.mark.parametrize(
    ("text", "kinds", "found"),
    [(f"{name}.f32 %d, %a, %b", "f32 f32 f32", 0x7FFFFFFF) for name in ("add", "mul", "div.rn", "min", "max")]
    + [("cvt.rn.f32.f64 %d, %a", "f32 f64", 0x7FFFFFFF), ("cvt.f64.f32 %d, %a", "f64 f32", 0x7FFFFFFFE0000000)]
    + [("sqrt.rn.f32 %d, %a", "f32 f32", 0x7FFFFFFF)],
)
def test_what_is_no_number_has_one_pattern_of_bits_in_single_precision(text, kinds, found):
    """And keeps it in double precision: one H200 has widened NaN to other bits than its host did."""
    kinds = tuple(kinds.split())
    given = [np.array(NO_DOUBLES if kind == "f64" else NO_NUMBERS, f"u{width_of(kind) // 8}") for kind in kinds[1:]]
    assert computed(text, kinds, given).tolist() == [found] * 3
    if text.startswith("add"):
        assert computed(text, kinds, [np.array([x], np.float32) for x in (np.inf, -np.inf)]).tolist() == [found]


def test_a_fused_multiplication_is_rounded_once():
    """Against fractions; also where the product and the sum nearly cancel."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 512)) * 2.0 ** rng.integers(-40, 40, (2, 512))
    c = np.where(np.arange(512) % 2, -a * b * (1 + 2.0**-50), rng.standard_normal(512))
    found = computed("fma.rn.f64 %d, %a, %b, %c", ("f64",) * 4, [a, b, c]).view(np.float64)
    exact = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert found.tolist() == exact and found.tolist() != (a * b + c).tolist()


@pytest.mark.parametrize(
    "text",
    ["add.sat.s32 %d, %a, %b", "fma.rn.f32 %d, %a, %b, %a", "lop3.b32 %d, %a, %b, %a, 7", "add.rz.f32 %d, %a, %b"]
    + ["setp.lt.and.s32 %p1, %a, %b, %p2", "ld.global.nc.u32 %d, [%l1]", "shfl.up.b32 %d, %a, 1, 0", "popc.b8 %d, %e"],
)
def test_an_unknown_instruction_stops_with_its_text(text):
    with pytest.raises(Fault, match=r"does not know the instruction: " + text.split()[0].replace(".", r"\.")):
        computed(text, ("u32", "u32", "u32"), [np.ones(1, np.uint32)] * 2)
