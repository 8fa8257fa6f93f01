// Sums over the entries that reach a threshold, in float64. Each block writes its sums to partial[quantity * blocks +
// block]. The order of additions depends on the length of x and the grid alone, so that results are reproducible.

constexpr int WARPS = THREADS / 32;
constexpr int LARGEST = 5;  // number of the quantity that is no sum, after those that are

extern "C" __global__ void __launch_bounds__(THREADS)
moments(const REAL* x, int64 n, int64 threshold, float64* partial) {
    __shared__ float64 sums[LARGEST][WARPS];
    __shared__ Bits maxima[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Bits limit = (Bits)threshold;
    float64 own[LARGEST] = {0, 0, 0, 0, 0};  // entries, |x|, x^2, ln |x|, entries that are not zero
    Bits largest = 0;
#pragma unroll 4
    for (int64 at = blockIdx.x * (int64)THREADS + threadIdx.x; at < n; at += (int64)gridDim.x * THREADS) {
        const Real value = widen(x[at]);
        const Bits bits = magnitude(x[at]);
        if (bits < limit) continue;
        const float64 size = value < 0 ? -(float64)value : (float64)value;
        own[0] += 1;
        own[1] += size;
        own[2] += size * size;
        if (bits) {
            own[3] += log(size);
            own[4] += 1;
        }
        largest = bits > largest ? bits : largest;  // as bits, since NaN loses no comparison of them
    }
    for (int apart = 16; apart; apart /= 2) {
        for (int q = 0; q < LARGEST; ++q) own[q] += __shfl_xor_sync(WARP, own[q], apart);
        const Bits other = __shfl_xor_sync(WARP, largest, apart);
        largest = other > largest ? other : largest;
    }
    if (lane == 0) {
        for (int q = 0; q < LARGEST; ++q) sums[q][warp] = own[q];
        maxima[warp] = largest;
    }
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < WARPS; ++w) {
        for (int q = 0; q < LARGEST; ++q) own[q] += sums[q][w];
        largest = maxima[w] > largest ? maxima[w] : largest;
    }
    for (int q = 0; q < LARGEST; ++q) partial[q * gridDim.x + blockIdx.x] = own[q];
    partial[LARGEST * gridDim.x + blockIdx.x] = (float64)real_of(largest);
}
