/* sha256.c: the SHA-256 digest, in portable C, and with the instructions of x86-64.
 *
 * Own code, because the library may link nothing beyond libc; it runs once over a root at opening
 * and once over each frame when it is read, never in a launch. Source: FIPS 180-4, sections 5 and
 * 6.2; for the instructions Intel's manual, volume 2, SHA256RNDS2, SHA256MSG1 and SHA256MSG2.
 */
#include "sha256.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define HAS_SHA_INTRINSICS 1
#endif

enum { BLOCK_BYTES = 64, LENGTH_OFFSET = 56 };

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate_right(uint32_t value, unsigned count) {
    return (value >> count) | (value << (32 - count));
}

static uint32_t load_big_endian(const unsigned char *bytes) {
    return ((uint32_t)bytes[0] << 24) | ((uint32_t)bytes[1] << 16) | ((uint32_t)bytes[2] << 8) |
           bytes[3];
}

static void compress_block(uint32_t state[8], const unsigned char *block) {
    uint32_t schedule[64];
    for (unsigned i = 0; i < 16; ++i) {
        schedule[i] = load_big_endian(block + (size_t)4 * i);
    }
    for (unsigned i = 16; i < 64; ++i) {
        const uint32_t x = schedule[i - 15];
        const uint32_t y = schedule[i - 2];
        const uint32_t sigma0 = rotate_right(x, 7) ^ rotate_right(x, 18) ^ (x >> 3);
        const uint32_t sigma1 = rotate_right(y, 17) ^ rotate_right(y, 19) ^ (y >> 10);
        schedule[i] = schedule[i - 16] + sigma0 + schedule[i - 7] + sigma1;
    }

    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (unsigned i = 0; i < 64; ++i) {
        const uint32_t sum1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
        const uint32_t choose = (e & f) ^ (~e & g);
        const uint32_t first = h + sum1 + choose + round_constants[i] + schedule[i];
        const uint32_t sum0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
        const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
        h = g;
        g = f;
        f = e;
        e = d + first;
        d = c;
        c = b;
        b = a;
        a = first + sum0 + majority;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

void aotci_sha256_portable(uint32_t state[8], const unsigned char *blocks, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        compress_block(state, blocks + i * BLOCK_BYTES);
    }
}

#ifdef HAS_SHA_INTRINSICS

/* The instructions keep the state as (A B E F) and (C D G H), and do two rounds each. */
__attribute__((target("sha,sse4.1,ssse3"))) static void
compress_sha(uint32_t state[8], const unsigned char *blocks, size_t count) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xB1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1B);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
    __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
    for (; count != 0; --count, blocks += BLOCK_BYTES) {
        const __m128i abef_before = abef;
        const __m128i cdgh_before = cdgh;
        __m128i words[4];
#pragma GCC unroll 4
        for (unsigned i = 0; i < 4; ++i) {
            words[i] = _mm_shuffle_epi8(
                _mm_loadu_si128((const __m128i *)(blocks + (size_t)16 * i)), big_endian);
        }
#pragma GCC unroll 16
        for (unsigned i = 0; i < 16; ++i) {
            __m128i *word = &words[i % 4];
            if (i >= 4) {
                const __m128i last = words[(i + 3) % 4];
                const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(*word, words[(i + 1) % 4]),
                                                  _mm_alignr_epi8(last, words[(i + 2) % 4], 4));
                *word = _mm_sha256msg2_epu32(sum, last);
            }
            const __m128i constants =
                _mm_loadu_si128((const __m128i *)(round_constants + (size_t)4 * i));
            const __m128i input = _mm_add_epi32(*word, constants);
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, input);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(input, 0x0E));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
    const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

/* Whether the CPU has the instructions. Queried when the library is loaded: in a virtual machine it
 * takes as long as opening a small archive. */
static bool has_instructions;

__attribute__((constructor)) static void ask_cpu(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool has_sse =
        __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_1) != 0 && (c & bit_SSSE3) != 0;
    const bool has_sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0;
    has_instructions = has_sse && has_sha;
}

#endif

void aotci_sha256_blocks(uint32_t state[8], const unsigned char *blocks, size_t count) {
#ifdef HAS_SHA_INTRINSICS
    if (has_instructions) {
        compress_sha(state, blocks, count);
        return;
    }
#endif
    aotci_sha256_portable(state, blocks, count);
}

void aotci_sha256_begin(struct aotci_sha256 *hash) {
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, initial, sizeof initial);
    hash->total_bytes = 0;
}

void aotci_sha256_update(struct aotci_sha256 *hash, const void *data, size_t size_bytes) {
    const unsigned char *bytes = data;
    size_t filled = (size_t)(hash->total_bytes % BLOCK_BYTES);
    hash->total_bytes += size_bytes;
    while (size_bytes != 0) {
        if (filled == 0 && size_bytes >= BLOCK_BYTES) {
            const size_t count = size_bytes / BLOCK_BYTES;
            aotci_sha256_blocks(hash->state, bytes, count);
            bytes += count * BLOCK_BYTES;
            size_bytes -= count * BLOCK_BYTES;
            continue;
        }
        const size_t room = BLOCK_BYTES - filled;
        const size_t taken = size_bytes < room ? size_bytes : room;
        memcpy(hash->block + filled, bytes, taken);
        bytes += taken;
        size_bytes -= taken;
        filled += taken;
        if (filled == BLOCK_BYTES) {
            aotci_sha256_blocks(hash->state, hash->block, 1);
            filled = 0;
        }
    }
}

void aotci_sha256_end(struct aotci_sha256 *hash, unsigned char digest[AOTCI_SHA256_BYTES]) {
    const uint64_t total_bits = hash->total_bytes * 8;
    size_t filled = (size_t)(hash->total_bytes % BLOCK_BYTES);
    hash->block[filled++] = 0x80;
    if (filled > LENGTH_OFFSET) {
        memset(hash->block + filled, 0, BLOCK_BYTES - filled);
        aotci_sha256_blocks(hash->state, hash->block, 1);
        filled = 0;
    }
    memset(hash->block + filled, 0, LENGTH_OFFSET - filled);
    for (unsigned i = 0; i < 8; ++i) {
        hash->block[LENGTH_OFFSET + i] = (unsigned char)(total_bits >> (56 - 8 * i));
    }
    aotci_sha256_blocks(hash->state, hash->block, 1);
    for (unsigned i = 0; i < AOTCI_SHA256_BYTES; ++i) {
        digest[i] = (unsigned char)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

void aotci_sha256(const void *data, size_t size_bytes, unsigned char digest[AOTCI_SHA256_BYTES]) {
    struct aotci_sha256 hash;
    aotci_sha256_begin(&hash);
    aotci_sha256_update(&hash, data, size_bytes);
    aotci_sha256_end(&hash, digest);
}
