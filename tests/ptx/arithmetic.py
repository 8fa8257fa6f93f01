"""What the instructions of PTX compute, on vectors of NumPy."""

from __future__ import annotations

import numpy as np

TYPES = {f"u{8 * size}": np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
TYPES |= {f"b{8 * size}": np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
TYPES |= {f"s{8 * size}": np.dtype(f"i{size}") for size in (1, 2, 4, 8)}
TYPES |= {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64), "pred": np.dtype(bool)}
NAN = np.uint32(0x7FFFFFFF).view(np.float32)  # the one that arithmetic in single precision gives


def canonical(x):
    return np.where(np.isnan(x), NAN, x) if x.dtype == np.float32 else x


def converted(x, kind):
    """Numbers as another type: between those of floats a NaN loses sign and payload, and becomes that of `NAN`."""
    found, kind = x.astype(kind), np.dtype(kind)
    if x.dtype == kind or (x.dtype.kind, kind.kind) != ("f", "f"):
        return found
    return np.where(np.isnan(found), NAN.astype(kind), found)


def divided(x, y):
    """Divide whole numbers towards zero."""
    q = x // y
    return q + ((q * y != x) & ((x < 0) != (y < 0))).astype(q.dtype)


def fma(a, b, c):
    """Multiply and add in double precision with one rounding, by one to odd in between (Boldo and Melquiond 2008)."""
    product, low = a * b, two_product(a, b)
    upper, carried = two_sum(c, low)
    total, rest = two_sum(product, upper)
    odd, lost = two_sum(carried, rest)
    even = (np.asarray(odd).view(np.int64) & 1) == 0
    odd = np.where(even & (lost != 0), np.nextafter(odd, np.copysign(np.inf, lost)), odd)
    return np.where(np.isfinite(total) & np.isfinite(low), total + odd, product + c)


def two_sum(a, b):
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a, b):
    """Return by how much the rounded product is off."""
    (a1, a2), (b1, b2) = halves(a), halves(b)
    return a2 * b2 - (((a * b - a1 * b1) - a2 * b1) - a1 * b2)


def halves(x):
    scaled = x * 134217729.0
    upper = scaled - (scaled - x)
    return upper, x - upper


def reciprocal(x):
    """``rcp.approx.ftz.f64``: of the result only the upper half has bits that a device shares."""
    x = np.where(abs(x) < np.finfo(np.float64).tiny, np.copysign(0.0, x), x)
    return (np.asarray(1 / x).view(np.uint64) & np.uint64(0xFFFFFFFF << 32)).view(np.float64)


def lesser(a, b):
    """The one that is no NaN; -0 is less than 0."""
    return np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))


def greater(a, b):
    return np.where(a == b, np.where(np.signbit(a), b, a), np.fmax(a, b))


def shifted_left(x, by):
    bits = 8 * x.dtype.itemsize
    return np.where(by < bits, x << np.minimum(by, bits - 1).astype(x.dtype), x.dtype.type(0))


def shifted_right(x, by):
    bits = 8 * x.dtype.itemsize
    moved = x >> np.minimum(by, bits - 1).astype(x.dtype)
    return moved if x.dtype.kind == "i" else np.where(by < bits, moved, x.dtype.type(0))


def bits_of(x):
    """The bits of whole numbers, the lowest one first ``(lanes, bits)``."""
    x = np.atleast_1d(x)
    return np.unpackbits(x.view(np.uint8).reshape(len(x), -1), axis=1, bitorder="little")


def reversed_bits(x):
    return np.packbits(bits_of(x)[:, ::-1], axis=1, bitorder="little").view(x.dtype).ravel()


def leading_zeros(x):
    bits = bits_of(x)[:, ::-1]
    return np.where(bits.any(axis=1), bits.argmax(axis=1), bits.shape[1]).astype(np.uint32)


def shift_of_the_first(x):
    """``bfind.shiftamt``: how far the highest bit is from the top, or -1."""
    return np.where(x == 0, np.uint32(0xFFFFFFFF), leading_zeros(x))


def inserted(a, b, start, length):
    """``bfi``: ``b``, with the lowest bits of ``a`` from a place on."""
    start, length = start & 255, length & 255
    ones = shifted_left(np.full(np.shape(b), 1, b.dtype), np.asarray(length)) - b.dtype.type(1)
    mask = shifted_left(ones, np.asarray(start))
    return (b & ~mask) | (shifted_left(a, np.asarray(start)) & mask)


def permuted(a, b, selector):
    """``prmt``: any four of the eight bytes of two words; the highest bit of a digit repeats a byte's sign."""
    words = b.astype(np.uint64) << np.uint64(32) | a
    result = np.zeros(np.broadcast(a, b, selector).shape, np.uint32)
    for i in range(4):
        digit = (selector >> np.uint32(4 * i)).astype(np.uint64)
        byte = (words >> (digit & np.uint64(7)) * np.uint64(8)).astype(np.uint32) & np.uint32(255)
        signs = np.where(byte >> np.uint32(7), np.uint32(255), np.uint32(0))
        result |= np.where(digit & np.uint64(8), signs, byte).astype(np.uint32) << np.uint32(8 * i)
    return result


def whole(x, kind: np.dtype, rounded) -> np.ndarray:
    """Numbers as whole ones of a type: rounded, and the nearest there is; see PTX's `cvt` for NaN."""
    limits = np.iinfo(kind)
    beyond = 2.0 ** (8 * kind.itemsize - (kind.kind == "i"))
    x = np.asarray(rounded(x).astype(np.float64))
    result = np.where((x < beyond) & (x >= limits.min), x, 0).astype(kind)
    result = np.where(x >= beyond, kind.type(limits.max), np.where(x < limits.min, kind.type(limits.min), result))
    wide = kind.itemsize == 8
    return np.where(np.isnan(x), np.uint64(1 << 63).astype(kind) if wide else kind.type(0), result)


FLOAT = {  # what is rounded to nearest, of float types
    **{name: np.add for name in ("add", "add.rn")},
    **{name: np.subtract for name in ("sub", "sub.rn")},
    **{name: np.multiply for name in ("mul", "mul.rn")},
    "div.rn": np.divide,
    "sqrt.rn": np.sqrt,
    "min": lesser,
    "max": greater,
    "fma.rn": fma,
}
UNROUNDED = {"neg": np.negative, "abs": np.abs}  # of float types: the sign of a NaN too
INTEGER = {
    "add": np.add,
    "sub": np.subtract,
    "mul.lo": np.multiply,
    "mad.lo": lambda a, b, c: a * b + c,
    "div": divided,
    "rem": lambda a, b: a - divided(a, b) * b,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
}
BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}
COUNTS = {
    "popc": lambda x: bits_of(x).sum(axis=1, dtype=np.uint32),
    "clz": leading_zeros,
    "bfind.shiftamt": shift_of_the_first,
}
COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
COMPARISONS |= {"ge": np.greater_equal}
ROUNDINGS = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}


def compared(name: str, kind: np.dtype):
    """Return the comparison of `setp`; `u` behind its name makes it true of NaN, which `ne` is not without."""
    if kind.kind != "f":
        return COMPARISONS[name]
    ordered, plain = not name.endswith("u"), COMPARISONS[name.removesuffix("u")]
    if ordered:
        return lambda a, b: plain(a, b) & ~(np.isnan(a) | np.isnan(b))
    return lambda a, b: plain(a, b) | np.isnan(a) | np.isnan(b)
