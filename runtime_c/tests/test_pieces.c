/* test_pieces.c: the parts that need no archive: digest, zstd frames, cubins, expressions, names.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cubin.h"
#include "expression.h"
#include "guard.h"
#include "harness.h"
#include "sha256.h"
#include "zstd_frame.h"

static void digest_is(const char *text, size_t repeat, size_t piece_bytes, const char *expected) {
    struct aotci_sha256 hash;
    unsigned char digest[AOTCI_SHA256_BYTES];
    char hex[2 * AOTCI_SHA256_BYTES + 1];
    aotci_sha256_begin(&hash);
    for (size_t i = 0; i < repeat; ++i) {
        for (size_t at = 0; at < strlen(text); at += piece_bytes) {
            const size_t left = strlen(text) - at;
            aotci_sha256_update(&hash, text + at, left < piece_bytes ? left : piece_bytes);
        }
    }
    aotci_sha256_end(&hash, digest);
    for (size_t i = 0; i < sizeof digest; ++i) {
        (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    }
    CHECK(strcmp(hex, expected) == 0);
}

/* FIPS 180-4 examples, and lengths around the padding's edges through the piecewise interface. */
static void test_sha256(void) {
    digest_is("", 1, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    digest_is("abc", 1, 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    digest_is("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, 7,
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    digest_is("aaaaaaaaaa", 100000, 3,
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* The same with the CPU's instructions and without. */
static void test_sha256_blocks(void) {
    unsigned char blocks[5 * 64];
    uint32_t random = 1;
    for (size_t count = 0; count <= 5; ++count) {
        uint32_t states[2][8];
        for (size_t i = 0; i < sizeof blocks; ++i) {
            random = random * 1664525 + 1013904223;
            blocks[i] = (unsigned char)(random >> 24);
        }
        for (size_t i = 0; i < 8; ++i) {
            states[0][i] = states[1][i] = random ^ (uint32_t)i * 0x9e3779b9;
        }
        aotci_sha256_blocks(states[0], blocks, count);
        aotci_sha256_portable(states[1], blocks, count);
        CHECK(memcmp(states[0], states[1], sizeof states[0]) == 0);
    }
}

static bool frame_is(const char *bytes, size_t size_bytes, uint64_t raw_bytes, const char *wrong) {
    /* A copy of the exact size, for the address sanitizer. */
    unsigned char *copy = malloc(size_bytes + 1);
    memcpy(copy, bytes, size_bytes);
    copy = realloc(copy, size_bytes == 0 ? 1 : size_bytes);
    const char *got = aotci_zstd_frame_check(copy, size_bytes, raw_bytes);
    free(copy);
    return wrong == NULL ? got == NULL : got != NULL && strstr(got, wrong) != NULL;
}

static void test_zstd_frames(void) {
    /* Single segment, one-byte size 3, one raw block of 3 bytes, last. */
    static const char good[] = "\x28\xB5\x2F\xFD\x20\x03\x19\x00\x00"
                               "abc";
    static const size_t good_bytes = sizeof good - 1;
    CHECK(frame_is(good, good_bytes, 3, NULL));
    CHECK(frame_is(good, good_bytes, 4, "another content size"));
    for (size_t i = 0; i < good_bytes; ++i) {
        CHECK(!frame_is(good, i, 3, NULL));
    }
    CHECK(frame_is("\x28\xB5\x2F\xFD\x20\x03\x19\x00\x00"
                   "abcd",
                   13, 3, "after the zstd frame"));
    CHECK(frame_is("\x28\xB5\x2F\xFD\x24\x03\x19\x00\x00"
                   "abc",
                   12, 3, "checksum"));
    CHECK(frame_is("\x28\xB5\x2F\xFD\x21\x03\x19\x00\x00"
                   "abc",
                   12, 3, "dictionary"));
    CHECK(frame_is("\x28\xB5\x2F\xFD\x28\x03\x19\x00\x00"
                   "abc",
                   12, 3, "reserved bits"));
    CHECK(frame_is("\x28\xB5\x2F\xFD\x00\x50\x19\x00\x00"
                   "abc",
                   12, 3, "does not state"));
    CHECK(frame_is("\x28\xB5\x2F\xFD\x20\x03\x1F\x00\x00"
                   "abc",
                   12, 3, "reserved block"));
    /* An RLE block stores one byte: 5 of them; a two-byte size counts from 256. */
    CHECK(frame_is("\x28\xB5\x2F\xFD\x20\x05\x2B\x00\x00"
                   "a",
                   10, 5, NULL));
    CHECK(frame_is("\x28\xB5\x2F\xFD\x60\x01\x00\x0B\x08\x00"
                   "a",
                   11, 257, NULL));
    CHECK(frame_is("\x29\xB5\x2F\xFD\x20\x03\x19\x00\x00"
                   "abc",
                   12, 3, "no zstd frame"));
}

/* ---- cubins ---------------------------------------------------------------------------------- */

struct image {
    unsigned char bytes[64 + 3 * 64 + 64];
};

static void put(unsigned char *target, uint64_t value, unsigned count) {
    memcpy(target, &value, count);
}

/* Header, 32 bytes of names, 32 of code, sections: null, names, .text.k. */
static struct image make_image(void) {
    struct image image = {{0x7F, 'E', 'L', 'F', 2, 1, 1}};
    unsigned char *at = image.bytes;
    put(at + 18, 190, 2);
    put(at + 40, 128, 8);
    put(at + 48, 90 << 8, 4);
    put(at + 52, 64, 2);
    put(at + 58, 64, 2);
    put(at + 60, 3, 2);
    put(at + 62, 1, 2);
    memcpy(at + 64, "\0.shstrtab\0.text.k\0", 19);
    put(at + 128 + 64, 1, 4);
    put(at + 128 + 68, 3, 4);
    put(at + 128 + 64 + 24, 64, 8);
    put(at + 128 + 64 + 32, 19, 8);
    put(at + 128 + 128, 11, 4);
    put(at + 128 + 132, 1, 4);
    put(at + 128 + 128 + 24, 96, 8);
    put(at + 128 + 128 + 32, 32, 8);
    return image;
}

static const size_t image_bytes = 64 + 64 + 3 * 64;

static void cubin_is(const struct image *image, unsigned arch, const char *wrong) {
    const char *got = aotci_cubin_check(image->bytes, image_bytes, arch);
    CHECK(wrong == NULL ? got == NULL : got != NULL && strstr(got, wrong) != NULL);
}

static void test_cubins(void) {
    _Alignas(8) struct image image = make_image();
    cubin_is(&image, 90, NULL);
    CHECK(aotci_cubin_find(image.bytes, "k").exists);
    CHECK(!aotci_cubin_find(image.bytes, "kk").exists);
    CHECK(!aotci_cubin_find(image.bytes, "").exists);
    cubin_is(&image, 80, "another architecture");
    for (size_t i = 0; i < image_bytes; ++i) {
        CHECK(aotci_cubin_check(image.bytes, i, 90) != NULL);
    }
    const struct {
        size_t at;
        uint64_t value;
        unsigned count;
        const char *wrong;
    } changes[] = {
        {0, '/', 1, "not a cubin"},
        {4, 1, 1, "not a cubin"},
        {18, 62, 2, "not a cubin"},
        {52, 63, 2, "ELF header size"},
        {58, 40, 2, "section header size"},
        {56, 1, 2, "program header size"},
        {40, UINT64_MAX, 8, "outside it"},
        {40, 129, 8, "outside it"},
        {60, 4, 2, "outside it"},
        {128 + 128 + 24, UINT64_MAX, 8, "section outside"},
        {128 + 128 + 32, UINT64_MAX, 8, "section outside"},
        {60, 1, 2, "after it"},
        {60, 1025, 2, "too many sections"},
        {62, 3, 2, "without names"},
        {62, 2, 2, "without names"},              /* not a table of strings */
        {128 + 68, 8, 4, "without names"},        /* a table without bytes */
        {128 + 64 + 32, 0, 8, "without names"},   /* no table */
        {128 + 64 + 32, 18, 8, "without names"},  /* a table without a final NUL */
        {128, 19, 4, "no name"},                  /* just after the table */
        {128 + 64, UINT32_MAX, 4, "no name"},
        {128 + 128, 1 << 20, 4, "no name"},
        {128 + 128 + 40, 3, 4, "belongs to none"},
        {128 + 40, UINT32_MAX, 4, "belongs to none"},
        {128 + 128 + 24, 63, 8, "overlap"},
        {128 + 128 + 24, 82, 8, "overlap"},
        {128 + 128 + 24, 127, 8, "overlap"},
        {128 + 128 + 32, 33, 8, "overlap"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; ++i) {
        image = make_image();
        put(image.bytes + changes[i].at, changes[i].value, changes[i].count);
        cubin_is(&image, 90, changes[i].wrong);
    }
    /* Two sections may share all of their bytes. */
    image = make_image();
    put(image.bytes + 128 + 128 + 24, 64, 8);
    put(image.bytes + 128 + 128 + 32, 19, 8);
    cubin_is(&image, 90, NULL);
    put(image.bytes + 128 + 128 + 32, 18, 8);
    cubin_is(&image, 90, "overlap");
    /* A section without bytes may lie anywhere, unless it has the names. */
    image = make_image();
    put(image.bytes + 128 + 132, 8, 4);
    put(image.bytes + 128 + 128 + 24, UINT64_MAX, 8);
    put(image.bytes + 128 + 128 + 32, UINT64_MAX, 8);
    cubin_is(&image, 90, NULL);
    image = make_image();
    put(image.bytes + 128 + 128, 18, 4); /* a name that ends with the table */
    cubin_is(&image, 90, NULL);
    CHECK(!aotci_cubin_find(image.bytes, "k").exists);
    image = make_image();
    put(image.bytes + 56, 1, 2);
    put(image.bytes + 54, 56, 2);
    put(image.bytes + 32, 264, 8); /* a segment table over the last section header */
    put(image.bytes + 264 + 8, UINT64_MAX, 8);
    cubin_is(&image, 90, "outside it");
}

/* Header, names, the names of symbols, a symbol, code; seven sections; a segment over the code. */
enum { FULL_SECTIONS = 7, FULL_TABLE = 192, FULL_BYTES = FULL_TABLE + FULL_SECTIONS * 64 + 56 };

static void put_section(unsigned char *image, unsigned index, const uint64_t *fields) {
    unsigned char *at = image + FULL_TABLE + index * 64u;
    put(at, fields[0], 4), put(at + 4, fields[1], 4), put(at + 8, fields[2], 8);
    put(at + 24, fields[3], 8), put(at + 32, fields[4], 8), put(at + 40, fields[5], 4);
    put(at + 44, fields[6], 4), put(at + 56, fields[7], 8);
}

static void make_full(unsigned char *image) {
    static const char names[] = "\0.shstrtab\0.text.k\0.nv.shared.k\0.nv.shared.reserved.0";
    /* name, type, flags, offset, size, link, info, entry bytes */
    static const uint64_t sections[FULL_SECTIONS][8] = {
        {0},
        {1, 3, 0, 64, sizeof names, 0, 0, 0},
        {0, 3, 0, 128, 3, 0, 0, 0},
        {0, 2, 0, 136, 24, 2, 1, 24},
        {11, 1, 0x40, 160, 32, 3, 5, 0},
        {19, 8, 0x40, 192, 1024 + 48, 0, 4, 0},
        {32, 8, 0, 192, 0, 0, 0, 0},
    };
    _Static_assert(sizeof names <= 64, "they lie before the next part");
    memset(image, 0, FULL_BYTES);
    memcpy(image, "\x7F" "ELF\2\1\1", 7);
    put(image + 18, 190, 2), put(image + 32, FULL_TABLE + FULL_SECTIONS * 64, 8);
    put(image + 40, FULL_TABLE, 8), put(image + 48, 90 << 8, 4), put(image + 52, 64, 2);
    put(image + 54, 56, 2), put(image + 56, 1, 2), put(image + 58, 64, 2);
    put(image + 60, FULL_SECTIONS, 2), put(image + 62, 1, 2);
    memcpy(image + 64, names, sizeof names);
    memcpy(image + 128, "\0k", 3);
    put(image + 136, 1, 4), put(image + 142, 4, 2);
    for (unsigned i = 0; i < FULL_SECTIONS; ++i) {
        put_section(image, i, sections[i]);
    }
    unsigned char *segment = image + FULL_TABLE + FULL_SECTIONS * 64;
    put(segment, 1, 4), put(segment + 8, 160, 8), put(segment + 32, 32, 8);
}

/* Every byte, 16-, 32- and 64-bit word of a cubin at extremes: an accepted cubin is readable. */
static void test_extreme_cubins(void) {
    unsigned char *image = malloc(FULL_BYTES); /* a block of its own: the sanitizer sees its end */
    static const uint64_t extremes[] = {
        0,         1,        2,         3,          7,          8,          23,        0x7F,
        0x80,      0xFF,     0x7FFF,    0x8000,     0xFFFF,     0x7FFFFFFF, 0x80000000,
        UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_MAX - 63, FULL_BYTES, FULL_BYTES - 1,
    };
    unsigned long passed = 0;
    make_full(image);
    CHECK(aotci_cubin_check(image, FULL_BYTES, 90) == NULL && aotci_cubin_find(image, "k").exists);
    CHECK(aotci_cubin_find(image, "k").static_shared_bytes == 48);
    CHECK(aotci_cubin_find(image, "reserved.0").static_shared_bytes == 0);
    CHECK(aotci_cubin_find(image, "kk").static_shared_bytes == 0);
    for (unsigned bytes = 1; bytes <= 8; bytes *= 2) {
        for (unsigned at = 0; at + bytes <= FULL_BYTES; ++at) {
            for (size_t i = 0; i < sizeof extremes / sizeof *extremes; ++i) {
                make_full(image);
                put(image + at, extremes[i], bytes);
                if (aotci_cubin_check(image, FULL_BYTES, 90) == NULL) {
                    (void)aotci_cubin_find(image, "k").exists;
                    (void)aotci_cubin_find(image, "k").static_shared_bytes;
                    passed += 1;
                }
            }
        }
    }
    CHECK(passed > 0);
    free(image);
}

/* ---- expressions --------------------------------------------------------------------------------
 */

static uint32_t last_test_count; /* of the last program */

/* Run a program over arguments; the code is in a block of its exact size. */
static const char *run(const char *bytes, size_t code_bytes, const aotc_arg *args, int64_t *value) {
    unsigned char *code = malloc(code_bytes);
    memcpy(code, bytes, code_bytes);
    struct aotc_kernel kernel = {0};
    kernel.tables.sections[SECTION_CODE] = (struct aotci_table){code, (uint32_t)code_bytes, 1, 0};
    const struct expression_record expression = {.code_bytes = (uint32_t)code_bytes};
    const char *failure = aotci_evaluate(&kernel, &expression, args, value);
    /* As a guard: evaluated, and by its tests if it consists of these. */
    struct aotci_test tests[8];
    const uint32_t test_count = aotci_guard_compile(&kernel, &expression, NULL);
    CHECK(test_count <= 8 && aotci_guard_compile(&kernel, &expression, tests) == test_count);
    const bool holds = failure == NULL && *value != 0;
    const struct aotci_guard evaluated = {.expression = &expression};
    const struct aotci_guard tested = {&expression, tests, test_count};
    CHECK(aotci_guard_holds(&kernel, &evaluated, args) == holds);
    CHECK(aotci_guard_holds(&kernel, &tested, args) == holds);
    last_test_count = test_count;
    free(code);
    return failure;
}

/* Apply a binary operator to two 64-bit constants. */
static const char *binary(unsigned opcode, int64_t a, int64_t b, int64_t *value) {
    char code[19];
    code[0] = code[9] = 3;
    memcpy(code + 1, &a, sizeof a);
    memcpy(code + 10, &b, sizeof b);
    code[18] = (char)opcode;
    return run(code, sizeof code, NULL, value);
}

static void gives(unsigned opcode, int64_t a, int64_t b, int64_t expected) {
    int64_t value = 0;
    CHECK(binary(opcode, a, b, &value) == NULL && value == expected);
}

static void fails(unsigned opcode, int64_t a, int64_t b, const char *text) {
    int64_t value = 0;
    const char *failure = binary(opcode, a, b, &value);
    CHECK(failure != NULL && strstr(failure, text) != NULL);
}

static void test_arithmetic(void) {
    gives(0x10, 2, 3, 5), gives(0x11, 2, 3, -1), gives(0x12, -4, 3, -12);
    fails(0x10, INT64_MAX, 1, "overflow"), fails(0x11, INT64_MIN, 1, "overflow");
    fails(0x12, INT64_MIN, -1, "overflow");
    gives(0x13, 7, 2, 3), gives(0x13, -7, 2, -4), gives(0x13, 7, -2, -4), gives(0x13, -7, -2, 3);
    fails(0x13, 1, 0, "zero"), fails(0x13, INT64_MIN, -1, "overflow"),
        gives(0x13, INT64_MIN, 1, INT64_MIN);
    gives(0x14, 7, 3, 1), gives(0x14, -7, 3, 2), gives(0x14, 7, -3, -2),
        gives(0x14, INT64_MIN, -1, 0);
    fails(0x14, 1, 0, "zero");
    gives(0x15, 2, -3, -3), gives(0x16, 2, -3, 2);
    gives(0x17, 7, 2, 4), gives(0x17, -7, 2, -3), gives(0x17, 8, 2, 4), gives(0x17, 7, -2, -3);
    fails(0x17, INT64_MIN, -1, "overflow"), fails(0x17, 1, 0, "zero");
    gives(0x17, INT64_MAX, 2, INT64_MAX / 2 + 1);
    gives(0x20, 1, 1, 1), gives(0x21, 1, 1, 0), gives(0x22, 1, 2, 1), gives(0x23, 2, 2, 1);
    gives(0x24, 2, 2, 0), gives(0x25, 2, 2, 1), gives(0x28, 5, 0, 0), gives(0x28, 5, -1, 1);
    gives(0x29, 0, 0, 0), gives(0x29, 0, 2, 1);
    int64_t value = 0;
    CHECK(run("\x01\x05\x18", 3, NULL, &value) == NULL && value == -5);
    CHECK(run("\x01\x05\x2A", 3, NULL, &value) == NULL && value == 0);
    CHECK(run("\x02\x00\x00\x00\x80", 5, NULL, &value) == NULL && value == INT32_MIN);
    CHECK(run("\x03\x00\x00\x00\x00\x00\x00\x00\x80\x18", 10, NULL, &value) != NULL);
}

static void test_arguments(void) {
    const int64_t shape[2] = {10, 20};
    const int64_t strides[2] = {-20, 1};
    const aotc_tensor tensor = {(void *)(uintptr_t)4096, 2, 0, shape, strides};
    const struct {
        aotc_arg arg;
        int64_t expected;
        bool fails;
    } cases[] = {
        {aotc_i8(-1), -1, false},
        {aotc_i16(-2), -2, false},
        {aotc_i32(INT32_MIN), INT32_MIN, false},
        {aotc_i64(INT64_MIN), INT64_MIN, false},
        {aotc_u8(255), 255, false},
        {aotc_u16(65535), 65535, false},
        {aotc_u32(UINT32_MAX), UINT32_MAX, false},
        {aotc_u64(INT64_MAX), INT64_MAX, false},
        {aotc_u64(UINT64_MAX), 0, true},
        {aotc_i1(3), 1, false},
        {aotc_pointer((void *)(uintptr_t)64, AOTC_FP32), 64, false},
        {aotc_arg_bits(AOTC_POINTER, AOTC_FP32, UINT64_MAX), 0, true},
        {aotc_tensor_arg(&tensor, AOTC_BF16), 4096, false},
        /* High bits that the kernel does not receive are ignored. */
        {aotc_arg_bits(AOTC_SCALAR, AOTC_I32, UINT64_C(0xABCD00000005)), 5, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const aotc_arg args[2] = {aotc_i32(0), cases[i].arg};
        int64_t value = 0;
        const char *failure = run("\x04\x01\x00", 3, args, &value);
        CHECK((failure != NULL) == cases[i].fails &&
              (cases[i].fails || value == cases[i].expected));
        /* As a guard in the form compiled to a mask, and one nearly so. */
        (void)run("\x04\x01\x00\x01\x10\x14\x01\x00\x20", 9, args, &value);
        (void)run("\x04\x01\x00\x01\x0C\x14\x01\x00\x20", 9, args, &value);
        (void)run("\x04\x01\x00\x02\x00\x10\x00\x00\x14\x01\x00\x20", 12, args, &value);
    }
    const aotc_arg args[1] = {aotc_tensor_arg(&tensor, AOTC_BF16)};
    int64_t value = 0;
    CHECK(run("\x05\x00\x00\x01", 4, args, &value) == NULL && value == 20);
    CHECK(run("\x06\x00\x00\x00", 4, args, &value) == NULL && value == -20);
}

/* Comparisons, joined in all the ways that give tests, and in some that do not. */
static void test_guards(void) {
    const int64_t shape[2] = {10, 1};
    const int64_t strides[2] = {16, 7};
    const aotc_tensor tensor = {(void *)(uintptr_t)4096, 2, 0, shape, strides};
#define N "\x04\x00\x00"     /* n */
#define M "\x04\x01\x00"     /* m, a u64 */
#define ONE "\x05\x02\x00\x01" /* t.shape[1] */
#define STEP "\x06\x02\x00\x01"
    static const struct {
        const char *code;
        size_t code_bytes;
        uint32_t test_count;
    } programs[] = {
#define PROGRAM(code, count) {code, sizeof(code) - 1, count}
        PROGRAM(N "\x01\x05\x20", 1), /* n == 5 and the other relations */
        PROGRAM(N "\x01\x05\x21", 1),
        PROGRAM(N "\x01\x05\x22", 1),
        PROGRAM(N "\x01\x05\x23", 1),
        PROGRAM(N "\x01\x05\x24", 1),
        PROGRAM(N "\x01\x05\x25", 1),
        PROGRAM(N "\x02\xE8\x03\x00\x00\x22", 1),
        PROGRAM(N "\x03\x00\x00\x00\x00\x01\x00\x00\x00\x22", 1),
        PROGRAM(N "\x01\x08\x14\x01\x00\x20", 1),         /* n % 8 == 0 */
        PROGRAM(N "\x01\x0C\x14\x01\x00\x20", 0),         /* n % 12 == 0 */
        PROGRAM(N "\x01\x08\x14\x01\x01\x20", 0),         /* n % 8 == 1 */
        PROGRAM(N "\x01\x08\x14\x01\x00\x21", 0),         /* n % 8 != 0 */
        PROGRAM(N "\x01\x08\x14", 0),                      /* n % 8 */
        PROGRAM(N N "\x20", 0),                             /* n == n */
        PROGRAM("\x01\x05" N "\x20", 0),                    /* 5 == n */
        PROGRAM(N, 0),
        PROGRAM(N "\x01\x05\x20" M "\x01\x05\x20\x28", 2), /* n == 5 and m == 5 */
        PROGRAM(N "\x01\x05\x20" M "\x01\x05\x20\x29", 2), /* n == 5 or m == 5 */
        PROGRAM(N "\x01\x05\x20" STEP "\x01\x01\x20" ONE "\x01\x01\x20\x29\x28", 3),
        PROGRAM(STEP "\x01\x01\x20" ONE "\x01\x01\x20\x29" N "\x01\x05\x20\x28", 3),
        /* (n == 5 and m == 5) or t.shape[1] == 1, and with `or` of three */
        PROGRAM(N "\x01\x05\x20" M "\x01\x05\x20\x28" ONE "\x01\x01\x20\x29", 0),
        PROGRAM(N "\x01\x05\x20" M "\x01\x05\x20\x29" ONE "\x01\x01\x20\x29", 0),
        PROGRAM(N "\x01\x05\x20\x2A", 0),                  /* not n == 5 */
    };
    const uint64_t wide[] = {5, 6, UINT64_MAX};
    for (size_t i = 0; i < sizeof programs / sizeof *programs; ++i) {
        for (int32_t n = -9; n <= 9; ++n) {
            for (size_t k = 0; k < sizeof wide / sizeof *wide; ++k) {
                const aotc_arg args[3] = {aotc_i32(n), aotc_u64(wide[k]),
                                          aotc_tensor_arg(&tensor, AOTC_BF16)};
                int64_t value = 0;
                (void)run(programs[i].code, programs[i].code_bytes, args, &value);
                CHECK(last_test_count == programs[i].test_count);
            }
        }
    }
}

static bool program_is(const char *bytes, size_t code_bytes, uint32_t depth, const char *wrong) {
    unsigned char *code = malloc(code_bytes == 0 ? 1 : code_bytes);
    memcpy(code, bytes, code_bytes);
    const char *got = aotci_expression_check(code, (uint32_t)code_bytes, depth);
    free(code);
    return wrong == NULL ? got == NULL : got != NULL && strstr(got, wrong) != NULL;
}

static void test_programs(void) {
    char deep[2 * 33 + 32];
    CHECK(program_is("\x01\x05", 2, 1, NULL));
    CHECK(program_is("\x01\x05", 2, 2, "stack depth"));
    CHECK(program_is("\x01\x05\x01\x05", 4, 2, "one value"));
    CHECK(program_is("", 0, 0, "one value"));
    CHECK(program_is("\x10", 1, 1, "without its operands"));
    CHECK(program_is("\x18", 1, 1, "without its operands"));
    CHECK(program_is("\x01\x05\x10", 3, 1, "without its operands"));
    CHECK(program_is("\x02\x05\x00\x00\x00", 5, 1, "shorter form"));
    CHECK(program_is("\x02\x80\x00\x00\x00", 5, 1, NULL));
    CHECK(program_is("\x03\x00\x00\x00\x80\x00\x00\x00\x00", 9, 1, NULL));
    CHECK(program_is("\x03\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 9, 1, "shorter form"));
    CHECK(program_is("\x01", 1, 1, "cut short") && program_is("\x05\x00\x00", 3, 1, "cut short"));
    for (unsigned opcode = 0; opcode < 256; ++opcode) {
        static const char known[] = "\x01\x02\x03\x04\x05\x06\x10\x11\x12\x13\x14\x15\x16\x17\x18"
                                    "\x20\x21\x22\x23\x24\x25\x28\x29\x2A";
        const char code[1] = {(char)opcode};
        const bool exists = memchr(known, (int)opcode, sizeof known - 1) != NULL;
        CHECK(program_is(code, 1, 1, "unknown opcode") == !exists);
    }
    for (size_t i = 0; i < 33; ++i) {
        memcpy(deep + 2 * i, "\x01\x01", 2);
    }
    memset(deep + 2 * 33, 0x10, 32);
    CHECK(program_is(deep, sizeof deep, 33, "above 32"));
    CHECK(program_is(deep + 2, sizeof deep - 3, 32, NULL));
}

/* Long texts are truncated with a mark; an error keeps as much as fits. */
static void test_texts(void) {
    char long_text[3000];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    struct aotci_text text = aotci_text("%s", long_text);
    CHECK(strlen(text.chars) == sizeof text.chars - 1 && strstr(text.chars, "x...") != NULL);
    aotci_text_add(&text, "more");
    CHECK(strlen(text.chars) == sizeof text.chars - 1);
    aotc_error error = AOTC_ERROR_INIT;
    CHECK(AOTCI_FAIL(&error, AOTC_ERROR_ARG, .file = long_text, .kernel = long_text,
                     .got = long_text, .remedy = long_text,
                     .expected = long_text) == AOTC_ERROR_ARG);
    CHECK(strlen(error.file) == sizeof error.file - 1 &&
          strlen(error.message) == sizeof error.message - 1);
    CHECK(AOTCI_FAIL(&error, AOTC_ERROR_CUDA, .cuda = 7) == AOTC_ERROR_CUDA);
    CHECK(strcmp(error.message, "CUDA") == 0 && error.cuda == 7 && error.file[0] == '\0');
}

static void test_names(void) {
    CHECK(strcmp(aotc_status_name(AOTC_OK), "OK") == 0);
    CHECK(strcmp(aotc_status_name(AOTC_ERROR_UNSUPPORTED), "UNSUPPORTED") == 0);
    for (int i = 0; i <= AOTC_ERROR_UNSUPPORTED; ++i) {
        CHECK(strcmp(aotc_status_name((aotc_status)i), "UNKNOWN") != 0);
    }
    CHECK(strcmp(aotc_status_name((aotc_status)17), "UNKNOWN") == 0);
    CHECK(strcmp(aotc_status_name((aotc_status)-1), "UNKNOWN") == 0);
    CHECK(strcmp(aotc_dtype_name(AOTC_FP8E5), "fp8e5") == 0 && aotc_dtype_bytes(AOTC_FP8E5) == 1);
    CHECK(strcmp(aotc_dtype_name((aotc_dtype)16), "unknown") == 0 &&
          aotc_dtype_bytes((aotc_dtype)16) == 0);
    CHECK(aotc_version() == AOTC_VERSION_NUMBER);
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        test_sha256, test_sha256_blocks, test_zstd_frames, test_cubins, test_extreme_cubins, test_arithmetic,
        test_arguments, test_guards, test_programs,    test_texts,  test_names,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
