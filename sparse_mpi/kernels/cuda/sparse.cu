// Pairs into dense vectors, with distinct indices, and sums of runs of equal indices.

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
