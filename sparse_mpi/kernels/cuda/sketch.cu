// Signed sums of the entries of a vector. A block of threads adds up a chunk of rows of SKETCH entries, and a thread the
// entries of one bucket, in the order of their rows. Buckets of a row are rotated by a hash of the row's number. Signs are
// bits of hashes that 32 rows have in common.

__device__ inline uint32 mixed(uint32 x) {
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sketch(const REAL* x, int64 n, int64 seed, float64* partial) {
    const uint32 key = (uint32)seed;
    const int64 first = (int64)blockIdx.x * ROWS;
    float64 sum = 0;
    for (int64 row = first; row < first + ROWS && row * THREADS < n; ++row) {
        const uint32 by = mixed(mixed((uint32)row) ^ ~key) % THREADS;
        const uint32 column = (threadIdx.x + THREADS - by) % THREADS;
        const int64 at = row * THREADS + column;
        if (at >= n) continue;
        const uint32 signs = mixed(mixed((uint32)(row / 32 * THREADS + column)) ^ key);
        const float64 value = x[at];
        sum += signs >> row % 32 & 1 ? -value : value;
    }
    partial[blockIdx.x * THREADS + threadIdx.x] = sum;
}
