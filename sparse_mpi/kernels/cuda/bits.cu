// Packed messages, all entries in parallel. Bits are set by atomics on the words that hold them, because neighbouring
// entries share words.

// Writes the lowest `bits` bits of `value` at bit `at` of zeroed words.
__device__ inline void put(uint32* words, int64 at, uint64 value, int64 bits) {
    while (bits > 0) {
        const int64 room = 32 - (at & 31), now = bits < room ? bits : room;
        atomicOr(&words[at >> 5], (uint32)(value & (((uint64)1 << now) - 1)) << (at & 31));
        value >>= now, at += now, bits -= now;
    }
}
// Reads `bits` bits at bit `at`: at most 57, or 64 where `at` is the first bit of a byte.
__device__ inline uint64 get(const uint8* buffer, int64 at, int64 bits) {
    uint64 value = 0;
    for (int64 byte = at >> 3, shift = -(at & 7); shift < bits; ++byte, shift += 8) {
        value |= shift < 0 ? (uint64)buffer[byte] >> -shift : (uint64)buffer[byte] << shift;
    }
    return bits < 64 ? value & (((uint64)1 << bits) - 1) : value;
}

// The bytes of a message's codes that its entry `number` copies: of its own code, or one where codes share bytes.
struct Bytes { int64 from, to; };
__device__ inline Bytes code_bytes(const Message& m, int64 number) {
    const int64 size = m.scales - m.values, each = size / m.entries;
    if (each) return {number * each, (number + 1) * each};
    return {number, number < size ? number + 1 : number};
}

// Writes everything, one thread an entry; the first one of a message also its number, of a block also its scale.
// words: zeros, as many as hold the messages.
extern "C" __global__ void __launch_bounds__(THREADS)
write_entries(const Messages messages, int64 count, const INDEX* indices, const uint8* codes, const uint32* scales,
              int64 entries, uint32* words) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= entries) return;
    const Message m = messages[owner(messages, &Message::first, count, i)];
    const int64 number = i - m.first;
    if (number == 0) put(words, 8 * m.head, m.entries - 1, 8 * (m.values - m.head));
    const Bytes own = code_bytes(m, number);
    const int64 bits = 8 * (own.to - own.from);
    put(words, 8 * (m.values + own.from), get(codes, 8 * (m.code + own.from), bits), bits);
    if (m.scales < m.lows && number % SCALED == 0) {
        const int64 block = number / SCALED;
        const int64 bits = 8 * m.scale_bytes; // the upper ones
        put(words, 8 * m.scales + bits * block, scales[m.block + block] >> (32 - bits), bits);
    }
    const int64 offset = indices[i] - m.start;
    put(words, 8 * m.lows + number * m.shift, offset, m.shift);
    if (m.span) put(words, 8 * m.highs + (offset >> m.shift) + m.spread * number, 1, 1);
}

// Reads everything. A thread counts the entries of a chunk: of CHUNK bits of a high section, which has one for each, or
// of CHUNK entries of a message without such a section. The tiles before tell which number the first one has. The
// threads of a block write the high parts of its entries, each those of its chunk, and then the rest, an entry a thread.
// state, zeroed: as in `compress`.
extern "C" __global__ void __launch_bounds__(THREADS)
read_messages(const Messages messages, int64 count, const uint8* buffer, int64 chunks, int64 entries, INDEX* indices,
              uint8* codes, uint32* scales, uint64* state) {
    __shared__ int64 start, end;
    __shared__ int counts[THREADS / 32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int64 tile = own_tile(state), i = tile * THREADS + threadIdx.x;
    int64 at = 0, own = 0;
    uint32 left = 0;
    if (i < chunks) {
        at = owner(messages, &Message::chunks, count, i);
        const Message m = messages[at];
        const int64 before = CHUNK * (i - m.chunks), rest = (m.span ? m.span : m.entries) - before;
        own = rest < CHUNK ? rest : CHUNK;
        if (m.span) {
            left = (uint32)get(buffer, 8 * m.highs + before, own);
            own = __popc(left);
        }
    }
    int upto = (int)own;
    for (int apart = 1; apart < 32; apart *= 2) {
        const int lower = __shfl_up_sync(WARP, upto, apart);
        if (lane >= apart) upto += lower;
    }
    if (lane == 31) counts[warp] = upto;
    __syncthreads();
    if (warp == 0) {
        uint64 all = 0;
        for (int w = 0; w < THREADS / 32; ++w) all += counts[w];
        const uint64 before = preceding(state + 1, tile, all);
        if (lane == 0) {
            start = (int64)before;
            end = (int64)(before + all) < entries ? (int64)(before + all) : entries;
        }
    }
    __syncthreads();

    if (left) {
        const Message m = messages[at];
        int64 number = start + upto - own - m.first;
        for (int w = 0; w < warp; ++w) number += counts[w];
        for (; left && number < m.entries; left &= left - 1, ++number) {
            const int64 place = CHUNK * (i - m.chunks) + __ffs((int)left) - 1 - m.spread * number;
            if (number >= 0) indices[m.first + number] = (INDEX)(m.start + (place << m.shift));
        }
    }
    __syncthreads();
    for (int64 entry = start + threadIdx.x; entry < end; entry += THREADS) {
        const Message m = messages[owner(messages, &Message::first, count, entry)];
        const int64 number = entry - m.first;
        const Bytes own = code_bytes(m, number);
        for (int64 byte = own.from; byte < own.to; ++byte) codes[m.code + byte] = buffer[m.values + byte];
        if (m.scales < m.lows && number % SCALED == 0) {
            const int64 block = number / SCALED;
            const int64 bits = 8 * m.scale_bytes;
            scales[m.block + block] = (uint32)get(buffer, 8 * m.scales + bits * block, bits) << (32 - bits);
        }
        if (!m.span) indices[entry] = (INDEX)(m.start + number);
        else indices[entry] += (INDEX)get(buffer, 8 * m.lows + number * m.shift, m.shift);
    }
}
