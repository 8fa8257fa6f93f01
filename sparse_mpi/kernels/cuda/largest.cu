// The k largest magnitudes of each row of a matrix, and of pairs: a radix select finds the k-th largest, DIGIT bits in
// a pass over all entries, and an ordered compaction writes what reaches it. Of ties the first ones are taken.

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
__device__ inline void count_digits(const REAL* x, int64 first, int64 end, const Kth& kth, uint32* counts) {
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
template <class Write>
__device__ inline void compact(const REAL* x, int64 first, int64 end, const Kth& kth, uint32 beyond, uint32 tied,
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

// One block a row of a matrix.
extern "C" __global__ void __launch_bounds__(THREADS)
top_k(const REAL* matrix, int64 columns, int64 k, int32* chosen, REAL* values) {
    const REAL* row = matrix + blockIdx.x * columns;
    chosen += blockIdx.x * k;
    values += blockIdx.x * k;
    k_largest(row, columns, k, [=](uint32 to, int64 at) {
        chosen[to] = (int32)at;
        values[to] = row[at];
    });
}

// One block a row of any tensor. table: where each row starts in x, its length, how many of it are selected, and where
// these go.
extern "C" __global__ void __launch_bounds__(THREADS)
select_rows(const REAL* x, const int64* table, INDEX* indices, REAL* values) {
    const int64* own = table + 4 * (int64)blockIdx.x;
    const int64 first = own[0], columns = own[1], k = own[2];
    const REAL* row = x + first;
    indices += own[3];
    values += own[3];
    const auto write = [=](uint32 to, int64 at) {
        indices[to] = (INDEX)(first + at);
        values[to] = row[at];
    };
    if (k < columns) {
        k_largest(row, columns, k, write);
    } else {
        for (int64 at = threadIdx.x; at < columns; at += THREADS) write((uint32)at, at);
    }
}

// Keeps k of m pairs, 1 <= k < m < 2^32, which are so few that they mostly stay in the caches. A block has a share of
// `each` pairs.
//
// All passes are in one launch, though each needs what all shares have counted in the one before. A barrier of the
// whole grid would hang where other work keeps some blocks from starting, and one block alone would be slow. So blocks
// draw tickets: those of the first pass for every share, then those of the second pass, and so on, those of the
// compaction last, one a block. Whoever waits does so for lower tickets only. These were drawn by blocks that are
// running, and the lowest one that is not done waits for nobody: however few blocks run at a time, all end. (select.cu
// relies on the same.)
//
// state, zeroed: [0] tickets drawn, [1 + pass] shares counted in that pass, then two words a share: FOUND and how many
// it has beyond the bound, FOUND and how many at it. Then the counts of each pass, 32 bits a bin, and the state of
// `tell_least`. least: memory of the host, if any, for the least magnitude of those that are kept.
constexpr uint64 FOUND = 1ull << 63;

extern "C" __global__ void __launch_bounds__(THREADS)
keep_largest(const INDEX* indices, const REAL* values, int64 m, int64 k, int64 each, INDEX* kept, REAL* largest,
             uint64* state, int64* least) {
    __shared__ uint32 counts[BINS];
    __shared__ int64 drawn;
    __shared__ uint64 before[2];
    const int64 shares = gridDim.x;
    uint64* counted = state + 1;
    volatile uint64* found = counted + PASSES;
    uint32* bins = (uint32*)(counted + PASSES + 2 * shares);
    Kth kth = {0, MAGNITUDE, (uint32)k, false};
    int64 pass, first, end, share;
    for (int64 known = 0;;) {
        if (threadIdx.x == 0) drawn = (int64)atomicAdd(state, 1ull);
        __syncthreads();
        pass = drawn / shares;
        share = drawn % shares;
        first = share * each;
        end = first + each < m ? first + each : m;

        // Wait for the passes before, and read what they have counted: past this multiprocessor's cache.
        for (; known < pass && !kth.exactly; ++known) {
            if (threadIdx.x == 0) {
                while (*(volatile uint64*)(counted + known) < (uint64)shares) __nanosleep(20);
                __threadfence();
            }
            __syncthreads();
            const volatile uint32* all = bins + known * BINS;
            for (int bin = threadIdx.x; bin < BINS; bin += THREADS) counts[bin] = all[bin];
            __syncthreads();
            narrow(kth, counts);
        }
        if (pass == PASSES) break;

        // Count the next digit in this share, and only then the share.
        if (!kth.exactly) {
            count_digits(values, first, end, kth, counts);
            for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
                if (counts[bin]) atomicAdd(bins + pass * BINS + bin, counts[bin]);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(counted + pass, 1ull);
        }
    }

    // Count what this share has beyond the bound and at it, and tell those after it.
    const Bits bound = kth.bound();
    uint32 beyond = 0, tied = 0, total[2];
    for (int64 at = first + threadIdx.x; at < end; at += THREADS) {
        const Bits bits = magnitude(values[at]);
        beyond += bits > bound;
        tied += bits == bound;
    }
    scan(beyond, total[0]);
    scan(tied, total[1]);
    if (threadIdx.x < 2) {
        found[2 * share + threadIdx.x] = FOUND | total[threadIdx.x];
        before[threadIdx.x] = 0;
    }
    __syncthreads();

    // Add up what all shares before have; threads of even numbers what is beyond the bound.
    uint64 sum = 0;
    for (int64 other = threadIdx.x; other < 2 * share; other += THREADS) {
        uint64 word;
        while ((word = found[other]) < FOUND) __nanosleep(20);
        sum += word - FOUND;
    }
    if (sum) atomicAdd(before + (threadIdx.x & 1), sum);
    __syncthreads();
    Bits own = UNSIGNED;
    compact(values, first, end, kth, (uint32)before[0], (uint32)before[1], [&](uint32 to, int64 at) {
        const REAL value = values[at];
        kept[to] = indices[at];
        largest[to] = value;
        if (magnitude(value) < own) own = magnitude(value);
    });
    if (least) tell_least(own, share, (uint64*)(bins + PASSES * BINS), least);
}
