// Votes: how indices are dealt out to ranks, what votes change, and votes in four bits; an entry a thread.

// The owner of an index, and its round.
struct Dealt {
    int64 owner, round;
    __device__ Dealt(int64 index, int64 ranks) : round(index / ranks) {
        owner = index - round * ranks + first_of(round, ranks);
        if (owner >= ranks) owner -= ranks;
    }
};

// A counting sort by owners. A block has a tile of the candidates, and counts those of each owner in it.
// counts: of each owner a row, with a number for each tile.
extern "C" __global__ void __launch_bounds__(THREADS)
count_dealt(int64 count, const INDEX* indices, int64 ranks, int64* counts) {
    __shared__ int64 owners[THREADS];
    const int64 first = blockIdx.x * (int64)THREADS, i = first + threadIdx.x;
    owners[threadIdx.x] = i < count ? Dealt(indices[i], ranks).owner : ranks;
    __syncthreads();
    for (int64 owner = threadIdx.x; owner < ranks; owner += THREADS) {
        int64 own = 0;
        for (int t = 0; t < THREADS; ++t) own += owners[t] == owner;
        counts[owner * gridDim.x + blockIdx.x] = own;
    }
}

// ends: the sums of all counts up to each one. Writes numbers, votes and what they are worth where they belong, in their
// order.
extern "C" __global__ void __launch_bounds__(THREADS)
deal(int64 count, const REAL* x, const INDEX* indices, const REAL* values, int64 ranks, int64 width, const int64* ends,
     NUMBER* numbers, REAL* deltas, REAL* worth) {
    __shared__ int64 owners[THREADS];
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    const Dealt own(i < count ? indices[i] : 0, ranks);
    owners[threadIdx.x] = own.owner;
    __syncthreads();
    if (i >= count) return;
    const int64 before = own.owner * gridDim.x + blockIdx.x;
    int64 place = before ? ends[before - 1] : 0;
    for (int t = 0; t < threadIdx.x; ++t) place += owners[t] == own.owner;
    const REAL delta = values[i] - x[indices[i]];
    numbers[place] = (NUMBER)(own.owner * width + own.round);
    deltas[place] = delta;
    worth[place] = root(real_of(magnitude(delta))) * root(real_of(magnitude(values[i])));
}

// The index that has a number.
__device__ inline int64 undealt(int64 number, int64 ranks, int64 width) {
    const int64 owner = number / width, round = number - owner * width;
    int64 place = owner - first_of(round, ranks);
    if (place < 0) place += ranks;
    return round * ranks + place;
}

extern "C" __global__ void __launch_bounds__(THREADS)
undeal(int64 count, const NUMBER* numbers, int64 ranks, int64 width, INDEX* indices) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= count) return;
    indices[i] = (INDEX)undealt(numbers[i], ranks, width);
}

extern "C" __global__ void __launch_bounds__(THREADS)
add_dealt(int64 count, REAL* x, const NUMBER* numbers, const REAL* values, int64 ranks, int64 width) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i < count) x[undealt(numbers[i], ranks, width)] += values[i];
}

constexpr uint32 INF_BITS = 0x7f800000u, LEVEL = 1u << 21, INFINITE = 7, NO_VOTE = 15;

// The value that a code stands for, at an index, if the lowest level begins at the magnitude bits `low`
__device__ inline float32 value_of(int64 index, uint32 code, uint32 low) {
    if (code == NO_VOTE) return 0;
    const uint32 level = code >> 1, negative = code & 1;
    const uint32 inside = (((uint32)index * 2246822519u) & (LEVEL - 1)) ^ (negative << 4);
    uint32 bits = low + level * LEVEL + inside;
    if (bits > INF_BITS - 1) bits = INF_BITS - 1;
    if (level == INFINITE) bits = INF_BITS;
    return real_of((int32)(bits | negative << 31));
}

// Joins what all threads of a block have: the sum, the smallest, and the number.
__device__ inline void join(int64& total, int64& least, int64& number) {
    __shared__ int64 totals[THREADS], smallest[THREADS], counts[THREADS];
    totals[threadIdx.x] = total;
    counts[threadIdx.x] = number;
    smallest[threadIdx.x] = least;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            totals[threadIdx.x] += totals[threadIdx.x + half];
            counts[threadIdx.x] += counts[threadIdx.x + half];
            if (smallest[threadIdx.x + half] < smallest[threadIdx.x])
                smallest[threadIdx.x] = smallest[threadIdx.x + half];
        }
    }
    __syncthreads();
    total = totals[0];
    least = smallest[0];
    number = counts[0];
}

// The sum, the smallest and the number of the magnitude bits that each block sees, block after block; without zeros.
extern "C" __global__ void __launch_bounds__(THREADS)
sum_levels(int64 count, const float32* values, int64* of_blocks) {
    int64 total = 0, least = INF_BITS, number = 0;
    for (int64 i = blockIdx.x * (int64)THREADS + threadIdx.x; i < count; i += gridDim.x * (int64)THREADS) {
        const int64 bits = bits_of(values[i]) & 0x7fffffff;
        if (!bits) continue;
        total += bits;
        if (bits < least) least = bits;
        ++number;
    }
    join(total, least, number);
    if (threadIdx.x) return;
    of_blocks[3 * blockIdx.x] = total;
    of_blocks[3 * blockIdx.x + 1] = least;
    of_blocks[3 * blockIdx.x + 2] = number;
}

// of_blocks: what `sum_levels` found, of up to THREADS blocks. The lowest level begins at the smallest of all magnitude
// bits, or nearer to their mean; its lower 16 bits are 0.
extern "C" __global__ void __launch_bounds__(THREADS)
to_ballots(int64 count, const float32* values, const INDEX* indices, const int64* of_blocks, int64 blocks, NUMBER* coded,
           float32* lows, float32* rounded) {
    const int64* mine = of_blocks + 3 * threadIdx.x;
    const bool has = threadIdx.x < blocks;
    int64 total = has ? mine[0] : 0, least = has ? mine[1] : INF_BITS, number = has ? mine[2] : 0;
    join(total, least, number);
    int64 begin = total / (number ? number : 1) - INFINITE / 2 * (int64)LEVEL;
    if (begin < least) begin = least;
    if (begin > INF_BITS) begin = INF_BITS;
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= count) return;
    const int32 low = (int32)(begin & ~(int64)0xffff), bits = bits_of(values[i]), above = (bits & 0x7fffffff) - low;
    uint32 level = above < 0 ? 0 : (uint32)above >> 21;
    if (level >= INFINITE) level = INFINITE - 1;
    if ((bits & 0x7fffffff) >= INF_BITS) level = INFINITE;
    const uint32 code = bits & 0x7fffffff ? 2 * level + (bits < 0 && level < INFINITE) : NO_VOTE;
    coded[i] = (NUMBER)(16 * (int64)indices[i] + code);
    lows[i] = real_of(low);
    rounded[i] = value_of(indices[i], code, (uint32)low);
}

// lows: of every block of entries that share a scale, those of a message all alike.
extern "C" __global__ void __launch_bounds__(THREADS)
from_ballots(const Messages messages, int64 many, int64 count, const NUMBER* coded, const float32* lows, INDEX* indices,
             float32* values) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= count) return;
    const float32 low = lows[messages[owner(messages, &Message::first, many, i)].block];
    indices[i] = (INDEX)(coded[i] / 16);
    values[i] = value_of(indices[i], (uint32)coded[i] & 15, (uint32)bits_of(low));
}
