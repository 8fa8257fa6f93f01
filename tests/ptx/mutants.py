"""Defects to plant into the sources of the kernels, what runs them there, and what becomes of them.

The interpreter finds all but four: two fences, since its threads see each other's accesses in the order in which they
are executed, and two sums that only a device's assembler would fuse. `test_kernels.check_code` looks for these in the
code. Not planted: indices of 32 bits in vectors that are longer, which no test can hold; `__nanosleep`, without which
kernels wait as well; and the last barrier of `narrow`, without which nothing is wrong, for `scan` has two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from sparse_mpi.kernels import array
from sparse_mpi.sparse import SparseVector
from sparse_mpi.wire import WIRES

from ..kernels.on_cuda import put, thresholds
from .test_kernels import numbers, some

N, FEW = 20_011, 600  # three tiles of a selection, and three blocks of an entry a thread
X = np.random.default_rng(0).standard_normal(N).astype(np.float32)
LIMIT = thresholds(X, 0.9)[1]
INDICES, VALUES = some(FEW), numbers("float32", FEW)
TWICE = np.concatenate([INDICES, INDICES // 2]), numbers("float32", 2 * FEW, 3)
EDGES = np.array([0, 100, 228, 300])  # of blocks of values that share a scale
ALIKE = np.full(270_000, 0.5, np.float32)  # in one bin, of which a block has more than 2^16

# What the emulator makes of a defect. It has one memory for all, no bounds, no masks, and threads of a block take turns
# at barriers only; what lies beyond an array, and which block comes first, is chance.
LIVES, DIES, CHANCE = "lives", "dies", "chance"
BYTES = "other bytes"  # tells of a defect that no watch sees


def agree(make: Callable) -> Callable:
    """What compares the arrays that a function makes of kernels, and of what puts there, with NumPy's, to the byte."""

    def work(cuda) -> None:
        made = make(cuda, partial(put, cuda))
        found = [part.get() if hasattr(part, "get") else np.asarray(part) for part in made]
        expected = [np.asarray(part) for part in make(array, np.array)]
        assert [part.tobytes() for part in found] == [part.tobytes() for part in expected], BYTES

    return work


def changed(name: str, kind: str, *more) -> Callable:
    """What one of the kernels that change a vector makes of it."""

    def make(kernels, there):
        x = there(abs(numbers(kind, 4 * FEW, 1)))
        getattr(kernels, name)(x, *(there(part) if isinstance(part, np.ndarray) else part for part in more))
        return [x]

    return agree(make)


