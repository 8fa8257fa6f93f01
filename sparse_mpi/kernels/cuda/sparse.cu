// Pairs of index and value: into dense vectors, with distinct indices; sums of runs of equal indices; which are chosen,
// and which indices are among others or in regions.

extern "C" __global__ void __launch_bounds__(THREADS)
add(REAL* x, const INDEX* indices, const REAL* values, int64 count) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i < count) x[indices[i]] += values[i];
}

extern "C" __global__ void __launch_bounds__(THREADS)
subtract(REAL* x, const INDEX* indices, const REAL* values, int64 count) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= count) return;
    const REAL value = values[i];
    const bool finite = value - value == 0;
    x[indices[i]] = finite ? x[indices[i]] - value : (REAL)0;
}

// order: a stable order of the indices. Finds where in it runs of equal ones begin; state as in `compress`.
extern "C" __global__ void __launch_bounds__(THREADS)
heads(const INDEX* indices, const int64* order, int64 count, int64* heads, uint64* state, int64* told) {
    const int64 tile = own_tile(state), i = tile * THREADS + threadIdx.x;
    const bool first = i < count && (i == 0 || indices[order[i]] != indices[order[i - 1]]);
    const int64 place = place_of(first, tile, state + 1, told);
    if (first) heads[place] = i;
}

// Keeps pairs that are chosen, if there is such a mask, and whose magnitude is above `below`. state, zeroed: [0]
// tiles taken, [1 + tile] see `preceding`. told: memory of the host, or none.
extern "C" __global__ void __launch_bounds__(THREADS)
compress(const INDEX* indices, const REAL* values, const bool* chosen, int64 below, int64 count, INDEX* kept,
         REAL* of_kept, uint64* state, int64* told) {
    const int64 tile = own_tile(state), i = tile * THREADS + threadIdx.x;
    const bool mine = i < count && (!chosen || chosen[i]) && (int64)magnitude(values[i]) > below;
    const int64 place = place_of(mine, tile, state + 1, told);
    if (!mine) return;
    kept[place] = indices[i];
    of_kept[place] = values[i];
}

// How many of ascending indices lie in each region between boundaries. told: the boundaries, one more than regions, in
// memory of the host, to which the counts are written behind them.
extern "C" __global__ void __launch_bounds__(THREADS)
split_counts(const INDEX* indices, int64 count, int64 regions, int64* told) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= regions) return;
    told[regions + 1 + i] = lower_bound(indices, count, told[i + 1]) - lower_bound(indices, count, told[i]);
}

// Pairs as rows of units, `split` units of an index and `rest` of a value; a thread a unit. INDEX is the unit.
extern "C" __global__ void __launch_bounds__(THREADS)
to_pairs(const INDEX* indices, const INDEX* values, int64 units, int64 split, int64 rest, INDEX* pairs) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= units) return;
    const int64 pair = i / (split + rest), at = i - pair * (split + rest);
    pairs[i] = at < split ? indices[pair * split + at] : values[pair * rest + at - split];
}

extern "C" __global__ void __launch_bounds__(THREADS)
from_pairs(const INDEX* pairs, int64 units, int64 split, int64 rest, INDEX* indices, INDEX* values) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= units) return;
    const int64 pair = i / (split + rest), at = i - pair * (split + rest);
    if (at < split) indices[pair * split + at] = pairs[i];
    else values[pair * rest + at - split] = pairs[i];
}

// The sum of the run of equal indices that begins at `head` of a stable order of the indices, added up in order.
__device__ inline REAL sum_of_run(const INDEX* indices, const REAL* values, const int64* order, int64 head, int64 count) {
    const INDEX index = indices[order[head]];
    REAL total = values[order[head]];
    for (int64 i = head + 1; i < count && indices[order[i]] == index; ++i) total += values[order[i]];
    return total;
}

// heads: where in the order runs begin. Each is added up by one thread.
extern "C" __global__ void __launch_bounds__(THREADS)
add_runs(const INDEX* indices, const REAL* values, const int64* order, const int64* heads, int64 runs, int64 count,
         INDEX* distinct, REAL* totals) {
    const int64 run = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (run >= runs) return;
    distinct[run] = indices[order[heads[run]]];
    totals[run] = sum_of_run(indices, values, order, heads[run], count);
}

