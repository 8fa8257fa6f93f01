// Pairs into dense vectors, with distinct indices; sums of runs of equal indices; and which indices are among others.

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

// order: a stable order of the indices. Tells where in it runs of equal ones begin.
extern "C" __global__ void __launch_bounds__(THREADS)
heads(const INDEX* indices, const int64* order, int64 count, bool* first) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i < count) first[i] = i == 0 || indices[order[i]] != indices[order[i - 1]];
}

// order: a stable order of the indices; heads: where in it the runs of equal ones begin.
// Each run is added by one thread, in order.
extern "C" __global__ void __launch_bounds__(THREADS)
add_runs(const INDEX* indices, const REAL* values, const int64* order, const int64* heads, int64 runs, int64 count,
         INDEX* distinct, REAL* totals) {
    const int64 run = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (run >= runs) return;
    const int64 head = heads[run], end = run + 1 < runs ? heads[run + 1] : count;
    REAL total = values[order[head]];
    for (int64 i = head + 1; i < end; ++i) total += values[order[i]];
    distinct[run] = indices[order[head]];
    totals[run] = total;
}

// Marks those of `sought` that are among `indices`; both ascend. Each thread searches for one by itself: neighbours
// take nearly the same way, so that most of its steps end in a cache.
extern "C" __global__ void __launch_bounds__(THREADS)
contains(const INDEX* indices, int64 count, const INDEX* sought, int64 wanted, bool* found) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= wanted) return;
    const INDEX index = sought[i];
    int64 low = 0, high = count;
    while (low < high) {
        const int64 middle = (low + high) / 2;
        if (indices[middle] < index) low = middle + 1;
        else high = middle;
    }
    found[i] = low < count && indices[low] == index;
}
