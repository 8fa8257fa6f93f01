"""Numba intrinsics for what its loops do not compile to: 64 comparisons into one mask, unaligned words, copies, casts.

The LLVM IR names no instruction set: LLVM maps vectors of 64 lanes to whatever registers the processor has.
"""

from __future__ import annotations

import llvmlite.ir as ir
from numba import types
from numba.core.cgutils import raw_memcpy
from numba.extending import intrinsic

LANES = 64


@intrinsic
def reached(typing_context, bits, start, threshold):
    """Compare 64 magnitudes with ``threshold``: bit j of the uint64 result is set if ``bits[start + j]`` reaches it.

    ``bits`` is a contiguous array of signed integers, whose sign bits are ignored. It must have at least ``start + 64``
    entries; nothing checks that.
    """

    def generate(context, builder, signature, arguments):
        # Load 64 entries; only their own alignment is promised.
        array, at, limit = arguments
        width = signature.args[0].dtype.bitwidth
        vector, lanes = ir.VectorType(ir.IntType(width), LANES), ir.VectorType(ir.IntType(32), LANES)
        data = context.make_array(signature.args[0])(context, builder, array).data
        loaded = builder.load(builder.bitcast(builder.gep(data, [at]), vector.as_pointer()))
        loaded.align = width // 8
        # Broadcast the threshold to all lanes.
        nothing = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(nothing, limit, ir.Constant(ir.IntType(32), 0))
        limits = builder.shuffle_vector(first, nothing, ir.Constant(lanes, [0] * LANES))
        # Clear sign bits, compare all lanes, and see the 64 bits as one integer.
        magnitudes = builder.and_(loaded, ir.Constant(vector, [2 ** (width - 1) - 1] * LANES))
        return builder.bitcast(builder.icmp_signed(">=", magnitudes, limits), ir.IntType(LANES))

    return types.uint64(bits, types.intp, bits.dtype), generate


@intrinsic
def lowest(typing_context, mask):
    """Return the position of the lowest set bit of a uint64, or 64 if there is none."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.intp(types.uint64), generate


@intrinsic
def real_of(typing_context, bits):
    """Return the float32 whose bits a uint32 has."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def load_word(typing_context, buffer, at):
    """Read ``buffer[at : at + 8]``, uint8, as a uint64 in the machine's byte order, without a check of bounds."""

    def generate(context, builder, signature, arguments):
        loaded = builder.load(_word_at(context, builder, signature, arguments))
        loaded.align = 1
        return loaded

    return types.uint64(buffer, types.intp), generate


@intrinsic
def store_word(typing_context, buffer, at, word):
    """Write a uint64 to ``buffer[at : at + 8]``, uint8, in the machine's byte order, without a check of bounds."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _word_at(context, builder, signature, arguments), align=1)
        return context.get_dummy_value()

    return types.void(buffer, types.intp, types.uint64), generate


@intrinsic
def copy_bytes(typing_context, to, source):
    """Copy all of ``source``, uint8, to the beginning of ``to``, without a check of bounds."""

    def generate(context, builder, signature, arguments):
        each = zip(signature.args, arguments, strict=True)
        there, here = (context.make_array(kind)(context, builder, x) for kind, x in each)
        raw_memcpy(builder, there.data, here.data, here.nitems, 1)
        return context.get_dummy_value()

    return types.void(to, source), generate


def _word_at(context, builder, signature, arguments):
    """Return the address of ``buffer[at]`` as a pointer to 64-bit integers."""
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
