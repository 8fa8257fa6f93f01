// Packed messages, all entries in parallel. Bits are set by atomics on the words that hold them, because neighbouring
// entries share words.

struct Message {
    int64 entries, first, start, shift, spread, span, block, code, scale_bytes, head, values, scales, lows, highs, end;
};

// Returns the message that entry or chunk i belongs to: the last one with firsts[message * stride] <= i.
__device__ inline int64 owner(const int64* firsts, int64 stride, int64 messages, int64 i) {
    int64 low = 0, high = messages;
    while (high - low > 1) {
        const int64 middle = (low + high) / 2;
        if (firsts[middle * stride] <= i) low = middle;
        else high = middle;
    }
    return low;
}
__device__ inline Message of_entry(const int64* messages, int64 count, int64 i) {
    const int64 fields = sizeof(Message) / sizeof(int64);
    return ((const Message*)messages)[owner(messages + 1, fields, count, i)];
}

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
write_entries(const int64* messages, int64 count, const INDEX* indices, const uint8* codes,
              const uint32* scales, int64 entries, uint32* words) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= entries) return;
    const Message m = of_entry(messages, count, i);
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

// High sections are read in chunks of 64 bits; chunks[m] is the number of chunks of all messages before m. `count_bits`
// counts the set bits of each chunk, which are its entries.
__device__ inline uint64 chunk_of(const Message& m, const uint8* buffer, int64 number) {
    const int64 left = m.span - 64 * number;
    return get(buffer, 8 * m.highs + 64 * number, left < 64 ? left : 64);
}
extern "C" __global__ void __launch_bounds__(THREADS)
count_bits(const int64* messages, int64 count, const int64* chunks, int64 all, const uint8* buffer, int64* bits) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= all) return;
    const int64 m = owner(chunks, 1, count, i);
    bits[i] = __popcll(chunk_of(((const Message*)messages)[m], buffer, i - chunks[m]));
}

// Writes the high part of every entry to `indices`, one thread a chunk.
// ends: entries of all chunks up to and including each one.
extern "C" __global__ void __launch_bounds__(THREADS)
read_highs(const int64* messages, int64 count, const int64* chunks, int64 all, const uint8* buffer, const int64* ends,
           INDEX* indices) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= all) return;
    const int64 at = owner(chunks, 1, count, i), before = chunks[at] ? ends[chunks[at] - 1] : 0;
    const Message m = ((const Message*)messages)[at];
    int64 number = (i ? ends[i - 1] : 0) - before;
    for (uint64 left = chunk_of(m, buffer, i - chunks[at]); left && number < m.entries; left &= left - 1, ++number) {
        const int64 place = 64 * (i - chunks[at]) + __ffsll(left) - 1 - m.spread * number;
        indices[m.first + number] = m.start + (place << m.shift);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
read_entries(const int64* messages, int64 count, const uint8* buffer, int64 entries, INDEX* indices, uint8* codes,
             uint32* scales) {
    const int64 i = blockIdx.x * (int64)THREADS + threadIdx.x;
    if (i >= entries) return;
    const Message m = of_entry(messages, count, i);
    const int64 number = i - m.first;
    const Bytes own = code_bytes(m, number);
    for (int64 byte = own.from; byte < own.to; ++byte) codes[m.code + byte] = buffer[m.values + byte];
    if (m.scales < m.lows && number % SCALED == 0) {
        const int64 block = number / SCALED;
        const int64 bits = 8 * m.scale_bytes;
        scales[m.block + block] = (uint32)get(buffer, 8 * m.scales + bits * block, bits) << (32 - bits);
    }
    if (!m.span) indices[i] = m.start + number;
    else indices[i] += (INDEX)get(buffer, 8 * m.lows + number * m.shift, m.shift);
}
