// Counts entries by `width` of their magnitude bits, in shared memory, with two 16-bit counters in each word: 2^16 of
// them fit into 128 KiB. So that none overflows, a block checks after every CHUNK of entries whether any counter is
// half full, and if so adds all of them to the 64-bit counts in global memory and clears them. Without IN_SHARED, for
// devices with less shared memory, all entries are counted in global memory.

constexpr int EACH = 28;  // entries that a thread reads between two checks
constexpr int64 CHUNK = (int64)THREADS * EACH;
static_assert(CHUNK < 1 << 15, "a counter that is less than half full has room for a chunk");

extern __shared__ uint32 pairs[];

// Adds `run` entries to `bin`, and returns whether its counter is half full by now.
__device__ inline bool count(int bin, uint32 run, uint64* counts) {
#ifdef IN_SHARED
    const int half = (bin & 1) * 16;
    const uint32 before = atomicAdd(pairs + (bin >> 1), run << half) >> half & 0xffffu;
    return before + run >= 1u << 15;
#else
    atomicAdd(counts + bin, (uint64)run);
    return false;
#endif
}

__device__ inline void empty_into(uint64* counts, int words) {
    for (int word = threadIdx.x; word < words; word += THREADS) {
        const uint32 pair = pairs[word];
        if (pair & 0xffffu) atomicAdd(counts + 2 * word, (uint64)(pair & 0xffffu));
        if (pair >> 16) atomicAdd(counts + 2 * word + 1, (uint64)(pair >> 16));
        pairs[word] = 0;
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
histogram(const REAL* x, int64 n, int64 shift, int64 prefix, int64 width, uint64* counts) {
    const Bits start = (Bits)prefix;
    const int low = (int)(shift - width), mask = (1 << width) - 1;
#ifdef IN_SHARED
    const int words = width ? 1 << (width - 1) : 1;
    for (int word = threadIdx.x; word < words; word += THREADS) pairs[word] = 0;
    __syncthreads();
#endif
    const bool vectors = aligned(x, sizeof(Vector));
    for (int64 chunk = blockIdx.x * CHUNK; chunk < n; chunk += gridDim.x * CHUNK) {
        bool full = false;
        int current = -1;
        uint32 run = 0;  // of entries in bin `current`, so that equal neighbours are counted together
        const bool whole = vectors && chunk + CHUNK <= n;
#pragma unroll
        for (int i = 0; i < EACH / VECTOR; ++i) {
            const int64 at = chunk + ((int64)i * THREADS + threadIdx.x) * VECTOR;
            Vector own;
            if (whole) own = *reinterpret_cast<const Vector*>(x + at);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                if (!whole && at + j >= n) break;
                const Bits bits = magnitude(whole ? own.at[j] : x[at + j]);
                if (bits >> shift != start) continue;
                const int bin = (int)(bits >> low) & mask;
                if (bin != current) {
                    if (run) full |= count(current, run, counts);
                    current = bin;
                    run = 0;
                }
                ++run;
            }
        }
        if (run) full |= count(current, run, counts);
#ifdef IN_SHARED
        if (__syncthreads_or(full)) empty_into(counts, words);
#endif
    }
#ifdef IN_SHARED
    __syncthreads();
    empty_into(counts, words);
#endif
}

// Finds the highest bin such that k entries are in it or above; found: its number, how many these are, and those in it.
// One block; threads have equal parts of the bins, the first one the highest.
extern "C" __global__ void __launch_bounds__(THREADS)
kth_bin(const uint64* counts, int64 bins, int64 k, int64* found) {
    __shared__ uint64 sums[THREADS];
    const int64 each = (bins + THREADS - 1) / THREADS, top = bins - 1 - threadIdx.x * each;
    uint64 own = 0;
    for (int64 bin = top; bin > top - each && bin >= 0; --bin) own += counts[bin];
    // Add up the parts from the first one on.
    sums[threadIdx.x] = own;
    __syncthreads();
    for (int apart = 1; apart < THREADS; apart *= 2) {
        const uint64 before = threadIdx.x >= apart ? sums[threadIdx.x - apart] : 0;
        __syncthreads();
        sums[threadIdx.x] += before;
        __syncthreads();
    }
    // The thread in whose part the k-th entry is finds the bin.
    uint64 reached = sums[threadIdx.x] - own;
    if (reached >= (uint64)k || sums[threadIdx.x] < (uint64)k) return;
    int64 bin = top + 1;
    while (reached < (uint64)k) reached += counts[--bin];
    found[0] = bin;
    found[1] = (int64)reached;
    found[2] = (int64)counts[bin];
}
