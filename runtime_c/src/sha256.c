/* sha256.c: the SHA-256 digest, in portable C.
 *
 * Own code, because the library may link nothing beyond libc; it runs once over an index at opening
 * and once over each blob at loading, never in a launch. Source: FIPS 180-4, sections 5 and 6.2.
 */
#include "sha256.h"

#include <string.h>

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

static void compress(uint32_t state[8], const unsigned char *block) {
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
            compress(hash->state, bytes);
            bytes += BLOCK_BYTES;
            size_bytes -= BLOCK_BYTES;
            continue;
        }
        const size_t room = BLOCK_BYTES - filled;
        const size_t taken = size_bytes < room ? size_bytes : room;
        memcpy(hash->block + filled, bytes, taken);
        bytes += taken;
        size_bytes -= taken;
        filled += taken;
        if (filled == BLOCK_BYTES) {
            compress(hash->state, hash->block);
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
        compress(hash->state, hash->block);
        filled = 0;
    }
    memset(hash->block + filled, 0, LENGTH_OFFSET - filled);
    for (unsigned i = 0; i < 8; ++i) {
        hash->block[LENGTH_OFFSET + i] = (unsigned char)(total_bits >> (56 - 8 * i));
    }
    compress(hash->state, hash->block);
    for (unsigned i = 0; i < AOTCI_SHA256_BYTES; ++i) {
        digest[i] = (unsigned char)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}
