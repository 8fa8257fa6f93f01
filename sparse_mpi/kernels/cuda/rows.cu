// Finds the k largest magnitudes of each row, one block a row: a radix select of DIGIT bits at a time finds the k-th,
// and an ordered compaction writes what reaches it. A row that fits into the caches is read from memory once.

constexpr int DIGIT = 11;  // of 31 or 63 magnitude bits: 3 or 6 passes, the first of which tells exponents apart
constexpr int BINS = 1 << DIGIT;
constexpr int EACH = 4;  // consecutive columns a thread compacts at once
constexpr int WARPS = THREADS / 32;
constexpr int SHARE = BINS / THREADS;  // bins a thread adds up
static_assert(SHARE * THREADS == BINS, "threads share the bins evenly");

// Returns the sum of `own` over the threads before this one; the sum over all threads goes to `total`.
__device__ inline uint32 scan(uint32 own, uint32* sums, uint32& total) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32 up_to = own;
    for (int apart = 1; apart < 32; apart *= 2) {
        const uint32 lower = __shfl_up_sync(WARP, up_to, apart);
        if (lane >= apart) up_to += lower;
    }
    if (lane == 31) sums[warp] = up_to;
    __syncthreads();
    uint32 before = 0;
    total = 0;
    for (int w = 0; w < WARPS; ++w) {
        if (w < warp) before += sums[w];
        total += sums[w];
    }
    __syncthreads();
    return before + up_to - own;
}

extern "C" __global__ void __launch_bounds__(THREADS)
top_k(const REAL* matrix, int64 columns, int64 k, int32* chosen, REAL* values) {
    __shared__ uint32 counts[BINS];
    __shared__ uint32 sums[WARPS];
    __shared__ int digit;
    __shared__ uint32 higher, equal;  // entries in the bins above the chosen one, and in it
    const REAL* row = matrix + blockIdx.x * columns;
    uint32 wanted = (uint32)k, total;
    Bits prefix = 0;
    int shift = 8 * sizeof(Bits) - 1;
    bool exactly = false;  // all that starts with the prefix is wanted

    while (shift > 0 && !exactly) {
        const int width = shift < DIGIT ? shift : DIGIT, low = shift - width;
        for (int bin = threadIdx.x; bin < BINS; bin += THREADS) counts[bin] = 0;
        __syncthreads();
#pragma unroll 4
        for (int64 at = threadIdx.x; at < columns; at += THREADS) {
            const Bits bits = magnitude(row[at]);
            if (bits >> shift == prefix) atomicAdd(counts + ((bits >> low) & ((1 << width) - 1)), 1u);
        }
        __syncthreads();
        const int top = BINS - 1 - (int)threadIdx.x * SHARE;  // this thread's highest bin, those of the next below it
        uint32 own = 0;
        for (int i = 0; i < SHARE; ++i) own += counts[top - i];
        uint32 above = scan(own, sums, total);
        for (int i = 0; i < SHARE; ++i) {
            const uint32 here = counts[top - i];
            if (above < wanted && wanted <= above + here) {  // true of one bin
                digit = top - i;
                higher = above;
                equal = here;
            }
            above += here;
        }
        __syncthreads();
        prefix = (prefix << width) + digit;
        wanted -= higher;
        exactly = equal == wanted;
        shift = low;
        __syncthreads();
    }

    const Bits kth = prefix << shift;
    const Bits bound = exactly ? kth - 1 : kth;  // beyond it all are taken, at it the first `ties`
    const uint32 ties = exactly ? 0 : wanted;
    uint32 beyond = 0, at_bound = 0;  // in the columns before this stretch
    chosen += blockIdx.x * k;
    values += blockIdx.x * k;
    for (int64 stretch = 0; stretch < columns; stretch += THREADS * EACH) {
        const int64 first = stretch + threadIdx.x * EACH;
        uint32 own = 0;  // lower half: beyond the bound, upper half: at it
        for (int j = 0; j < EACH; ++j) {
            if (first + j >= columns) break;
            const Bits bits = magnitude(row[first + j]);
            own += bits > bound ? 1u : bits == bound ? 1u << 16 : 0u;
        }
        const uint32 before = scan(own, sums, total);
        uint32 taken = beyond + (before & 0xffffu), tied = at_bound + (before >> 16);
        for (int j = 0; own && j < EACH; ++j) {
            if (first + j >= columns) break;
            const REAL value = row[first + j];
            const Bits bits = magnitude(value);
            if (bits > bound || (bits == bound && tied < ties)) {
                const uint32 to = taken + (tied < ties ? tied : ties);
                chosen[to] = (int32)(first + j);
                values[to] = value;
            }
            taken += bits > bound;
            tied += bits == bound;
        }
        beyond += total & 0xffffu;
        at_bound += total >> 16;
    }
}
