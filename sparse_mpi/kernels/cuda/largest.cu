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

// One block an owner of votes: keeps those of most worth, as many as its quota. ends: the sums of all counts up to each
// one, `tiles` an owner. told: memory of the host, with all quotas, and behind them room for how many each owner gets.
extern "C" __global__ void __launch_bounds__(THREADS)
keep_votes(const int64* ends, int64 tiles, const INDEX* numbers, const REAL* deltas, const REAL* worth, int64* told,
           INDEX* kept, REAL* largest) {
    const int64 owner = blockIdx.x;
    const auto end_of = [=](int64 before) { return before ? ends[before * tiles - 1] : 0; };
    const auto number_of = [=](int64 other) {
        const int64 there = end_of(other + 1) - end_of(other);
        return there < told[other] ? there : told[other];
    };
    uint32 earlier = 0, total;
    for (int64 other = threadIdx.x; other < owner; other += THREADS) earlier += (uint32)number_of(other);
    scan(earlier, total);
    const int64 first = end_of(owner), there = end_of(owner + 1) - first, number = number_of(owner);
    const auto write = [=](uint32 to, int64 at) {
        kept[total + to] = numbers[first + at];
        largest[total + to] = deltas[first + at];
    };
    if (number && number < there) {
        k_largest(worth + first, there, number, write);
    } else {
        for (int64 at = threadIdx.x; at < number; at += THREADS) write((uint32)at, at);
    }
    if (threadIdx.x == 0) told[gridDim.x + owner] = number;
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
