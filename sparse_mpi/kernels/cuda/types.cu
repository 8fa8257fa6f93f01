// The types every kernel is compiled for, under NumPy's names: REAL is float32 or float64, and in the kernels of
// selections float16 or uint16, whose values are of type Real once they are widened; INDEX is int32 or int64, and where
// it is a unit of pairs int16 too.

typedef short int16;
typedef int int32;
typedef long long int64;
typedef signed char int8;
typedef unsigned char uint8;
typedef unsigned int uint32;
typedef unsigned long long uint64;
typedef float float32;
typedef double float64;
struct float16 { unsigned short bits; };
struct uint16 { unsigned short bits; };  // bfloat16: the upper half of a float32

__device__ inline int32 bits_of(float32 x) { return __float_as_int(x); }
__device__ inline int64 bits_of(float64 x) { return __double_as_longlong(x); }

__device__ inline float32 real_of(int32 bits) { return __int_as_float(bits); }
__device__ inline float64 real_of(int64 bits) { return __longlong_as_double(bits); }

__device__ inline float32 widen(float32 x) { return x; }
__device__ inline float64 widen(float64 x) { return x; }
__device__ inline float32 widen(uint16 x) { return __int_as_float((int32)((uint32)x.bits << 16)); }
// By integers alone, so that subnormal numbers stay what they are even where arithmetic takes them for zero.
__device__ inline float32 widen(float16 x) {
    const uint32 sign = (uint32)(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
    uint32 wide = (rest << 13) + (112u << 23);
    if (rest >= 0x7c00u) wide = 0x7f800000u | rest << 13;  // Inf and NaN
    if (rest < 0x400u) {  // its highest bit is the one that a normal number does not store
        const int zeros = __clz((int)rest);
        wide = rest ? ((uint32)(133 - zeros) << 23) + (rest << (zeros - 8)) : 0;
    }
    return real_of((int32)(sign | wide));
}

// Bits of a float32, not NaN, whose upper half is rounded, ties to even: it grows by one if the lower half is more than
// half of its range, or just that and the upper half odd.
__device__ inline uint32 rounded_up(uint32 bits) { return bits + 0x7fffu + (bits >> 16 & 1u); }

typedef decltype(widen(REAL())) Real;
typedef decltype(bits_of(Real())) Bits;

constexpr int VECTOR = 16 / sizeof(Real);  // entries in a load: the widest one, half of it for half precision
constexpr uint32 WARP = 0xffffffffu;       // all lanes take part
constexpr Bits UNSIGNED = (Bits)((uint64)-1 >> (65 - 8 * sizeof(Bits)));

struct alignas(VECTOR * sizeof(REAL)) Vector { REAL at[VECTOR]; };

// |x| as an integer that orders like the magnitude, with Inf above every number and NaN above Inf
__device__ inline Bits magnitude(REAL x) { return bits_of(widen(x)) & UNSIGNED; }

__device__ inline bool aligned(const void* x, int bytes) { return ((uint64)x & (bytes - 1)) == 0; }

// Ordered compaction in one pass (decoupled look-back, Merrill and Garland 2016): each tile of entries tells how many it
// found (PARTIAL), or how many all tiles up to and including it did (WHOLE). Count and flag share one word, so that no
// fence is needed.
constexpr uint64 PARTIAL = 1ull << 62, WHOLE = 2ull << 62, COUNT = PARTIAL - 1;

// Returns how many entries the tiles before this one found, and publishes the count `own` of this one; run by one warp.
__device__ inline uint64 preceding(volatile uint64* found, int64 tile, uint64 own) {
    const int lane = threadIdx.x & 31;
    if (lane == 0) found[tile] = (tile ? PARTIAL : WHOLE) | own;
    uint64 before = 0;
    for (int64 last = tile - 1; last >= 0; last -= 32) {
        uint64 word = WHOLE;
        if (last >= lane) {
            while ((word = found[last - lane]) < PARTIAL) __nanosleep(20);
        }
        const uint32 whole = __ballot_sync(WARP, word >= WHOLE);
        const int stop = whole ? __ffs((int)whole) - 1 : 31;
        uint64 sum = lane <= stop ? word & COUNT : 0;
        for (int apart = 16; apart; apart /= 2) sum += __shfl_xor_sync(WARP, sum, apart);
        before += sum;
        if (whole) break;
    }
    if (lane == 0 && tile) found[tile] = WHOLE | (before + own);
    return before;
}

// The tile of this block: tiles are taken in the order in which blocks start, so that none waits for one not started.
__device__ inline int64 own_tile(uint64* taken) {
    __shared__ int64 tile;
    if (threadIdx.x == 0) tile = (int64)atomicAdd(taken, 1ull);
    __syncthreads();
    return tile;
}

// Where this thread's entry goes if it is chosen, an entry a thread and a block a tile; all threads take part. The last
// tile tells how many are chosen in all to memory of the host, if there is any.
__device__ inline int64 place_of(bool chosen, int64 tile, uint64* found, int64* told) {
    __shared__ int64 start;
    __shared__ int counts[THREADS / 32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint32 mine = __ballot_sync(WARP, chosen);
    if (lane == 0) counts[warp] = __popc(mine);
    __syncthreads();
    if (warp == 0) {
        uint64 own = 0;
        for (int w = 0; w < THREADS / 32; ++w) own += counts[w];
        const uint64 before = preceding(found, tile, own);
        if (lane == 0) {
            start = (int64)before;
            if (told && tile + 1 == gridDim.x) *told = (int64)(before + own);
        }
    }
    __syncthreads();
    int64 place = start;
    for (int w = 0; w < warp; ++w) place += counts[w];
    return place + __popc(mine & ((1u << lane) - 1));
}

// The least of what all threads of a warp have
template <typename T>
__device__ inline T least_of_warp(T own) {
    for (int apart = 16; apart; apart /= 2) {
        const T other = __shfl_xor_sync(WARP, own, apart);
        if (other < own) own = other;
    }
    return own;
}

// Tells the least of what all threads of `blocks` blocks have to memory of the host; the block that is done last does so.
// state, zeroed: [0] blocks that are done, [1 + block] what each has.
__device__ inline void tell_least(Bits own, int64 block, int64 blocks, uint64* state, int64* told) {
    __shared__ Bits of_warps[THREADS / 32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    own = least_of_warp(own);
    if (lane == 0) of_warps[warp] = own;
    __syncthreads();
    if (warp) return;
    uint64 least = (uint64)least_of_warp(of_warps[lane < THREADS / 32 ? lane : 0]);
    volatile uint64* of_blocks = state + 1;
    int last = 0;
    if (lane == 0) {
        of_blocks[block] = least;
        __threadfence();  // it comes before the block is done
        last = atomicAdd(state, 1ull) + 1 == blocks;
    }
    if (!__shfl_sync(WARP, last, 0)) return;
    for (int64 other = lane; other < blocks; other += 32) {
        const uint64 there = of_blocks[other];
        if (there < least) least = there;
    }
    least = least_of_warp(least);
    if (lane == 0) *told = (int64)least;
}

// The first of ascending indices that is not below `bound`, or `count`
template <class T>
__device__ inline int64 lower_bound(const T* indices, int64 count, int64 bound) {
    int64 low = 0, high = count;
    while (low < high) {
        const int64 middle = (low + high) / 2;
        if (indices[middle] < bound) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Rounded to nearest, as on the host
__device__ inline float32 root(float32 x) { return __fsqrt_rn(x); }
__device__ inline float64 root(float64 x) { return __dsqrt_rn(x); }

// x over the root of its square, which counts as 1e-20 at least, and as finite.
template <typename R>
__device__ inline R over_root(R x, R square, R most) {
    const R least = square > (R)1e-20 ? square : (R)1e-20;
    return x / root(least < most ? least : most);
}

#ifdef MESSAGES
// Records of packed messages, as `MESSAGE` in base.py has them, but `chunks`: those of all messages before. Up to
// MESSAGES of them are passed by value; with MANY there are more, in memory of the device.
struct Message {
    int64 entries, first, start, shift, spread, span, block, code, scale_bytes, head, values, scales, lows, highs, chunks;
};
#ifdef MANY
typedef const Message* Messages;
#else
struct Messages {
    Message all[MESSAGES];
    __device__ const Message& operator[](int64 i) const { return all[i]; }
};
#endif

// Returns the message that item i belongs to, of those in whose order `field` ascends: the last one with field <= i.
__device__ inline int64 owner(const Messages& messages, int64 Message::* field, int64 count, int64 i) {
    int64 low = 0, high = count;
    while (high - low > 1) {
        const int64 middle = (low + high) / 2;
        if (messages[middle].*field <= i) low = middle;
        else high = middle;
    }
    return low;
}
#endif

// The receiver with which a round of dealing begins, by Fibonacci hashing
__device__ inline int64 first_of(int64 round, int64 number) {
    return (((uint32)round * 2654435769u) >> 16) * (uint32)number >> 16;
}
