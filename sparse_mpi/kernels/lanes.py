"""Sixty-four comparisons as one 64-bit mask, and words of bytes: what Numba's loops do not compile to by themselves.

The LLVM IR names no instruction set: vectors of 64 lanes become whatever registers the processor has.
"""

from __future__ import annotations

import llvmlite.ir as ir
from numba import types
from numba.extending import intrinsic

LANES = 64


@intrinsic
def reached(typing_context, bits, start, threshold):
    """Bit j of the uint64 result tells whether the magnitude in ``bits[start + j]`` is at least ``threshold``.

    ``bits`` is a contiguous array of signed integers with at least ``start + 64`` entries, which nothing checks.
    """

    def generate(context, builder, signature, arguments):
        array, at, limit = arguments
        width = signature.args[0].dtype.bitwidth
        vector, lanes = ir.VectorType(ir.IntType(width), LANES), ir.VectorType(ir.IntType(32), LANES)
        data = context.make_array(signature.args[0])(context, builder, array).data
        loaded = builder.load(builder.bitcast(builder.gep(data, [at]), vector.as_pointer()))
        loaded.align = width // 8
        nothing = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(nothing, limit, ir.Constant(ir.IntType(32), 0))
        limits = builder.shuffle_vector(first, nothing, ir.Constant(lanes, [0] * LANES))
        magnitudes = builder.and_(loaded, ir.Constant(vector, [2 ** (width - 1) - 1] * LANES))
        return builder.bitcast(builder.icmp_signed(">=", magnitudes, limits), ir.IntType(LANES))

    return types.uint64(bits, types.intp, bits.dtype), generate


@intrinsic
def lowest(typing_context, mask):
    """Position of the lowest set bit of a uint64, 64 if there is none."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.intp(types.uint64), generate


@intrinsic
def load_word(typing_context, buffer, at):
    """``buffer[at : at + 8]``, uint8, as a uint64 in the machine's order of bytes; nothing checks that they exist."""

    def generate(context, builder, signature, arguments):
        loaded = builder.load(_word_at(context, builder, signature, arguments))
        loaded.align = 1
        return loaded

    return types.uint64(buffer, types.intp), generate


@intrinsic
def store_word(typing_context, buffer, at, word):
    """``buffer[at : at + 8]``, uint8, become the bytes of a uint64; nothing checks that they exist."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _word_at(context, builder, signature, arguments), align=1)
        return context.get_dummy_value()

    return types.void(buffer, types.intp, types.uint64), generate


def _word_at(context, builder, signature, arguments):
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
