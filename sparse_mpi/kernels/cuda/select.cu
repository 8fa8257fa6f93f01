// Ordered compaction in one pass: each tile counts what it selects, learns from the tiles before it where to write
// (`preceding` in types.cu), and writes. With GRADIENT, the residual is accumulated on the way; with SQUARES, an entry
// is selected by what it is over the root of its square.
//
// A tile belongs to a block of THREADS; each warp has a consecutive part of it, read in ROUNDS of one vector a lane.
// state, zeroed: [0] tiles taken, [1 + tile] see `preceding`. found: memory of the host, if any, for their number.

constexpr int STEP = 32 * VECTOR;  // entries a warp reads in a round
constexpr int PART = ROUNDS * STEP;
constexpr int WARPS = THREADS / 32;
constexpr int64 TILE = (int64)WARPS * PART;
constexpr uint32 OWN = (1u << VECTOR) - 1;
static_assert(ROUNDS == 8 && STEP < 256, "the counts of the rounds are the bytes of one word");

#ifdef GRADIENT
struct alignas(VECTOR * sizeof(GRADIENT)) Gradients { GRADIENT at[VECTOR]; };
#endif

__device__ inline int byte(uint64 word, int which) { return (int)(word >> (8 * which) & 255); }

#ifdef SQUARES
#define OVER const REAL *squares, REAL largest,
#define SCORE(x, at) over_root(x, squares[at], largest)
#else
#define OVER
#define SCORE(x, at) (x)
#endif
#ifdef GRADIENT
#define PARAMETERS OVER REAL *x, const GRADIENT *gradient
#else
#define PARAMETERS OVER const REAL *x
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
compact(PARAMETERS, int64 n, int64 threshold, int64 most, INDEX* indices, Real* values, uint64* state,
        int64* found) {
    __shared__ int64 own_tile, start;
    __shared__ int counts[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Bits limit = (Bits)threshold;
    if (threadIdx.x == 0) own_tile = (int64)atomicAdd(state, 1ull);  // in the order in which blocks start: no deadlock
    __syncthreads();
    const int64 tile = own_tile, first = tile * TILE + warp * PART + lane * VECTOR;

    uint32 reached = 0;  // one bit an entry of this thread
    bool vectors = (tile + 1) * TILE <= n && aligned(x, sizeof(Vector));
#ifdef GRADIENT
    vectors = vectors && aligned(gradient, sizeof(Gradients));
#endif
    if (vectors) {
        Vector own[ROUNDS];
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) own[r] = *reinterpret_cast<const Vector*>(x + first + r * STEP);
#ifdef GRADIENT
        Gradients added[ROUNDS];
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) added[r] = *reinterpret_cast<const Gradients*>(gradient + first + r * STEP);
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) own[r].at[j] += widen(added[r].at[j]);
            *reinterpret_cast<Vector*>(x + first + r * STEP) = own[r];
        }
#endif
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j)
                reached |= (uint32)(magnitude(SCORE(own[r].at[j], first + r * STEP + j)) >= limit) << (r * VECTOR + j);
        }
    } else {
        for (int bit = 0; bit < ROUNDS * VECTOR; ++bit) {
            const int64 at = first + bit / VECTOR * STEP + bit % VECTOR;
            if (at >= n) break;
#ifdef GRADIENT
            x[at] += widen(gradient[at]);
#endif
            reached |= (uint32)(magnitude(SCORE(x[at], at)) >= limit) << bit;
        }
    }

    uint64 rounds = 0;  // byte r: how many this thread found in round r; then, how many its warp did up to this lane
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) rounds |= (uint64)__popc(reached >> (r * VECTOR) & OWN) << (8 * r);
    const uint64 alone = rounds;
    for (int apart = 1; apart < 32; apart *= 2) {
        const uint64 lower = __shfl_up_sync(WARP, rounds, apart);
        if (lane >= apart) rounds += lower;
    }
    const uint64 all = __shfl_sync(WARP, rounds, 31), lower_lanes = rounds - alone;
    int total = 0;
    for (int r = 0; r < ROUNDS; ++r) total += byte(all, r);
    if (lane == 0) counts[warp] = total;
    __syncthreads();

    if (warp == 0) {
        uint64 own = 0;
        for (int w = 0; w < WARPS; ++w) own += counts[w];
        const uint64 before = preceding(state + 1, tile, own);
        if (lane == 0) {
            start = (int64)before;
            if (found && (tile + 1) * TILE >= n) *found = (int64)(before + own);
        }
    }
    __syncthreads();

    int64 position = start;
    for (int w = 0; w < warp; ++w) position += counts[w];
    for (int r = 0; r < ROUNDS; ++r) {
        int64 to = position + byte(lower_lanes, r);
        for (uint32 left = reached >> (r * VECTOR) & OWN; left; left &= left - 1, ++to) {
            if (to >= most) break;
            const int64 at = first + r * STEP + __ffs((int)left) - 1;
            indices[to] = (INDEX)at;
            values[to] = SCORE(widen(x[at]), at);  // from the nearest cache, which saves the registers that would hold it
        }
        position += byte(all, r);
    }
}
