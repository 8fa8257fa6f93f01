// The sum of a residual and a gradient of type GRADIENT, an entry a thread; half precision is widened on the way.

extern "C" __global__ void __launch_bounds__(THREADS)
accumulate(REAL* residual, const GRADIENT* gradient, int64 n) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i < n) residual[i] += widen(gradient[i]);
}
