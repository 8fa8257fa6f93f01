// The k largest magnitudes of a row: a radix select finds the k-th largest, DIGIT bits in a pass over all entries, and an
// ordered compaction calls a function for what reaches it. Of ties the first ones are taken.

constexpr int BINS = 1 << DIGIT;
constexpr int MAGNITUDE = 8 * sizeof(Bits) - 1;  // bits of a magnitude, the first of which are its exponent
constexpr int PASSES = (MAGNITUDE + DIGIT - 1) / DIGIT;
constexpr int EACH = 4;  // consecutive entries a thread compacts at once
constexpr int WARPS = THREADS / 32;
constexpr int SHARE = BINS / THREADS;  // bins a thread adds up
static_assert(SHARE * THREADS == BINS, "threads share the bins evenly");

// Returns the sum of `own` over the threads before this one; the sum over all threads goes to `total`.
__device__ inline uint32 scan(uint32 own, uint32& total) {
    __shared__ uint32 sums[WARPS];
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

// What is known of the k-th largest magnitude; the same in all threads.
struct Kth {
    Bits prefix;    // its bits from `shift` on
    int shift;
    uint32 wanted;  // entries that start with the prefix
    bool exactly;   // that is all of them: no more digits are needed

    __device__ int width() const { return shift < DIGIT ? shift : DIGIT; }
    // What lies beyond the bound is taken, and the first `ties` entries at it.
    __device__ Bits bound() const { return (prefix << shift) - exactly; }
    __device__ uint32 ties() const { return exactly ? 0 : wanted; }
};

// Clears `counts`, and counts in them the entries of [first, end) that start with the prefix, by their next digit.
template <class Entries>
__device__ inline void count_digits(const Entries& x, int64 first, int64 end, const Kth& kth, uint32* counts) {
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) counts[bin] = 0;
    __syncthreads();
    const int low = kth.shift - kth.width(), mask = (1 << kth.width()) - 1;
#pragma unroll 4
    for (int64 at = first + threadIdx.x; at < end; at += THREADS) {
        const Bits bits = magnitude(x[at]);
        if (bits >> kth.shift == kth.prefix) atomicAdd(counts + ((bits >> low) & mask), 1u);
    }
    __syncthreads();
}

// Adds the digit to the prefix whose bin holds the k-th largest.
__device__ inline void narrow(Kth& kth, const uint32* counts) {
    __shared__ int digit;
    __shared__ uint32 higher, equal;  // entries in the bins above the chosen one, and in it
    const int top = BINS - 1 - (int)threadIdx.x * SHARE;  // this thread's highest bin, those of the next below it
    uint32 own = 0, total;
    for (int i = 0; i < SHARE; ++i) own += counts[top - i];
    uint32 above = scan(own, total);
    for (int i = 0; i < SHARE; ++i) {
        const uint32 here = counts[top - i];
        if (above < kth.wanted && kth.wanted <= above + here) {  // true of one bin
            digit = top - i;
            higher = above;
            equal = here;
        }
        above += here;
    }
    __syncthreads();
    kth.prefix = (kth.prefix << kth.width()) + digit;
    kth.shift -= kth.width();
    kth.wanted -= higher;
    kth.exactly = equal == kth.wanted;
    __syncthreads();
}

// Calls write(to, at) for the entries of [first, end) that are taken. `beyond` the bound and `tied` at it are so many
// entries before `first`.
template <class Entries, class Write>
__device__ inline void compact(const Entries& x, int64 first, int64 end, const Kth& kth, uint32 beyond, uint32 tied,
                               Write write) {
    const Bits bound = kth.bound();
    const uint32 ties = kth.ties();
    for (int64 stretch = first; stretch < end; stretch += THREADS * EACH) {
        const int64 start = stretch + threadIdx.x * EACH;
        uint32 own = 0, total;  // lower half: beyond the bound, upper half: at it
        for (int j = 0; j < EACH; ++j) {
            if (start + j >= end) break;
            const Bits bits = magnitude(x[start + j]);
            own += bits > bound ? 1u : bits == bound ? 1u << 16 : 0u;
        }
        const uint32 before = scan(own, total);
        uint32 beyond_here = beyond + (before & 0xffffu), tied_here = tied + (before >> 16);
        for (int j = 0; own && j < EACH; ++j) {
            if (start + j >= end) break;
            const Bits bits = magnitude(x[start + j]);
            if (bits > bound || (bits == bound && tied_here < ties)) {
                write(beyond_here + (tied_here < ties ? tied_here : ties), start + j);
            }
            beyond_here += bits > bound;
            tied_here += bits == bound;
        }
        beyond += total & 0xffffu;
        tied += total >> 16;
    }
}

// Calls write(to, at) for the k largest entries of a row, by one block. A row that fits into the caches is read from
// memory once.
template <class Write>
__device__ inline void k_largest(const REAL* row, int64 columns, int64 k, Write write) {
    __shared__ uint32 counts[BINS];
    Kth kth = {0, MAGNITUDE, (uint32)k, false};
    while (kth.shift > 0 && !kth.exactly) {
        count_digits(row, 0, columns, kth, counts);
        narrow(kth, counts);
    }
    compact(row, 0, columns, kth, 0, 0, write);
}
