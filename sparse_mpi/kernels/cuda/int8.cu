// Values in steps of a scale that neighbours share. A block of threads works on one scale, a thread on one value.

__device__ inline uint32 mixed(uint32 x) {
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16);
}

extern "C" __global__ void __launch_bounds__(THREADS)
to_int8(const float32* x, const INDEX* indices, const int64* edges, int8* codes, float32* scales) {
    __shared__ float32 largest[THREADS / 32];
    const int64 i = edges[blockIdx.x] + threadIdx.x;
    const bool mine = i < edges[blockIdx.x + 1];
    const float32 value = mine ? x[i] : 0;
    const bool finite = magnitude(value) < 0x7F800000;
    float32 most = finite ? real_of(magnitude(value)) : 0;
    for (int lanes = 16; lanes; lanes /= 2) {
        const float32 other = __shfl_xor_sync(WARP, most, lanes);
        most = other > most ? other : most;
    }
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
    __syncthreads();
    for (int warp = 0; warp < THREADS / 32; ++warp) most = largest[warp] > most ? largest[warp] : most;
    const float32 cap = 0x1.fffffp127f, scale = (most < cap ? most : cap) / 127.0f;
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
    if (!mine) return;
    const float32 step = (finite ? value : 0) / (scale > 0 ? scale : 1.0f);
    float32 lower = floorf(step);
    const uint32 drawn = mixed(mixed((uint32)indices[i]) ^ (uint32)bits_of(value)) >> 8;
    lower += (step - lower) * 16777216.0f > (float32)drawn;
    lower = lower < -127 ? -127 : lower > 127 ? 127 : lower;
    codes[i] = finite ? (int8)lower : (int8)-128;
}

extern "C" __global__ void __launch_bounds__(THREADS)
from_int8(const int8* codes, const float32* scales, const int64* edges, float32* x) {
    const int64 i = edges[blockIdx.x] + threadIdx.x;
    if (i >= edges[blockIdx.x + 1]) return;
    x[i] = codes[i] == -128 ? real_of(0x7FC00000) : codes[i] * scales[blockIdx.x];
}
