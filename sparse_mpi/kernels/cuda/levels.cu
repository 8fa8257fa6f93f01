// Values in levels that neighbours share. A block of threads works on one block of values, a thread on one of them.

__device__ inline uint32 mixed(uint32 x) {
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16);
}

// Returns 24 hash bits of an index and a value.
__device__ inline float32 drawn(int64 index, float32 value) {
    return (float32)(mixed(mixed((uint32)index) ^ (uint32)bits_of(value)) >> 8);
}
constexpr float32 DRAWS = 1 << 24;

// What the threads of a block have, joined by a function whose result does not depend on their order. All call it.
template <class T, class Join>
__device__ inline T joined(T mine, Join join) {
    __shared__ T of_warps[THREADS / 32];
    for (int lanes = 16; lanes; lanes /= 2) mine = join(mine, __shfl_xor_sync(WARP, mine, lanes));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = of_warps[0];
    for (int warp = 1; warp < THREADS / 32; ++warp) mine = join(mine, of_warps[warp]);
    __syncthreads();  // before the next call writes there
    return mine;
}
template <class T>
__device__ inline T largest_of(T mine) {
    return joined(mine, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
__device__ inline T smallest_of(T mine) {
    return joined(mine, [](T a, T b) { return a < b ? a : b; });
}
__device__ inline uint64 sum_of(uint64 mine) {
    return joined(mine, [](uint64 a, uint64 b) { return a + b; });
}

// A thread's value, if it has one of its own.
struct Own {
    int64 at;
    bool mine, finite;
    float32 value, magnitude;  // 0 of what is not finite
    __device__ Own(const float32* x, int64 place, bool own) : at(place), mine(own), value(own ? x[place] : 0) {
        const int32 bits = ::magnitude(value);
        finite = bits < 0x7F800000;
        magnitude = finite ? real_of(bits) : 0;
    }
    __device__ Own(const float32* x, const int64* edges)
        : Own(x, edges[blockIdx.x] + threadIdx.x, edges[blockIdx.x] + threadIdx.x < edges[blockIdx.x + 1]) {}
};

// The code of a value with this index, and the scale that is sent for its block. Threads without a value call it, too.
__device__ inline int8 in_steps(const Own& own, int64 index, bool brief, float32& sent) {
    const float32 most = largest_of(own.magnitude);
    const float32 cap = 0x1.fffffp127f, scale = (most < cap ? most : cap) / 127.0f;
    const uint32 even = rounded_up((uint32)bits_of(scale)) & 0xffff0000u;
    sent = brief ? real_of((int32)(even < 0x7c010000u ? even : 0x7c010000u)) : scale;
    const float32 step = (own.finite ? own.value : 0) / (scale > 0 ? scale : 1.0f);
    float32 lower = floorf(step);
    lower += (step - lower) * DRAWS > drawn(index, own.value);
    lower = lower < -127 ? -127 : lower > 127 ? 127 : lower;
    return own.finite ? (int8)lower : (int8)-128;
}
__device__ inline float32 of_steps(int8 code, float32 scale) {
    return code == -128 ? real_of(0x7FC00000) : code * scale;
}

extern "C" __global__ void __launch_bounds__(THREADS)
to_int8(const float32* x, const INDEX* indices, const int64* edges, int64 brief, int8* codes, float32* scales) {
    const Own own(x, edges);
    float32 scale;
    const int8 code = in_steps(own, own.mine ? indices[own.at] : 0, brief, scale);
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
    if (own.mine) codes[own.at] = code;
}

extern "C" __global__ void __launch_bounds__(THREADS)
from_int8(const int8* codes, const float32* scales, const int64* edges, float32* x) {
    const int64 i = edges[blockIdx.x] + threadIdx.x;
    if (i < edges[blockIdx.x + 1]) x[i] = of_steps(codes[i], scales[blockIdx.x]);
}

// Complete messages, whose entries have every index of their region: codes and scales stand in them as they are sent.
// back: what the receivers will see.
extern "C" __global__ void __launch_bounds__(THREADS)
write_int8(const Messages messages, int64 count, const float32* x, int64 brief, uint8* buffer, float32* back) {
    const Message m = messages[owner(messages, &Message::block, count, blockIdx.x)];
    const int64 block = blockIdx.x - m.block, number = THREADS * block + threadIdx.x;
    const Own own(x, m.first + number, number < m.entries);
    float32 scale;
    const int8 code = in_steps(own, m.start + number, brief, scale);
    if (threadIdx.x < m.scale_bytes) {
        const int64 byte = m.scales + m.scale_bytes * block + threadIdx.x;
        buffer[byte] = (uint8)((uint32)bits_of(scale) >> 8 * (4 - m.scale_bytes + threadIdx.x));
    }
    if (!own.mine) return;
    buffer[m.values + number] = (uint8)code;
    back[own.at] = of_steps(code, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS)
read_int8(const Messages messages, int64 count, const uint8* buffer, INDEX* indices, float32* x) {
    const Message m = messages[owner(messages, &Message::block, count, blockIdx.x)];
    const int64 block = blockIdx.x - m.block, number = THREADS * block + threadIdx.x;
    if (number >= m.entries) return;
    uint32 scale = 0;
    for (int64 byte = 0; byte < m.scale_bytes; ++byte)
        scale |= (uint32)buffer[m.scales + m.scale_bytes * block + byte] << 8 * (4 - m.scale_bytes + byte);
    indices[m.first + number] = (INDEX)(m.start + number);
    x[m.first + number] = of_steps((int8)buffer[m.values + number], real_of((int32)scale));
}

// The magnitudes that a word stands for: the smallest one, and the distance between neighbouring ones. What is
// multiplied and then added is rounded twice: one operation for both would give other bits than the host's.
constexpr uint32 SHARE = 0xFF;
struct Spaced {
    float32 low, step;
    __device__ Spaced(uint32 word, int64 steps) {
        const float32 high = real_of((int32)(word & ~SHARE));
        low = __fmul_rn(high, (float32)(word & SHARE) / 256.0f);
        step = (high - low) / (float32)steps;
    }
};

// Writes the codes of a block side by side: levels, and signs above them. Threads without a value call it, too.
template <int BITS>
__device__ inline void write_codes(const Own& own, uint32 level, float32 low, const int64* places, uint8* codes) {
    __shared__ uint8 all[THREADS];
    const uint32 half = 1 << (BITS - 1), negative = own.value < 0 && (level || low > 0);
    all[threadIdx.x] = !own.mine ? 0 : own.finite ? level + half * negative : half;
    __syncthreads();
    const int each = 8 / BITS;
    if (threadIdx.x >= places[blockIdx.x + 1] - places[blockIdx.x]) return;
    uint32 byte = 0;
    for (int i = 0; i < each; ++i) byte |= (uint32)all[each * threadIdx.x + i] << (BITS * i);
    codes[places[blockIdx.x] + threadIdx.x] = byte;
}

extern "C" __global__ void __launch_bounds__(THREADS)
to_int4(const float32* x, const INDEX* indices, const int64* edges, const int64* places, uint8* codes, uint32* words) {
    // The larger magnitude rounded up, and the smaller one down.
    const Own own(x, edges);
    const uint32 top = 0x7F7FFF00, most = bits_of(largest_of(own.magnitude));
    const float32 least = smallest_of(own.mine ? own.magnitude : real_of(0x7F800000));
    const uint32 high = ((most < top ? most : top) + SHARE) & ~SHARE;
    const float32 share = least / (high ? real_of((int32)high) : 1.0f) * 256.0f;
    const uint32 word = high | (uint32)(share < SHARE ? share : (float32)SHARE);
    if (threadIdx.x == 0) words[blockIdx.x] = word;
    // Each value to whole steps between them.
    const Spaced levels(word, 7);
    const float32 steps = (own.magnitude - levels.low) / (levels.step > 0 ? levels.step : 1.0f);
    float32 lower = floorf(steps);
    if (own.mine) lower += (steps - lower) * DRAWS > drawn(indices[own.at], own.value);
    write_codes<4>(own, lower < 0 ? 0 : lower > 7 ? 7 : (uint32)lower, levels.low, places, codes);
}

extern "C" __global__ void __launch_bounds__(THREADS)
to_int2(const float32* x, const int64* edges, const int64* places, uint8* codes, uint32* words) {
    // Add up magnitudes as whole parts of the largest, so that their order does not matter.
    const Own own(x, edges);
    const float32 most = largest_of(own.magnitude), least = smallest_of(own.mine ? own.magnitude : real_of(0x7F800000));
    const uint64 part = own.magnitude / (most > 0 ? most : 1.0f) * DRAWS, total = sum_of(part);
    const uint64 count = edges[blockIdx.x + 1] - edges[blockIdx.x];
    // Cut the block at its mean, and take the means of what is above and of what is below.
    const uint64 cut = total / count > 1 ? total / count : 1;
    const bool above = part >= cut;
    const uint64 sum = sum_of(above ? part : 0), many = sum_of(above);
    const uint64 upper = sum / (many ? many : 1), lower = (total - sum) / (count > many ? count - many : 1);
    const uint32 high = (uint32)bits_of((float32)upper / DRAWS * most) & ~SHARE;
    const uint64 share = least > 0 ? (512 * lower + upper) / (2 * upper) : 0;
    const uint32 word = high | (uint32)(share < SHARE ? share : SHARE);
    if (threadIdx.x == 0) words[blockIdx.x] = word;
    write_codes<2>(own, above, Spaced(word, 1).low, places, codes);
}

extern "C" __global__ void __launch_bounds__(THREADS)
from_levels(const uint8* codes, const uint32* words, const int64* edges, const int64* places, int64 bits, float32* x) {
    const int64 i = edges[blockIdx.x] + threadIdx.x;
    if (i >= edges[blockIdx.x + 1]) return;
    const uint32 half = 1 << (bits - 1), at = threadIdx.x * bits;
    const uint32 code = codes[places[blockIdx.x] + at / 8] >> (at % 8) & (2 * half - 1);
    const Spaced levels(words[blockIdx.x], half - 1);
    const float32 value = __fadd_rn(levels.low, __fmul_rn((float32)(code % half), levels.step));
    x[i] = code == half && levels.low == 0 ? real_of(0x7FC00000) : code < half ? value : -value;
}

// Powers of 4: a level is the distance of a number's exponent from the largest of its block, in pairs. A scale is that
// exponent, with a bit above it where the last level is Inf. Threads without a value have 0, as the host's rows do.
constexpr uint32 EXPONENTS = 0xFF;

extern "C" __global__ void __launch_bounds__(THREADS)
to_log4(const float32* x, const int64* edges, const int64* places, uint8* codes, uint32* scales) {
    __shared__ uint8 all[THREADS];
    const int64 i = edges[blockIdx.x] + threadIdx.x;
    const uint32 mine = i < edges[blockIdx.x + 1] ? (uint32)bits_of(x[i]) >> 23 : 0;
    const bool infinite = mine == EXPONENTS;
    const uint32 own = infinite ? 0 : mine, top = largest_of(own), has = largest_of((uint32)infinite);
    const uint32 level = (top - own) / 2, last = 15 - has;
    all[threadIdx.x] = infinite ? 15 : level < last ? level : last;
    if (threadIdx.x == 0) scales[blockIdx.x] = (top + (EXPONENTS + 1) * has) << 23;
    __syncthreads();
    if (threadIdx.x < places[blockIdx.x + 1] - places[blockIdx.x])
        codes[places[blockIdx.x] + threadIdx.x] = all[2 * threadIdx.x] | (uint32)all[2 * threadIdx.x + 1] << 4;
}

extern "C" __global__ void __launch_bounds__(THREADS)
from_log4(const uint8* codes, const uint32* scales, const int64* edges, const int64* places, float32* x) {
    const int64 i = edges[blockIdx.x] + threadIdx.x;
    if (i >= edges[blockIdx.x + 1]) return;
    const uint32 level = codes[places[blockIdx.x] + threadIdx.x / 2] >> (threadIdx.x % 2 * 4) & 15;
    const uint32 word = scales[blockIdx.x] >> 23, top = word & EXPONENTS;
    const uint32 exponent = word > EXPONENTS && level == 15 ? EXPONENTS : top > 2 * level ? top - 2 * level : 0;
    x[i] = real_of((int32)(exponent << 23));
}
