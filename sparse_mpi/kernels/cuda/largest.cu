// The k largest magnitudes of each row of a matrix, and of pairs.

#include "radix.cu"

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

// One block an owner of votes, `width` numbers each: keeps those of most worth, as many as its quota. Where it has
// fewer, its first other numbers are there, too, with delta 0. If there are `more` for owner `own`, they come last of
// all `most`, and its quota has none. ends: the sums of all counts up to each one, `tiles` an owner. quotas: memory of
// the host.
extern "C" __global__ void __launch_bounds__(THREADS)
keep_votes(const int64* ends, int64 tiles, int64 width, int64 own, int64 more, int64 most, const INDEX* numbers,
           const REAL* deltas, const REAL* worth, const int64* quotas, INDEX* kept, REAL* largest) {
    const int64 owner = blockIdx.x, begin = owner * width;
    int64 quota = quotas[owner];
    uint32 earlier = 0, total, lead;
    for (int64 other = threadIdx.x; other < owner; other += THREADS) earlier += (uint32)quotas[other];
    scan(earlier, total);
    const int64 first = owner ? ends[owner * tiles - 1] : 0, there = ends[(owner + 1) * tiles - 1] - first;
    numbers += first;
    deltas += first;
    kept += total;
    largest += total;
    if (owner == own && more) {
        for (int64 to = threadIdx.x; to < quota; to += THREADS) {
            kept[to] = (INDEX)(begin + to);
            largest[to] = 0;
        }
        quota = more;
        kept += most - more - total;
        largest += most - more - total;
    }
    const auto write = [=](int64 to, int64 at) {
        kept[to] = numbers[at];
        largest[to] = deltas[at];
    };
    if (quota < there) {
        if (quota) k_largest(worth + first, there, quota, write);
        return;
    }
    // All places are taken up to the entry before which so many others lie as are lacking.
    const int64 lacking = quota - there;
    uint32 early = 0;
    for (int64 at = threadIdx.x; at < there; at += THREADS) early += numbers[at] - begin - at < lacking;
    scan(early, lead);
    if (!lacking) lead = 0;
    for (int64 to = threadIdx.x; to < lead + lacking; to += THREADS) {
        kept[to] = (INDEX)(begin + to);
        largest[to] = 0;
    }
    __syncthreads();
    for (int64 at = threadIdx.x; at < there; at += THREADS) write(at < lead ? numbers[at] - begin : lacking + at, at);
}

// What `keep_largest` chooses from: pairs, or all entries of a vector, over the roots of squares if there are any.
struct Entries {
    const INDEX* indices;
    const REAL *values, *squares;
    REAL most;

    __device__ int64 index(int64 at) const { return indices ? (int64)indices[at] : at; }
    __device__ REAL operator[](int64 at) const { return squares ? over_root(values[at], squares[at], most) : values[at]; }
};

// Keeps k of m pairs, 1 <= k <= m < 2^32, which are so few that they mostly stay in the caches. A block has a share of
// the pairs: about as many as are `worth` one, or more if there are too few blocks. With `passed` there is room for m,
// it tells how many there are, as `preceding` does, and they are what reaches a threshold in x, of n entries: if there
// are too few, or more than m, the k come from all of x.
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
keep_largest(const INDEX* indices, const REAL* pairs, int64 m, int64 worth, int64 k, const uint64* passed,
             const REAL* x, int64 n, const REAL* squares, REAL most, INDEX* kept, REAL* largest, uint64* state,
             int64* least) {
    __shared__ uint32 counts[BINS];
    __shared__ int64 drawn;
    __shared__ uint64 before[2];
    __shared__ int64 there;
    if (threadIdx.x == 0) there = passed ? (int64)(*passed & COUNT) : m;
    __syncthreads();
    const bool whole = there < k || there > m;
    const Entries values = whole ? Entries{nullptr, x, squares, most} : Entries{indices, pairs, nullptr, 0};
    m = whole ? n : there;
    const int64 wanted = (m + worth - 1) / worth, shares = wanted < gridDim.x ? wanted : gridDim.x;
    const int64 each = (m + shares - 1) / shares;
    if (blockIdx.x >= shares) return;
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
        kept[to] = (INDEX)values.index(at);
        largest[to] = whole && value == 0 ? (REAL)0 : value;  // no -0
        if (magnitude(value) < own) own = magnitude(value);
    });
    if (least) tell_least(own, share, shares, (uint64*)(bins + PASSES * BINS), least);
}
