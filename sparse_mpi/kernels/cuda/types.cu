// The types every kernel is compiled for, under NumPy's names: REAL is float32 or float64, and in the kernels of
// selections float16 or uint16, whose values are of type Real once they are widened; INDEX is int32 or int64.

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
