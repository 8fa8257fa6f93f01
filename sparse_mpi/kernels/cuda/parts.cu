// Parts with quotas (`EqualParts` in kernels/parts.py). A block has a part, whose entries or sums it puts side by side into a
// row, and selects the largest of them. PLACE is the type of places, RUN the number of neighbouring entries in a part.

#include "radix.cu"

// The row of this block: in shared memory if it fits there, and otherwise its share of `rows`.
__device__ inline REAL* own_row(REAL* rows, int64 width) {
#ifdef IN_SHARED
    extern __shared__ REAL row[];
    return row;
#else
    return rows + blockIdx.x * width;
#endif
}

// A part of a message, which has the values of all its owner's parts, and then their places, see kernels/parts.py.
struct Slot {
    REAL* values;
    PLACE* places;

    // The part `part` of those to all owners, whose messages of `length` bytes have `each` parts of `quota` entries.
    __device__ Slot(uint8* messages, int64 part, int64 each, int64 quota, int64 length) {
        const int64 owner = (uint32)part / (uint32)each, first = (part - owner * each) * quota;
        REAL* message = (REAL*)(messages + owner * length);
        values = message + first;
        places = (PLACE*)(message + each * quota) + first;
    }
};

// Writes the largest of the row to its slot, and no -0; behind an owner's places come zeros.
__device__ inline void keep(const REAL* row, int64 width, int64 quota, uint8* messages, int64 each, int64 length) {
    const Slot slot(messages, blockIdx.x, each, quota, length);
    const int64 filled = each * quota * (sizeof(REAL) + sizeof(PLACE));
    if (blockIdx.x % each == 0 && threadIdx.x < length - filled) {
        messages[blockIdx.x / each * length + filled + threadIdx.x] = 0;
    }
    k_largest(row, width, quota, [=](uint32 to, int64 at) {
        const REAL value = row[at];
        slot.places[to] = (PLACE)at;
        slot.values[to] = value == 0 ? (REAL)0 : value;
    });
}

// The index in the vector of a place of a part
__device__ inline int64 index_of(int64 place, uint32 part, uint32 number) {
    const uint32 turn = (uint32)(place / RUN), moved = (uint32)first_of(turn, number);
    return ((int64)turn * number + (part < moved ? part + number : part) - moved) * RUN + place % RUN;
}

#ifdef GRADIENT
#define PARAMETERS REAL *x, const GRADIENT *gradient
#else
#define PARAMETERS const REAL *x
#endif

// Selects from each part of x, for messages to all owners. With GRADIENT, it is accumulated on the way.
extern "C" __global__ void __launch_bounds__(THREADS)
select_parts(PARAMETERS, int64 n, int64 width, int64 quota, int64 each, int64 length, REAL* rows, uint8* messages) {
    REAL* row = own_row(rows, width);
    for (int64 first = threadIdx.x; first < width; first += EACH * THREADS) {
        int64 at[EACH];
        REAL own[EACH];
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const int64 place = first + j * THREADS;
            at[j] = place < width ? index_of(place, blockIdx.x, gridDim.x) : n;
            own[j] = at[j] < n ? x[at[j]] : (REAL)0;
#ifdef GRADIENT
            if (at[j] < n) own[j] += widen(gradient[at[j]]);
#endif
        }
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const int64 place = first + j * THREADS;
            if (place < width) row[place] = own[j];
#ifdef GRADIENT
            if (at[j] < n) x[at[j]] = own[j];
#endif
        }
    }
    keep(row, width, quota, messages, each, length);
}

// Adds up what all ranks sent for each part, in their order, and selects from the sums. No rank sends a place twice.
extern "C" __global__ void __launch_bounds__(THREADS)
add_parts(uint8* sent, int64 ranks, int64 width, int64 quota, int64 length, REAL* rows, uint8* message) {
    REAL* row = own_row(rows, width);
    for (int64 at = threadIdx.x; at < width; at += THREADS) row[at] = 0;
    for (int64 rank = 0; rank < ranks; ++rank) {
        __syncthreads();  // after the ranks before
        const Slot slot(sent + rank * length, blockIdx.x, gridDim.x, quota, length);
        for (int64 i = threadIdx.x; i < quota; i += THREADS) {
            if (slot.places[i] < width) row[slot.places[i]] += slot.values[i];
        }
    }
    keep(row, width, quota, message, gridDim.x, length);
}

// Brings the results of all owners into the order of their indices. Beside each goes what this rank sent of it, from
// its messages `own`, less what is `owed` to parts from `low` to `high`. A block has some runs, and its threads one each
// at a time. Where its first result goes, the places in all parts before this run tell: no block waits for another.
// Every result is written once whatever places a malformed message has; those behind the vector's end come last, and
// only `within` have room.
extern "C" __global__ void __launch_bounds__(THREADS)
from_parts(uint8* messages, uint8* own, const REAL* owed, int64 low, int64 high, int64 n, int64 number, int64 quota,
           int64 each, int64 length, int64 rounds, int64 tiles, int64 within, INDEX* indices, REAL* totals, REAL* sent) {
    uint32 earlier = 0, total;
    const int64 first_run = blockIdx.x * tiles * THREADS, first_turn = (uint32)first_run / (uint32)number;
    const auto begin = [=](const PLACE* places, int64 turn) {
        return turn < rounds ? lower_bound(places, quota, turn * RUN) : quota;
    };
    for (int64 part = threadIdx.x; part < number; part += THREADS) {
        const int64 position = (uint32)(part + number - first_of(first_turn, number)) % (uint32)number;
        const bool passed = position < first_run - first_turn * number;
        earlier += begin(Slot(messages, part, each, quota, length).places, first_turn + passed);
    }
    scan(earlier, total);
    int64 base = total;
    for (int64 tile = 0; tile < tiles; ++tile) {
        const int64 run = first_run + tile * THREADS + threadIdx.x, turn = (uint32)run / (uint32)number;
        const int64 part = (uint32)(run + first_of(turn, number)) % (uint32)number;
        const Slot slot(messages, part, each, quota, length), mine(own, part, each, quota, length);
        const int64 from = begin(slot.places, turn), end = begin(slot.places, turn + 1);
        int64 to = base + scan((uint32)(end - from), total);
        base += total;
        for (int64 i = from; i < end; ++i, ++to) {
            if (to >= within) break;
            const int64 index = run * RUN + slot.places[i] - turn * RUN, same = lower_bound(mine.places, quota, slot.places[i]);
            REAL term = same < quota && mine.places[same] == slot.places[i] ? mine.values[same] : (REAL)0;
            if (low <= part && part < high) term -= owed[(part - low) * quota + i];
            indices[to] = (INDEX)(index < 0 ? 0 : index < n ? index : n - 1);
            totals[to] = slot.values[i];
            sent[to] = slot.values[i] == 0 ? (REAL)0 : term;  // what cancels stays with its ranks, as on the host
        }
    }
}
