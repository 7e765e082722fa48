#include <stdio.h>
#include <string.h>
#include <time.h>
#include <immintrin.h>
#include "../runtime_c/src/sha256.c"
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
__attribute__((target("sha,sse4.1,ssse3"))) static void two(uint32_t state[2][8], const unsigned char *b0, const unsigned char *b1, size_t count) {
    const __m128i be = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i ab[2], cd[2]; const unsigned char *b[2] = {b0, b1};
    for (int k = 0; k < 2; ++k) { __m128i x = _mm_shuffle_epi32(_mm_loadu_si128((void *)state[k]), 0xB1), y = _mm_shuffle_epi32(_mm_loadu_si128((void *)(state[k] + 4)), 0x1B); ab[k] = _mm_alignr_epi8(x, y, 8); cd[k] = _mm_blend_epi16(y, x, 0xF0); }
    for (; count; --count) {
        __m128i a0[2] = {ab[0], ab[1]}, c0[2] = {cd[0], cd[1]}, w[2][4];
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k)
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) w[k][i] = _mm_shuffle_epi8(_mm_loadu_si128((void *)(b[k] + 16 * i)), be);
#pragma GCC unroll 16
        for (unsigned i = 0; i < 16; ++i) {
            const __m128i kk = _mm_loadu_si128((void *)(round_constants + 4 * i));
#pragma GCC unroll 2
            for (int k = 0; k < 2; ++k) {
                __m128i *word = &w[k][i % 4];
                if (i >= 4) { __m128i last = w[k][(i + 3) % 4]; __m128i s = _mm_add_epi32(_mm_sha256msg1_epu32(*word, w[k][(i + 1) % 4]), _mm_alignr_epi8(last, w[k][(i + 2) % 4], 4)); *word = _mm_sha256msg2_epu32(s, last); }
                __m128i in = _mm_add_epi32(*word, kk);
                cd[k] = _mm_sha256rnds2_epu32(cd[k], ab[k], in);
                ab[k] = _mm_sha256rnds2_epu32(ab[k], cd[k], _mm_shuffle_epi32(in, 0x0E));
            }
        }
        for (int k = 0; k < 2; ++k) { ab[k] = _mm_add_epi32(ab[k], a0[k]); cd[k] = _mm_add_epi32(cd[k], c0[k]); b[k] += 64; }
    }
    for (int k = 0; k < 2; ++k) { _mm_storeu_si128((void *)state[k], ab[k]); _mm_storeu_si128((void *)(state[k] + 4), cd[k]); }
}
int main(void) {
    static unsigned char d[1 << 20]; uint32_t st[2][8] = {{0}};
    double t = now(); for (int k = 0; k < 50; ++k) two(st, d, d + (1 << 19), (1 << 19) / 64); printf("two %.2f GB/s\n", 50 * sizeof d / (now() - t));
    t = now(); for (int k = 0; k < 50; ++k) compress_sha(st[0], d, (1 << 20) / 64); printf("one %.2f GB/s\n", 50 * sizeof d / (now() - t));
}