def messages(wide: int = 4 * FEW) -> Callable:
    """Two messages, written and read by one block, of regions ``wide`` in all."""
    indices, halves = INDICES[::3].astype(np.int64) * (wide // (4 * FEW)), np.array([[0, wide // 2], [wide // 2, wide]])
    counts, wire = np.diff([0, int((indices < wide // 2).sum()), len(indices)]), WIRES["packed"]

    def make(kernels, there):
        packed = wire.pack(SparseVector(there(indices), there(VALUES[::3]), wide), counts, halves)
        back = wire.unpack(packed.buffer, packed.lengths, halves, wide, np.dtype(np.float32))
        return packed.buffer, back.indices, back.values

    return agree(make)


select = agree(lambda kernels, there: kernels.select(there(X), LIMIT, N))
select_off = agree(lambda kernels, there: kernels.select(there(X)[1:], LIMIT, N))
halves = agree(lambda kernels, there: kernels.select(there(numbers("float16", N)), 0, N))
count = agree(lambda kernels, there: [kernels.count(there(X), np.array(thresholds(X, 0.5, 0.9)[1:-1]))])
keep = agree(lambda kernels, there: kernels.truncate(there(np.arange(N, dtype=np.int32)), there(X), 500))
keep_ties = agree(lambda kernels, there: kernels.truncate(there(INDICES), there(np.round(VALUES.clip(-1, 1))), 40))
merge = agree(lambda kernels, there: kernels.merge(there(TWICE[0]), there(TWICE[1]), 4 * FEW))
rounded = agree(lambda kernels, there: [kernels.to_bfloat16(there((np.arange(FEW) / 256 + 1).astype(np.float32)))])
no_number = agree(lambda kernels, there: [kernels.to_bfloat16(there(np.array([1, np.nan])))])
least = agree(lambda kernels, there: [int(kernels.smallest(there(VALUES)))])
alike = agree(lambda kernels, there: [kernels.histogram(there(ALIKE), 31, 0, 9)])
some_bins = agree(lambda kernels, there: [kernels.histogram(there(X), 31, 0, 9)])
kth = agree(lambda kernels, there: [kernels.kth_bin(there(np.arange(1, 1001)), 1000)])
eighths = agree(lambda kernels, there: kernels.to_int8(there(X[:300]), there(INDICES[:300]), EDGES))
quarters = agree(lambda kernels, there: kernels.to_int4(there(X[:300]), there(INDICES[:300]), EDGES))
halfway = agree(lambda kernels, there: kernels.to_int2(there(X[:300]), EDGES))
contained = agree(lambda kernels, there: [kernels.contains(there(INDICES), there(np.arange(5 * FEW, dtype=np.int32)))])
chosen = agree(lambda kernels, there: kernels.compress(there(INDICES), there(VALUES), there(INDICES % 3 == 0)))
dealt = agree(lambda kernels, there: kernels.deal(there(INDICES), there(VALUES), 4 * FEW, 3))
ballots = agree(lambda kernels, there: kernels.to_ballots(there(VALUES), there(INDICES), 4 * FEW))
far = agree(lambda kernels, there: kernels.to_ballots(there(VALUES), there(INDICES + (1 << 28)), 1 << 29))
entries = agree(lambda kernels, there: [int(kernels.moments(there(X), LIMIT).entries)])
drawn = agree(lambda kernels, there: [kernels.sketch(there(X), 7)])


class Mutant(NamedTuple):
    """A part of a source, what comes in its place, what runs it, what tells, and what the emulator makes of it."""

    old: str
    new: str
    work: Callable
    tells: str  # of a fault of the interpreter, or `BYTES`
    emulated: str


def without(part: str, of: str, *rest) -> Mutant:
    return Mutant(of, of.replace(part, "", 1), *rest)


SYNC = "__syncthreads();"
OWN = "    if (warp == 0) {\n        uint64 own = 0;\n        for (int w = 0; w < WARPS; ++w) own += counts[w];\n"
UNWRITTEN = "a race|reads what nobody has written"
PLANTED = {
    # select.cu, and the look-back of types.cu
    "no barrier before counts are added up": without(
        SYNC, "    if (lane == 0) counts[warp] = total;\n    __syncthreads();\n", select, "a race", DIES
    ),
    "no barrier before the start is read": without(
        SYNC, "    __syncthreads();\n\n    int64 position = start;", select, UNWRITTEN, DIES
    ),
    "no barrier after a tile is taken": without(SYNC, "no deadlock\n    __syncthreads();", select, UNWRITTEN, CHANCE),
    "a look-back that is not volatile": Mutant(
        "volatile uint64* found", "uint64* found", select, "a race|does not end", LIVES
    ),
    "a tile beyond the end": Mutant("if (at >= n) break;", "if (at > n) break;", select, "reads out of bounds", LIVES),
    "a whole tile where it is not": Mutant(
        "(tile + 1) * TILE <= n &&", "tile * TILE <= n &&", select, "reads out of bounds", CHANCE
    ),
    "one word of a state too few": Mutant(
        "preceding(state + 1,", "preceding(state + 2,", select, "out of bounds", LIVES
    ),
    "vectors at any address": Mutant(
        "aligned(x, sizeof(Vector))", "aligned(x, sizeof(REAL))", select_off, "no multiple of 16", CHANCE
    ),
    "a mask of half a warp": Mutant(
        "__shfl_up_sync(WARP, rounds, apart)",
        "__shfl_up_sync(0xffffu, rounds, apart)",
        select,
        "is not of its mask 0xffff",
        LIVES,
    ),
    "a barrier for one warp": Mutant(
        OWN, "    if (lane == 0) __syncthreads();\n" + OWN, select, "wait at different barriers", CHANCE
    ),
    "a tile before that is left out": Mutant(
        "last = tile - 1; last >= 0", "last = tile - 2; last >= 0", select, "a race", DIES
    ),
    "one more than there is room for": Mutant(
        "if (to >= most) break;",
        "if (to > most) break;",
        agree(lambda kernels, there: [kernels.select(there(X), 0, N - 1) is None]),
        "writes out of bounds",
        CHANCE,
    ),
    # types.cu
    "halves without their sign": Mutant("x.bits & 0x8000u) << 16", "x.bits & 0x4000u) << 16", halves, BYTES, DIES),
    "halves below the normal ones twice as large": Mutant("(133 - zeros)", "(134 - zeros)", halves, BYTES, DIES),
    "ties away from zero": Mutant("0x7fffu + (bits >> 16 & 1u)", "0x8000u", rounded, BYTES, DIES),
    "a place that counts its own entry": Mutant(
        "__popc(mine & ((1u << lane) - 1));", "__popc(mine & ((2u << lane) - 1));", chosen, BYTES, CHANCE
    ),
    "no barrier before the places of warps": without(
        SYNC, "counts[warp] = __popc(mine);\n    __syncthreads();", merge, UNWRITTEN, CHANCE
    ),
    # count.cu
    "bins that nobody clears": Mutant("bins[bin][lane] = 0;", ";", count, "adds to what nobody has written", CHANCE),
    "counters that are read while lanes add": without(
        SYNC, "        __syncthreads();\n\n        // Add up the lanes of each bin", count, "a race", DIES
    ),
    "a count that others read from their caches": Mutant(
        "(int64)((volatile uint64*)counts)[i]", "(int64)counts[i]", count, "a race", LIVES
    ),
    "counts that no fence precedes": without(
        "__threadfence();", "__threadfence();  // counts come", count, "a fence", LIVES
    ),
    # largest.cu
    "digits that nobody clears": Mutant(
        "+= THREADS) counts[bin] = 0;", "+= THREADS) ;", keep, "adds to what nobody has written", CHANCE
    ),
    "counts that others read from their caches": Mutant(
        "const volatile uint32* all", "const uint32* all", keep, "a race", LIVES
    ),
    "sums that the next scan writes over": without(
        SYNC, "    __syncthreads();\n    return before + up_to - own;", keep, "a race", LIVES
    ),
    "a digit that is read before it is found": without(
        SYNC, "        above += here;\n    }\n    __syncthreads();", keep, UNWRITTEN, CHANCE
    ),
    "shares that others read from their caches": Mutant(
        "volatile uint64* found = counted", "uint64* found = counted", keep, "a race|does not end", LIVES
    ),
    "a tie more than is wanted": Mutant(
        "bits == bound && tied_here < ties",
        "bits == bound && tied_here <= ties",
        keep_ties,
        "a race|out of bounds",
        CHANCE,
    ),
    "counts that others add without atomics": Mutant(
        "if (counts[bin]) atomicAdd(bins + pass * BINS + bin, counts[bin]);",
        "bins[pass * BINS + bin] += counts[bin];",
        keep,
        "a race",
        CHANCE,
    ),
    "a pass that no fence precedes": without(
        "__threadfence();", "__threadfence();\n            atomicAdd(counted", keep, "a fence", LIVES
    ),
    # histogram.cu
    "counters that overflow": Mutant(">= 1u << 15", ">= 1u << 17", alike, BYTES, DIES),
    "counters without atomics": Mutant(
        "atomicAdd(pairs + (bin >> 1), run << half)", "(pairs[bin >> 1] += run << half)", some_bins, "a race", LIVES
    ),
    "no barrier after counters are cleared": without(
        SYNC, "pairs[word] = 0;\n    __syncthreads();\n#endif", some_bins, UNWRITTEN + "|adds to what nobody", DIES
    ),
    "the bin after the one": Mutant("if (reached >= (uint64)k ||", "if (reached > (uint64)k ||", kth, "a race", LIVES),
    "sums that are read while others add": without(
        SYNC, "        __syncthreads();\n        sums[threadIdx.x] += before;", kth, "a race", LIVES
    ),
    # sparse.cu
    "an index beyond those sought in": Mutant(
        "at < count && indices[at]", "at <= count && indices[at]", contained, "reads out of bounds", CHANCE
    ),
    "a run beyond the end": Mutant(
        "i < count && indices[order[i]] == index",
        "i <= count && indices[order[i]] == index",
        merge,
        "reads out of bounds",
        CHANCE,
    ),
    "runs that each of their pairs adds": without(
        "if (i && indices[order[i - 1]] == index) return;",
        "if (i && indices[order[i - 1]] == index) return;",
        changed("add_merged", "float32", *TWICE),
        "a race",
        DIES,
    ),
    "values that are subtracted whatever they are": Mutant(
        "const bool finite = value - value == 0;",
        "const bool finite = true;",
        changed("subtract", "float32", INDICES, np.where(INDICES % 5, VALUES, np.inf).astype(np.float32)),
        BYTES,
        DIES,
    ),
    # bits.cu
    "bits that are set without atomics": Mutant(
        "atomicOr(&words[at >> 5], ", "words[at >> 5] |= (", messages(), "a race", LIVES
    ),
    "a byte more than is asked for": Mutant(
        "shift < bits; ++byte", "shift <= bits; ++byte", messages(), "reads out of bounds", CHANCE
    ),
    "an entry that is taken for the message's before": Mutant(
        "<= i) low = middle", "< i) low = middle", messages(), "it is [0-9]+ long where its entries take", DIES
    ),
    "half of the bits of a chunk": Mutant("__popcll(chunk_of(", "__popc((uint32)chunk_of(", messages(), "a race", DIES),
    "32 bits for a place in a region": Mutant(
        "const int64 offset = indices[i]", "const int32 offset = indices[i]", messages(1 << 36), BYTES, DIES
    ),
    # levels.cu
    "warps that are joined before they are there": without(
        SYNC, "= mine;\n    __syncthreads();", eighths, UNWRITTEN, DIES
    ),
    "warps that the next one joins too early": without(
        SYNC, "__syncthreads();  // before the next", halfway, "a race", LIVES
    ),
    "codes that are put together too early": without(
        SYNC, "half * negative : half;\n    __syncthreads();", quarters, UNWRITTEN, DIES
    ),
    "steps towards zero": Mutant("floorf(step)", "(float32)(int32)step", eighths, BYTES, DIES),
    "levels that are rounded once": Mutant(
        "low = __fmul_rn(high, (float32)(word & SHARE) / 256.0f)",
        "low = high * ((float32)(word & SHARE) / 256.0f)",
        quarters,
        "may be fused",
        LIVES,
    ),
    "zeros with a sign": without(
        " && (level || low > 0)", "own.value < 0 && (level || low > 0)", quarters, BYTES, DIES
    ),
    # dense.cu
    "NaN that is rounded": Mutant("nan ? 0x7fc0u", "false ? 0x7fc0u", no_number, BYTES, LIVES),
    "squares that are rounded with what is added": Mutant(
        "product(x[i], x[i])",
        "x[i] * x[i]",
        changed("follow_squares", "float64", numbers("float64", 4 * FEW), 0.3),
        "may be fused",
        LIVES,
    ),
    "halves of a block that are not there yet": without(
        SYNC, "        __syncthreads();\n        if (threadIdx.x < half && least", least, UNWRITTEN, LIVES
    ),
    # votes.cu
    "an owner beyond the last one": Mutant("owner >= ranks) owner -=", "owner > ranks) owner -=", dealt, BYTES, DIES),
    "32 bits for a vote": Mutant("16 * (int64)indices[i]", "16 * indices[i]", far, BYTES, DIES),
    "sums of votes that are not there yet": without(
        SYNC,
        "        __syncthreads();\n        if (threadIdx.x < half) {\n            totals",
        ballots,
        UNWRITTEN,
        DIES,
    ),
    # accumulate.cu, moments.cu and sketch.cu
    "sums of warps that are not there yet": without(
        SYNC, "maxima[warp] = largest;\n    }\n    __syncthreads();", entries, UNWRITTEN, DIES
    ),
    "an entry beyond the end": Mutant(
        "if (i < n) residual",
        "if (i <= n) residual",
        changed("accumulate", "float32", numbers("float32", 4 * FEW)),
        "out of bounds",
        CHANCE,
    ),
    "an entry beyond the last row": Mutant(
        "if (at >= n) continue;", "if (at > n) continue;", drawn, "reads out of bounds", CHANCE
    ),
}
