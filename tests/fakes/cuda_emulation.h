// CUDA on a CPU, slowly: enough of it to run this project's kernels in tests.
//
// A block is an operating system thread, so that blocks run at the same time and may wait for each other; the CUDA
// threads of a block are fibers of it that take turns at barriers. Shared memory is thread-local: one a block.
//
// Headers of the C++ library take longer to compile than all else, for each of the kernels: only a small one is used.

#pragma once
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <utility>

namespace emulated {

struct Index { unsigned x; };

using Body = void (*)(void** arguments);  // what a thread does

struct Fiber {
    jmp_buf place;
    bool entered, done;
};

struct Barrier {  // of a block or of a warp
    int members, arrived;
    unsigned generation;
};

constexpr int MOST_THREADS = 1024;
constexpr size_t STACK = 64 << 10;  // bytes of a thread

struct Block {  // behind the stacks of its threads
    Barrier all, warps[MOST_THREADS / 32];
    unsigned long long slots[MOST_THREADS];  // a word a thread, exchanged within warps
    int current, any;
    jmp_buf scheduler;
    char* stacks;
    Fiber fibers[MOST_THREADS];
};
constexpr size_t MEMORY = MOST_THREADS * STACK + (1 << 20);  // bytes of a block
static_assert(sizeof(Block) <= 1 << 20);

struct Launch {
    unsigned blocks;
    int threads;
    unsigned seed;
    bool flush;
    Body body;
    void** arguments;
    char* memory;  // of all resident blocks: whoever launches keeps it, for the system has to clear what is new
    unsigned next, taken;  // numbers of the block that begins next, and of the stacks that are taken next
};

inline thread_local Block* block;
inline thread_local const Launch* running;
inline thread_local Index thread_index, block_index, grid_size;

inline void pause() {
    if (!_setjmp(block->fibers[block->current].place)) _longjmp(block->scheduler, 1);
}

inline void release(Barrier& barrier) {
    if (barrier.arrived && barrier.arrived >= barrier.members) barrier.arrived = 0, ++barrier.generation;
}

inline void wait(Barrier& barrier) {
    const unsigned mine = barrier.generation;
    ++barrier.arrived;
    release(barrier);
    while (barrier.generation == mine) pause();
}

inline Barrier& own_warp() { return block->warps[block->current / 32]; }

inline void enter() {
    running->body(running->arguments);
    block->fibers[block->current].done = true;
    --block->all.members, --own_warp().members;
    release(block->all), release(own_warp());
    pause();
}

// Switches to the stack of a fiber, and between fibers by jumps, which ask nothing of the system
inline void resume(Fiber& fiber) {
    if (_setjmp(block->scheduler)) return;
    if (fiber.entered) _longjmp(fiber.place, 1);
    fiber.entered = true;
    char* top = block->stacks + (block->current + 1) * STACK;
#if defined(__x86_64__)
    asm volatile("mov %0, %%rsp\n xor %%ebp, %%ebp\n call *%1" : : "r"(top), "r"(&enter) : "memory");
#elif defined(__aarch64__)
    asm volatile("mov sp, %0\n mov x29, xzr\n blr %1" : : "r"(top), "r"(&enter) : "memory");
#else
#error "a processor whose stacks are not known here"
#endif
    __builtin_unreachable();
}

inline void run_block(unsigned number, char* stacks) {
    const int threads = running->threads;
    Block& own = *reinterpret_cast<Block*>(stacks + MOST_THREADS * STACK);
    block = &own;
    memset(block, 0, offsetof(Block, fibers));
    own.stacks = stacks;
    own.all.members = threads;
    block_index.x = number, grid_size.x = running->blocks;
    for (int t = 0; t < threads; ++t) ++own.warps[t / 32].members, own.fibers[t].entered = own.fibers[t].done = false;
    unsigned long long random = running->seed + number;
    for (int left = threads; left;) {  // rounds begin anywhere, so that no order of threads is taken for granted
        random = random * 48271 % 2147483647;
        const int shift = random % threads;
        for (int t = 0; t < threads; ++t) {
            own.current = (t + shift) % threads;
            Fiber& fiber = own.fibers[own.current];
            if (fiber.done) continue;
            thread_index.x = own.current;
            resume(fiber);
            left -= fiber.done;
        }
        if (running->blocks > 1) sched_yield();
    }
}

// Have the processor take subnormal numbers for zero on this thread, as a GPU does for which ``-ftz=true`` has compiled.
inline void flush_subnormals() {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#elif defined(__aarch64__)
    unsigned long long control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    asm volatile("msr fpcr, %0" : : "r"(control | 1ull << 24));
#endif
}

inline void* multiprocessor(void* given) {
    Launch& own = *static_cast<Launch*>(given);
    running = &own;
    if (own.flush) flush_subnormals();
    char* stacks = own.memory + __atomic_fetch_add(&own.taken, 1u, __ATOMIC_SEQ_CST) * MEMORY;
    for (unsigned number; (number = __atomic_fetch_add(&own.next, 1u, __ATOMIC_SEQ_CST)) < own.blocks;)
        run_block(number, stacks);
    return nullptr;
}

// `resident` blocks at a time, taken in the order of their numbers
inline void launch(unsigned blocks, int threads, unsigned resident, unsigned seed, bool flush, Body body,
                   void** arguments, char* memory) {
    if (threads > MOST_THREADS) abort();
    Launch launch{blocks, threads, seed, flush, body, arguments, memory, 0, 0};
    if (blocks == 1 && !flush) {
        multiprocessor(&launch);
        return;
    }
    if (resident > blocks) resident = blocks;
    pthread_t multiprocessors[resident];
    for (auto& one : multiprocessors)
        if (pthread_create(&one, nullptr, multiprocessor, &launch)) abort();
    for (auto& one : multiprocessors) pthread_join(one, nullptr);
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<A>*>(arguments[I])...);
}
template <class... A>
void call(void (*kernel)(A...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<A...>());
}

