"""Intrinsics that Numba lacks: 64 comparisons at once, unaligned words, casts, prefetches.

The LLVM IR names no instruction set: LLVM maps vectors of 64 lanes to the processor's registers.
"""

from __future__ import annotations

import llvmlite.ir as ir
from numba import types
from numba.core.cgutils import raw_memcpy
from numba.extending import intrinsic

LANES = 64
LINE = 64  # bytes of a cache line; where lines are longer, some are asked for twice


@intrinsic
def reached(typing_context, x, start, threshold):
    """Compare 64 magnitudes with ``threshold``: bit j of the uint64 result is set if ``x[start + j]`` reaches it.

    ``x`` is contiguous, float32 or float64; at least ``start + 64`` entries, unchecked.
    """

    def generate(context, builder, signature, arguments):
        x, at, threshold = arguments
        kind = signature.args[0]
        entries = builder.load(_lanes_at(context, builder, kind, x, at), align=_alignment(kind))
        return _mask(builder, entries, threshold)

    return types.uint64(x, types.intp, _bits(x)), generate


@intrinsic
def added(typing_context, x, start, threshold, more):
    """Add 64 entries of ``more`` to ``x`` in place, in the wider type, and compare the sums as `reached` does."""

    def generate(context, builder, signature, arguments):
        x, at, threshold, more = arguments
        kind, other = signature.args[0], signature.args[3]
        place = _lanes_at(context, builder, kind, x, at)
        entries = builder.load(place, align=_alignment(kind))
        terms = builder.load(_lanes_at(context, builder, other, more, at), align=_alignment(other))
        wider = _vector(max(kind, other, key=_alignment))
        sums = builder.fadd(builder.fpext(entries, wider), builder.fpext(terms, wider))
        sums = builder.fptrunc(sums, entries.type)
        builder.store(sums, place, align=_alignment(kind))
        return _mask(builder, sums, threshold)

    return types.uint64(x, types.intp, _bits(x), more), generate


def _bits(array):
    return types.int64 if array.dtype == types.float64 else types.int32


def _alignment(array):
    return array.dtype.bitwidth // 8


def _vector(array):
    return ir.VectorType(ir.DoubleType() if array.dtype == types.float64 else ir.FloatType(), LANES)


def _lanes_at(context, builder, kind, array, at):
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), _vector(kind).as_pointer())


def _mask(builder, entries, threshold):
    vector, lanes = ir.VectorType(threshold.type, LANES), ir.VectorType(ir.IntType(32), LANES)
    # Broadcast the threshold to all lanes.
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, threshold, ir.Constant(ir.IntType(32), 0))
    limits = builder.shuffle_vector(first, nothing, ir.Constant(lanes, [0] * LANES))
    # Clear sign bits, compare all lanes, and see the 64 bits as one integer.
    no_sign = ir.Constant(vector, [2 ** (threshold.type.width - 1) - 1] * LANES)
    magnitudes = builder.and_(builder.bitcast(entries, vector), no_sign)
    return builder.bitcast(builder.icmp_signed(">=", magnitudes, limits), ir.IntType(LANES))


@intrinsic
def lowest(typing_context, mask):
    """Return the position of the lowest set bit of a uint64; 64: there is none."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.intp(types.uint64), generate


@intrinsic
def ones(typing_context, mask):
    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.intp(types.uint64), generate


@intrinsic
def real_of(typing_context, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def load_word(typing_context, buffer, at):
    """Read ``buffer[at : at + 8]``, uint8, as a uint64 in the machine's byte order; bounds are not checked."""

    def generate(context, builder, signature, arguments):
        loaded = builder.load(_word_at(context, builder, signature, arguments))
        loaded.align = 1
        return loaded

    return types.uint64(buffer, types.intp), generate


@intrinsic
def store_word(typing_context, buffer, at, word):
    """Invert `load_word`: write a uint64; bounds are not checked."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _word_at(context, builder, signature, arguments), align=1)
        return context.get_dummy_value()

    return types.void(buffer, types.intp, types.uint64), generate


@intrinsic
def prefetch(typing_context, x, at):
    """Fetch the cache line of ``x[at]`` without waiting."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        _fetch(builder, builder.gep(data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(x, types.intp), generate


@intrinsic
def prefetch_lanes(typing_context, x, at):
    """Prefetch 64 entries of ``x`` from ``at`` on, harmless past its end."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        entries = LINE // _alignment(signature.args[0])
        for line in range(LANES // entries):
            place = builder.add(arguments[1], ir.Constant(arguments[1].type, line * entries))
            _fetch(builder, builder.gep(data, [place]))
        return context.get_dummy_value()

    return types.void(x, types.intp), generate


def _fetch(builder, place):
    """Fetch a line for reading: a fetch for writing is slower."""
    flag, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
    read, near, of_data = 0, 3, 1
    hints = [ir.Constant(flag, hint) for hint in (read, near, of_data)]
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
    builder.call(function, [builder.bitcast(place, pointer), *hints])


@intrinsic
def copy_bytes(typing_context, to, source):
    """Copy ``source``, uint8, to the beginning of ``to``; bounds are not checked."""

    def generate(context, builder, signature, arguments):
        each = zip(signature.args, arguments, strict=True)
        there, here = (context.make_array(kind)(context, builder, x) for kind, x in each)
        raw_memcpy(builder, there.data, here.data, here.nitems, 1)
        return context.get_dummy_value()

    return types.void(to, source), generate


def _word_at(context, builder, signature, arguments):
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
