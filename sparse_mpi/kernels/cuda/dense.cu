// Passes over dense vectors, an entry a thread.

// The code of bfloat16: the upper half of a float32, rounded. NaN becomes 0x7FC0.
extern "C" __global__ void __launch_bounds__(THREADS)
to_bfloat16(const REAL* x, int64 n, uint16* codes, REAL* back) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= n) return;
    const uint32 bits = (uint32)bits_of((float32)x[i]);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint16 code = {(unsigned short)(nan ? 0x7fc0u : rounded_up(bits) >> 16)};
    codes[i] = code;
    if (back) back[i] = widen(code);
}

extern "C" __global__ void __launch_bounds__(THREADS)
subtract_dense(REAL* x, const REAL* values, int64 n) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= n) return;
    const REAL value = values[i];
    x[i] = value - value == 0 ? x[i] - value : (REAL)0;
}

// Products that are rounded before anything is added to them, as on the host
__device__ inline float32 product(float32 a, float32 b) { return __fmul_rn(a, b); }
__device__ inline float64 product(float64 a, float64 b) { return __dmul_rn(a, b); }

extern "C" __global__ void __launch_bounds__(THREADS)
follow_squares(REAL* mean, const REAL* x, REAL weight, int64 n) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= n) return;
    const REAL change = product(product(x[i], x[i]) - mean[i], weight);
    if (x[i] - x[i] + (mean[i] - mean[i]) == 0) mean[i] += change;
}

extern "C" __global__ void __launch_bounds__(THREADS)
standardized(const REAL* x, const REAL* squares, REAL most, int64 n, REAL* found) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= n) return;
    found[i] = over_root(x[i], squares[i], most);
}

extern "C" __global__ void __launch_bounds__(THREADS)
add_rows(const REAL* matrix, int64 rows, int64 columns, REAL* total) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= columns) return;
    REAL sum = matrix[i];
    for (int64 row = 1; row < rows; ++row) sum += matrix[row * columns + i];
    total[i] = sum;
}
