// Votes: how indices are dealt out to ranks, what votes change, and votes in four bits; an entry a thread.

// The rank with which a round begins, by Fibonacci hashing
__device__ inline int64 first_of(int64 round, int64 ranks) {
    return (((uint32)round * 2654435769u) >> 16) * (uint32)ranks >> 16;
}

// Entries that are zero get numbers beyond all others.
extern "C" __global__ void __launch_bounds__(THREADS)
deal(int64 count, const INDEX* indices, const REAL* values, int64 ranks, int64 width, NUMBER* numbers) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= count) return;
    const int64 round = indices[i] / ranks;
    int64 owner = indices[i] - round * ranks + first_of(round, ranks);
    if (owner >= ranks) owner -= ranks;
    if (magnitude(values[i]) == 0) owner = ranks;
    numbers[i] = (NUMBER)(owner * width + round);
}

extern "C" __global__ void __launch_bounds__(THREADS)
undeal(int64 count, const NUMBER* numbers, int64 ranks, int64 width, INDEX* indices) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= count) return;
    const int64 owner = numbers[i] / width, round = numbers[i] - owner * width;
    int64 place = owner - first_of(round, ranks);
    if (place < 0) place += ranks;
    indices[i] = (INDEX)(round * ranks + place);
}

__device__ inline float32 root_of(float32 x) { return __fsqrt_rn(x); }
__device__ inline float64 root_of(float64 x) { return __dsqrt_rn(x); }

extern "C" __global__ void __launch_bounds__(THREADS)
changes(int64 count, const REAL* x, const INDEX* indices, const REAL* values, REAL* deltas, REAL* worth) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= count) return;
    deltas[i] = values[i] - x[indices[i]];
    worth[i] = root_of(real_of(magnitude(deltas[i]))) * root_of(real_of(magnitude(values[i])));
}

constexpr uint32 INF_BITS = 0x7f800000u, LEVEL = 1u << 21, INFINITE = 7;

// The value that a code stands for, at an index, if the lowest level begins at the magnitude bits `low`
__device__ inline float32 value_of(int64 index, uint32 code, uint32 low) {
    const uint32 level = code >> 1, negative = code & 1;
    const uint32 inside = (((uint32)index * 2246822519u) & (LEVEL - 1)) ^ (negative << 4);
    uint32 bits = low + level * LEVEL + inside;
    if (bits > INF_BITS - 1) bits = INF_BITS - 1;
    if (level == INFINITE) bits = INF_BITS;
    return real_of((int32)(bits | negative << 31));
}

// One block: where the lowest level begins, by the sum and the smallest of all magnitude bits. The lower 16 bits are 0.
extern "C" __global__ void __launch_bounds__(THREADS)
lowest_level(int64 count, const float32* values, int64* low) {
    __shared__ int64 totals[THREADS], smallest[THREADS];
    int64 total = 0, least = INF_BITS;
    for (int64 i = threadIdx.x; i < count; i += THREADS) {
        const int64 bits = bits_of(values[i]) & 0x7fffffff;
        total += bits;
        if (bits < least) least = bits;
    }
    totals[threadIdx.x] = total;
    smallest[threadIdx.x] = least;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            totals[threadIdx.x] += totals[threadIdx.x + half];
            if (smallest[threadIdx.x + half] < smallest[threadIdx.x])
                smallest[threadIdx.x] = smallest[threadIdx.x + half];
        }
    }
    if (threadIdx.x) return;
    int64 begin = totals[0] / count - INFINITE / 2 * (int64)LEVEL;
    if (begin < smallest[0]) begin = smallest[0];
    if (begin > INF_BITS) begin = INF_BITS;
    *low = begin & ~(int64)0xffff;
}

extern "C" __global__ void __launch_bounds__(THREADS)
to_ballots(int64 count, const float32* values, const INDEX* indices, const int64* low, NUMBER* coded, float32* lows,
           float32* rounded) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= count) return;
    const int32 bits = bits_of(values[i]), above = (bits & 0x7fffffff) - (int32)*low;
    uint32 level = above < 0 ? 0 : (uint32)above >> 21;
    if (level >= INFINITE) level = INFINITE - 1;
    if ((bits & 0x7fffffff) >= INF_BITS) level = INFINITE;
    const uint32 code = 2 * level + (bits < 0);
    coded[i] = (NUMBER)(16 * (int64)indices[i] + code);
    lows[i] = real_of((int32)*low);
    rounded[i] = value_of(indices[i], code, (uint32)*low);
}

extern "C" __global__ void __launch_bounds__(THREADS)
from_ballots(int64 count, const NUMBER* coded, const float32* lows, INDEX* indices, float32* values) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= count) return;
    indices[i] = (INDEX)(coded[i] / 16);
    values[i] = value_of(indices[i], (uint32)coded[i] & 15, (uint32)bits_of(lows[i]));
}
