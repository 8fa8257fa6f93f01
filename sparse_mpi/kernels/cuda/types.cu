// The types every kernel is compiled for, under NumPy's names: REAL is float32 or float64, INDEX int32 or int64.

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

typedef decltype(bits_of(REAL())) Bits;

constexpr int VECTOR = 16 / sizeof(REAL);  // entries in the widest load
constexpr uint32 WARP = 0xffffffffu;       // all lanes take part
constexpr Bits UNSIGNED = (Bits)((uint64)-1 >> (65 - 8 * sizeof(Bits)));

struct alignas(16) Vector { REAL at[VECTOR]; };

// |x| as an integer that orders like the magnitude, with Inf above every number and NaN above Inf
__device__ inline Bits magnitude(REAL x) { return bits_of(x) & UNSIGNED; }

__device__ inline bool aligned(const void* x, int bytes) { return ((uint64)x & (bytes - 1)) == 0; }
