// Adam for entries that arrive late, an entry a thread; the formulas are those of `kernels/adam.py`, and so are the
// columns of a table, which are macros here.

// What arrived, for a look at each entry.
extern "C" __global__ void __launch_bounds__(THREADS)
spread(const INDEX* arrived, int64 m, const REAL* seconds, uint8* came, REAL* dense) {
    const int64 j = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (j >= m) return;
    came[arrived[j]] = 1;
    if (seconds) dense[arrived[j]] = seconds[j];
}

// A product that is rounded before anything is added to it, as on the host
__device__ inline float64 product(float64 a, float64 b) { return __dmul_rn(a, b); }

__device__ inline float64 power_of(float64 base, int64 exponent) {
    float64 result = 1;
    for (; exponent; exponent >>= 1, base = product(base, base)) {
        if (exponent & 1) result = product(result, base);
    }
    return result;
}

extern "C" __global__ void __launch_bounds__(THREADS)
adam(const REAL* gradient, int64 n, const uint8* came, const REAL* seconds, const REAL* weights,
     const float64* table, const int64* ends, int64 tensors, REAL* rest, REAL* squares, int32* last, REAL* update) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= n) return;
    update[i] = 0;
    if (came && !came[i] && gradient[i] == 0) return;
    int64 owner = 0;
    for (int64 above = tensors; owner < above;) {  // the first tensor that ends behind this entry
        const int64 middle = (owner + above) / 2;
        if (ends[middle] <= i) owner = middle + 1;
        else above = middle;
    }
    const float64* own = table + owner * COLUMNS;
    if (own[MOVES] == 0) return;
    const float64 beta = own[BETA1];
    const int64 waited = KIND == RMSPROP ? 1 : (int64)own[STEP] - last[i], power = waited * waited;
    float64 total = product(own[SIGN], (float64)gradient[i]), moment = 0;
    if (weights) total += product(product(own[DECAY], (float64)waited), (float64)weights[i]);
    const bool travelled = seconds && (KIND == RMSPROP || came || waited > 1);
    if (travelled) {
        const REAL second = seconds[i] * (REAL)own[FACTOR];
        moment = second == 0 ? product(total, total) : (float64)second;
    }
    float64 moved = total;
    if (KIND == RMSPROP) {
        moment *= own[BIAS];
    } else {
        if (!travelled) {  // where every entry comes in every step second moments are Adam's own
            const float64 mean = total / (float64)waited, square = product(mean, mean);
            moment = (square + product((float64)squares[i] - square, power_of(own[BETA2], waited))) / own[BIAS];
        }
        const float64 stays = power_of(beta, power);
        const float64 gathered = total + product(beta / (1 - beta), (float64)rest[i]);
        moved = (1 - stays) * gathered;
        if (KIND == NADAM) {
            const float64 ahead = power_of(own[NEXT], power) * moved / (1 - product(own[PRODUCT], own[NEXT]));
            moved = (1 - power_of(own[NOW], power)) * total / (1 - own[PRODUCT]) + ahead;
        } else {
            moved /= 1 - product(stays, power_of(beta, last[i]));
        }
        rest[i] = (REAL)((1 - beta) * power_of(beta, power - 1) * gathered);
        squares[i] = (REAL)(moment * own[BIAS]);
        last[i] = (int32)own[STEP];
    }
    update[i] = (REAL)(own[RATE] * moved / (root(moment) + own[EPS]));
}