// Adds each run to x in its order, by the thread of its first pair.
extern "C" __global__ void __launch_bounds__(THREADS)
add_in_order(const INDEX* indices, const REAL* values, const int64* order, int64 count, int64 low, REAL* x) {
    const int64 head = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (head >= count) return;
    const INDEX index = indices[order[head]];
    if (head && indices[order[head - 1]] == index) return;
    REAL total = x[index - low];
    for (int64 i = head; i < count && indices[order[i]] == index; ++i) total += values[order[i]];
    x[index - low] = total;
}

constexpr int MOST_RUNS = 64;

// Adds pairs of several ascending runs to x, in the order of the runs: by the thread of an index's first pair, which
// searches for the index in all later runs. starts: as in `add_up_runs`.
extern "C" __global__ void __launch_bounds__(THREADS)
add_runs_in_order(const INDEX* indices, const REAL* values, int64 count, const int64* starts, int64 runs, int64 low,
                REAL* x) {
    __shared__ int64 bounds[MOST_RUNS + 1];
    if (threadIdx.x <= runs) bounds[threadIdx.x] = starts[threadIdx.x];
    __syncthreads();
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= count) return;
    int own = 0;
    while (i >= bounds[own + 1]) ++own;
    const INDEX index = indices[i];
    REAL total = 0;
    for (int run = 0; run < runs; ++run) {
        if (run == own) {  // no run before has the index: this thread adds
            total = x[index - low] + values[i];
            continue;
        }
        const int64 begin = bounds[run], length = bounds[run + 1] - begin;
        const int64 at = lower_bound(indices + begin, length, index);
        if (at == length || indices[begin + at] != index) continue;
        if (run < own) return;
        total += values[begin + at];
    }
    x[index - low] = total;
}

// Adds up the pairs of equal indices of several ascending runs, in the order of the runs, by a thread a pair: that of the
// first run that has the index searches for it in all others. So it knows how many pairs come before, and writes index
// and sum to where it would be if all pairs were sorted; `first` is false at the places of the others of that index.
// starts: where each run begins, and the end of the last, in memory of the host.
extern "C" __global__ void __launch_bounds__(THREADS)
add_up_runs(const INDEX* indices, const REAL* values, int64 count, const int64* starts, int64 runs, INDEX* sorted,
            REAL* totals, bool* first) {
    __shared__ int64 bounds[MOST_RUNS + 1];
    if (threadIdx.x <= runs) bounds[threadIdx.x] = starts[threadIdx.x];
    __syncthreads();
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= count) return;
    int own = 0;
    while (i >= bounds[own + 1]) ++own;
    const INDEX index = indices[i];
    REAL total = values[i];
    int64 place = i - bounds[own];
    int others = 0;
    for (int run = 0; run < runs; ++run) {
        if (run == own) continue;
        const int64 begin = bounds[run], length = bounds[run + 1] - begin;
        const int64 at = lower_bound(indices + begin, length, index);
        place += at;
        if (at == length || indices[begin + at] != index) continue;
        if (run < own) return;
        total += values[begin + at];
        ++others;
    }
    sorted[place] = index;
    totals[place] = total;
    first[place] = true;
    for (int other = 1; other <= others; ++other) {
        totals[place + other] = 0;
        first[place + other] = false;
    }
}

// The values of those of `sought` that are among `indices`, and 0 for others; both ascend.
extern "C" __global__ void __launch_bounds__(THREADS)
among(const INDEX* indices, int64 count, const INDEX* sought, const REAL* values, int64 wanted, REAL* kept) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= wanted) return;
    const int64 at = lower_bound(indices, count, sought[i]);
    kept[i] = at < count && indices[at] == sought[i] ? values[i] : (REAL)0;
}

// Marks those of `sought` that are among `indices`; both ascend. Each thread searches for one by itself: neighbours
// take nearly the same way, so that most of its steps end in a cache.
extern "C" __global__ void __launch_bounds__(THREADS)
contains(const INDEX* indices, int64 count, const INDEX* sought, int64 wanted, bool* found) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= wanted) return;
    const int64 at = lower_bound(indices, count, sought[i]);
    found[i] = at < count && indices[at] == sought[i];
}
