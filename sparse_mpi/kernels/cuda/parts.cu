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

// Writes the largest of the row, and no -0.
__device__ inline void keep(const REAL* row, int64 width, int64 quota, PLACE* places, REAL* values) {
    places += blockIdx.x * quota;
    values += blockIdx.x * quota;
    k_largest(row, width, quota, [=](uint32 to, int64 at) {
        const REAL value = row[at];
        places[to] = (PLACE)at;
        values[to] = value == 0 ? (REAL)0 : value;
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

// Selects from each part of x. With GRADIENT, it is accumulated on the way.
extern "C" __global__ void __launch_bounds__(THREADS)
select_parts(PARAMETERS, int64 n, int64 width, int64 quota, REAL* rows, PLACE* places, REAL* values) {
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
    keep(row, width, quota, places, values);
}

// Adds up what all ranks sent for each part, in their order, and selects from the sums. No rank sends a place twice.
extern "C" __global__ void __launch_bounds__(THREADS)
add_parts(const PLACE* sent, const REAL* terms, int64 ranks, int64 width, int64 quota, REAL* rows, PLACE* places,
          REAL* values) {
    REAL* row = own_row(rows, width);
    for (int64 at = threadIdx.x; at < width; at += THREADS) row[at] = 0;
    for (int64 rank = 0; rank < ranks; ++rank) {
        __syncthreads();  // after the ranks before
        const int64 first = (rank * gridDim.x + blockIdx.x) * quota;
        for (int64 i = first + threadIdx.x; i < first + quota; i += THREADS) {
            if (sent[i] < width) row[sent[i]] += terms[i];
        }
    }
    keep(row, width, quota, places, values);
}

// Brings results (places, values) into the order of their indices. A thread has a run, whose results stand side by side
// in those of its part; `preceding` tells where they go. Beside each goes what this rank sent of it, (own, terms), less
// what is `owed` to parts from `low` to `high`. state, zeroed: as in `compress`. told: the number of results.
extern "C" __global__ void __launch_bounds__(THREADS)
from_parts(const PLACE* places, const REAL* values, const PLACE* own, const REAL* terms, const REAL* owed, int64 low,
           int64 high, int64 n, int64 number, int64 quota, INDEX* indices, REAL* totals, REAL* sent, uint64* state,
           int64* told) {
    __shared__ int64 start;
    const int64 tile = own_tile(state), run = tile * THREADS + threadIdx.x, turn = (uint32)run / (uint32)number;
    const int64 part = (uint32)(run + first_of(turn, number)) % (uint32)number, first = part * quota, end = first + quota;
    const int64 from = first + lower_bound(places + first, quota, turn * RUN);
    // Calls take(i, index) for what is not zero; places of a malformed message may lie anywhere.
    const auto each = [=](auto take) {
        for (int64 i = from; i < end && places[i] < (turn + 1) * RUN; ++i) {
            const int64 index = run * RUN + places[i] - turn * RUN;
            if (index >= run * RUN && index < n && values[i] != 0) take(i, index);
        }
    };
    uint32 found = 0, total;
    each([&](int64, int64) { ++found; });
    const uint32 before = scan(found, total);
    if (threadIdx.x < 32) {
        const int64 preceded = (int64)preceding(state + 1, tile, total);
        if (threadIdx.x == 0) {
            start = preceded;
            if (tile + 1 == gridDim.x) *told = preceded + total;
        }
    }
    __syncthreads();
    int64 to = start + before;
    each([&](int64 i, int64 index) {
        if (to >= number * quota) return;
        const int64 same = first + lower_bound(own + first, quota, places[i]);
        REAL mine = same < end && own[same] == places[i] ? terms[same] : (REAL)0;
        if (low <= part && part < high) mine -= owed[i - low * quota];
        indices[to] = (INDEX)index;
        totals[to] = values[i];
        sent[to++] = mine;
    });
}