// What lane `from` of the warp gives as `own`; all lanes call it
template <class T>
T exchange(T own, int from) {
    static_assert(sizeof(T) <= 8);
    const int base = block->current / 32 * 32;
    memcpy(&block->slots[block->current], &own, sizeof(T));
    wait(own_warp());
    T came = own;
    if (from >= 0 && from < 32) memcpy(&came, &block->slots[base + from], sizeof(T));
    wait(own_warp());
    return came;
}
inline int lane() { return block->current & 31; }

}  // namespace emulated

#define __global__
#define __device__
#define __shared__ static thread_local
#define __launch_bounds__(threads)
#define threadIdx emulated::thread_index
#define blockIdx emulated::block_index
#define gridDim emulated::grid_size

inline void __syncthreads() { emulated::wait(emulated::block->all); }
inline int __syncthreads_or(int mine) {
    emulated::block->any |= mine != 0;
    __syncthreads();
    const int any = emulated::block->any;
    __syncthreads();
    emulated::block->any = 0;
    __syncthreads();
    return any;
}
inline void __nanosleep(unsigned) { emulated::pause(); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T> T __shfl_sync(unsigned, T own, int from) { return emulated::exchange(own, from); }
template <class T> T __shfl_up_sync(unsigned, T own, int by) { return emulated::exchange(own, emulated::lane() - by); }
template <class T> T __shfl_xor_sync(unsigned, T own, int mask) { return emulated::exchange(own, emulated::lane() ^ mask); }
inline unsigned __ballot_sync(unsigned, bool mine) {
    using namespace emulated;
    unsigned long long* words = &block->slots[block->current / 32 * 32];
    words[lane()] = mine;
    wait(own_warp());
    unsigned votes = 0;
    for (int from = 0; from < 32; ++from) votes |= (unsigned)words[from] << from;
    wait(own_warp());
    return votes;
}

inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class To, class From> To reinterpreted(From x) {
    To result;
    memcpy(&result, &x, sizeof(To));
    return result;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
inline int __float_as_int(float x) { return reinterpreted<int>(x); }
inline float __int_as_float(int x) { return reinterpreted<float>(x); }
inline long long __double_as_longlong(double x) { return reinterpreted<long long>(x); }
inline double __longlong_as_double(long long x) { return reinterpreted<double>(x); }
template <class T, class U> T atomicAdd(T* at, U by) { return __atomic_fetch_add(at, (T)by, __ATOMIC_RELAXED); }
inline unsigned atomicOr(unsigned* at, unsigned bits) { return __atomic_fetch_or(at, bits, __ATOMIC_RELAXED); }
inline float floorf(float x) { return __builtin_floorf(x); }
inline float log(float x) { return __builtin_logf(x); }
inline double log(double x) { return __builtin_log(x); }
