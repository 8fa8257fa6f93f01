// Counts the entries that reach each of ascending thresholds, GROUP thresholds in a pass over x. Entries are sorted
// into bins between neighbouring thresholds, in shared memory. Each lane has counters of its own, in a bank of its own,
// so that the lanes of a warp never meet. In the end the bins from a threshold on are added up for it.

constexpr int GROUP = 64;
constexpr int ROUNDS = 4;  // vectors that a thread reads at once
constexpr int64 CHUNK = (int64)THREADS * ROUNDS * VECTOR;
constexpr int WARPS = THREADS / 32;
static_assert(GROUP <= THREADS, "each threshold of a group has a thread");

// among: a mask of the entries that matter, or none: all do. counts: as many as there are thresholds, and the number of
// blocks that are done; all are 0 before. told: the thresholds, in memory of the host, to which the last block writes the
// counts behind them.
extern "C" __global__ void __launch_bounds__(THREADS)
count(const REAL* x, int64 n, const bool* among, uint64* counts, int64 thresholds, int64* told) {
    __shared__ bool last;
    __shared__ Bits limits[GROUP];
    __shared__ uint32 bins[GROUP][32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const bool vectors = aligned(x, sizeof(Vector));
    for (int64 first = 0; first < thresholds; first += GROUP) {
        const int size = thresholds - first < GROUP ? (int)(thresholds - first) : GROUP;
        if (threadIdx.x < size) limits[threadIdx.x] = (Bits)told[first + threadIdx.x];
        for (int bin = warp; bin < size; bin += WARPS) bins[bin][lane] = 0;
        __syncthreads();

        // Sort the entries into bins; most of them reach no threshold, and need no search.
        const Bits lowest = limits[0];
        const auto sort = [&](Bits bits, int64 at) {
            if (bits < lowest || (among && !among[at])) return;
            int bin = 0, end = size;
            while (end - bin > 1) {
                const int middle = (bin + end) / 2;
                if (limits[middle] <= bits) bin = middle;
                else end = middle;
            }
            atomicAdd(&bins[bin][lane], 1u);
        };
        for (int64 chunk = blockIdx.x * CHUNK; chunk < n; chunk += gridDim.x * CHUNK) {
            const int64 end = chunk + CHUNK;
            if (vectors && end <= n) {
                const Vector* from = reinterpret_cast<const Vector*>(x + chunk) + threadIdx.x;
                Vector own[ROUNDS];
#pragma unroll
                for (int r = 0; r < ROUNDS; ++r) own[r] = from[r * THREADS];
#pragma unroll
                for (int r = 0; r < ROUNDS; ++r) {
#pragma unroll
                    for (int j = 0; j < VECTOR; ++j)
                        sort(magnitude(own[r].at[j]), chunk + (r * THREADS + threadIdx.x) * VECTOR + j);
                }
            } else {
                for (int64 at = chunk + threadIdx.x; at < end && at < n; at += THREADS) sort(magnitude(x[at]), at);
            }
        }
        __syncthreads();

        // Add up the lanes of each bin, and for each threshold the bins from it on.
        for (int bin = warp; bin < size; bin += WARPS) {
            uint32 sum = bins[bin][lane];
            for (int apart = 16; apart; apart /= 2) sum += __shfl_xor_sync(WARP, sum, apart);
            if (lane == 0) bins[bin][0] = sum;
        }
        __syncthreads();
        if (threadIdx.x < size) {
            uint64 reached = 0;
            for (int bin = threadIdx.x; bin < size; ++bin) reached += bins[bin][0];
            if (reached) atomicAdd(counts + first + threadIdx.x, reached);
        }
        __syncthreads();
    }
    __threadfence();  // counts come before the block is done
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(counts + thresholds, 1ull) + 1 == gridDim.x;
    __syncthreads();
    if (!last) return;
    for (int64 i = threadIdx.x; i < thresholds; i += THREADS) told[thresholds + i] = (int64)((volatile uint64*)counts)[i];
}
