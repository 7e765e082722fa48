/* test_corrupt.c: archives that must be refused: every truncation, every bit, every field. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "format.h"
#include "harness.h"
#include "sha256.h"

static void test_truncation(void) {
    struct bytes golden = read_golden("golden.aotc");
    for (size_t size = 0; size < golden.size_bytes; ++size) {
        CHECK(open_bytes(golden.data, size, 0, NULL) == AOTC_ERROR_FORMAT);
    }
    golden.data[golden.size_bytes] = 0;
    CHECK(open_bytes(golden.data, golden.size_bytes + 1, 0, NULL) == AOTC_ERROR_FORMAT);
    free(golden.data);
}

/* Any flipped bit is detected, with a fitting status. */
static void test_bit_flips(void) {
    struct bytes small = read_golden("small.aotc");
    for (size_t bit = 0; bit < small.size_bytes * 8; ++bit) {
        small.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        const aotc_status status =
            open_bytes(small.data, small.size_bytes, AOTC_OPEN_VERIFY_BLOBS, NULL);
        const bool in_version = bit / 8 >= 8 && bit / 8 < 24;
        const bool in_sizes = bit / 8 >= 32 && bit / 8 < 56;
        CHECK(status == AOTC_ERROR_CHECKSUM || status == AOTC_ERROR_FORMAT ||
              (in_version && status == AOTC_ERROR_VERSION) ||
              (in_sizes && status == AOTC_ERROR_LIMIT));
        small.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    CHECK(open_bytes(small.data, small.size_bytes, AOTC_OPEN_VERIFY_BLOBS, NULL) == AOTC_OK);
    free(small.data);
}

static void digest_of(const unsigned char *data, size_t size_bytes, unsigned char *digest) {
    struct aotci_sha256 hash;
    aotci_sha256_begin(&hash);
    aotci_sha256_update(&hash, data, size_bytes);
    aotci_sha256_end(&hash, digest);
}

/* Write the digests of the pieces of some bytes. */
static void digests_of(const unsigned char *data, uint64_t size_bytes, unsigned char *digests) {
    for (uint64_t at = 0; at < size_bytes; at += ROOT_PIECE_BYTES, digests += DIGEST_BYTES) {
        const uint64_t rest = size_bytes - at;
        digest_of(data + at, (size_t)(rest < ROOT_PIECE_BYTES ? rest : ROOT_PIECE_BYTES), digests);
    }
}

/* Write the digests of a changed header and root, if there is room for them. */
static void seal(unsigned char *data, size_t size_bytes) {
    struct header_record header;
    memcpy(&header, data, sizeof header);
    memset(data + offsetof(struct header_record, root_sha256), 0, sizeof header.root_sha256);
    const uint64_t left = size_bytes - HEADER_BYTES;
    if (header.root_bytes > left) {
        return;
    }
    const uint64_t digest_bytes = aotci_digest_bytes(header.root_bytes);
    const uint64_t seal_bytes = aotci_digest_bytes(digest_bytes);
    if (digest_bytes + seal_bytes > left - header.root_bytes) {
        return;
    }
    unsigned char *root = data + HEADER_BYTES + seal_bytes;
    unsigned char *digests = root + header.root_bytes;
    digests_of(root, header.root_bytes, digests);
    digests_of(digests, digest_bytes, data + HEADER_BYTES);
    uint32_t section_count = 0;
    memcpy(&section_count, root, header.root_bytes < 4 ? 0 : 4);
    const uint64_t directory_bytes = 8 + 16 * (uint64_t)section_count;
    const uint64_t covered =
        directory_bytes < header.root_bytes ? directory_bytes : header.root_bytes;
    digest_of(data, (size_t)(HEADER_BYTES + seal_bytes + covered),
              data + offsetof(struct header_record, root_sha256));
}

/* Sections of the root, and of the index of a kernel, in the order of their directories. */
static const enum section_kind root_kinds[] = {SECTION_ARCHIVE, SECTION_TARGETS, SECTION_ENTRIES,
                                               SECTION_SLOTS, SECTION_STRINGS};
enum { ROOT = -1, FRAME_HEAD_BYTES = 12 };

static struct directory_entry *entry_of(unsigned char *index, int kernel, enum section_kind kind) {
    unsigned place = kind == SECTION_TARGETS ? 0 : (unsigned)kind - SECTION_KERNELS + 1;
    for (unsigned i = 0; kernel == ROOT && i < sizeof root_kinds / sizeof *root_kinds; ++i) {
        place = root_kinds[i] == kind ? i : place;
    }
    struct directory_entry *entry = (void *)(index + 8);
    return entry + place;
}

static size_t root_at(const unsigned char *data) {
    struct header_record header;
    memcpy(&header, data, sizeof header);
    return (size_t)header.root_offset;
}

static struct entry_record *kernel_of(unsigned char *data, uint32_t number) {
    unsigned char *root = data + root_at(data);
    return (struct entry_record *)(void *)(root + entry_of(root, ROOT, SECTION_ENTRIES)->offset) + number;
}

/* The root, or the index of a kernel, in the file. */
static unsigned char *index_of(unsigned char *data, int kernel) {
    return kernel == ROOT ? data + root_at(data)
                          : data + kernel_of(data, (uint32_t)kernel)->offset + FRAME_HEAD_BYTES;
}

/* An aligned copy of an index, which may be unaligned in the file. */
static unsigned char *copy_index(const struct bytes *archive, int kernel) {
    struct header_record header;
    memcpy(&header, archive->data, sizeof header);
    const size_t size_bytes = kernel == ROOT ? (size_t)header.root_bytes
                                             : kernel_of(archive->data, (uint32_t)kernel)->frame.raw_bytes;
    unsigned char *copy = malloc(size_bytes);
    memcpy(copy, index_of(archive->data, kernel), size_bytes);
    return copy;
}

/* Write the digests of a changed index of a kernel. */
static void seal_kernel(unsigned char *data, size_t size_bytes, int kernel) {
    if (kernel != ROOT) {
        struct entry_record *entry = kernel_of(data, (uint32_t)kernel);
        digest_of(data + entry->offset, entry->frame.stored_bytes, entry->frame.sha256);
    }
    seal(data, size_bytes);
}

/* Set every 32-bit word in a range to extremes, with valid digests: nothing is read out of bounds
 * (the sanitizers check), and an accepted archive is readable. */
static void extremes_between(struct bytes *golden, size_t begin, size_t end, int kernel) {
    unsigned long accepted = 0;
    /* With a wrong size the digests' offset is wrong. */
    unsigned char *whole = malloc(golden->size_bytes);
    memcpy(whole, golden->data, golden->size_bytes);
    for (size_t at = begin; at + 4 <= end; at += 4) {
        uint32_t original = 0;
        memcpy(&original, golden->data + at, sizeof original);
        const uint32_t extremes[] = {
            0,          1,          original + 1,      original - 1, 0x7FFFFFFF,
            0x80000000, 0xFFFFFFFF, original ^ 0xFF00, original << 8};
        for (size_t i = 0; i < sizeof extremes / sizeof *extremes; ++i) {
            if (extremes[i] == original) {
                continue;
            }
            memcpy(golden->data + at, &extremes[i], sizeof original);
            seal_kernel(golden->data, golden->size_bytes, kernel);
            aotc_archive *archive = NULL;
            const aotc_kernel *opened = NULL;
            aotc_open_options options = stored_options();
            options.flags = kernel == ROOT ? AOTC_OPEN_VERIFY_BLOBS : 0;
            if (aotc_open_memory(golden->data, golden->size_bytes, &options, &archive, NULL) ==
                AOTC_OK) {
                aotc_archive_info info = {.struct_size = sizeof info};
                CHECK(aotc_archive_get_info(archive, &info) == AOTC_OK);
                const uint32_t number = kernel == ROOT ? 0 : (uint32_t)kernel;
                if (info.kernel_count == 0 ||
                    aotc_kernel_get_at(archive, number, &opened) == AOTC_OK) {
                    read_kernel(opened);
                    accepted += 1;
                }
            }
            aotc_release(archive);
            memcpy(golden->data, whole, golden->size_bytes);
        }
    }
    free(whole);
    /* Most changes cannot be accepted; some (sizes, digests of sources, values) only change the
     * meaning. */
    CHECK(accepted < (end - begin) / 4 * 9 / 2);
}

/* Open a kernel of an archive, and its code. */
static void ask_for_one(const unsigned char *data, size_t size_bytes) {
    aotc_archive *archive = NULL;
    const aotc_kernel *kernel = NULL;
    aotc_open_options options = stored_options();
    options.driver_path = driver_path;
    if (aotc_open_memory(data, size_bytes, &options, &archive, NULL) == AOTC_OK &&
        aotc_kernel_get(archive, "add_077", &kernel, NULL) == AOTC_OK) {
        aotc_load_options load = AOTC_LOAD_OPTIONS_INIT;
        load.kernel = "add_077";
        load.device = 0;
        fake_cuda_reset();
        (void)aotc_load(archive, &load, NULL);
        read_kernel(kernel);
    }
    aotc_release(archive);
}

/* The same for a large root, of which only the requested parts are checked: despite any other
 * damage, a kernel is found and its code is read, or there is an error. It is used in place, at an
 * odd address, and read like a file. */
static void extremes_of_a_large_root(void) {
    struct bytes many = read_golden("many.aotc");
    struct header_record header;
    memcpy(&header, many.data, sizeof header);
    const size_t root_end = (size_t)(header.root_offset + header.root_bytes);
    const size_t head_bytes = root_end + (size_t)aotci_digest_bytes(header.root_bytes);
    unsigned char *moved = malloc(many.size_bytes + 1);
    memcpy(moved + 1, many.data, many.size_bytes);
    enum { STEP = 52 }; /* not each word: a record of each kind in each position */
    for (size_t at = (size_t)header.root_offset; at + 4 <= root_end; at += STEP) {
        uint32_t original = 0;
        memcpy(&original, many.data + at, sizeof original);
        const uint32_t extremes[] = {0, 1, original + 1, 0x7FFFFFFF, 0xFFFFFFFF, original ^ 0xFF00};
        for (size_t i = 0; i < sizeof extremes / sizeof *extremes; ++i) {
            memcpy(many.data + at, &extremes[i], sizeof original);
            seal(many.data, many.size_bytes);
            ask_for_one(many.data, many.size_bytes);
            memcpy(moved + 1, many.data, head_bytes);
            ask_for_one(moved + 1, many.size_bytes);
        }
        memcpy(many.data + at, &original, sizeof original);
    }
    free(moved);
    free(many.data);
}

static void extremes_of(const char *name) {
    struct bytes golden = read_golden(name);
    struct header_record header;
    memcpy(&header, golden.data, sizeof header);
    extremes_between(&golden, 8, (size_t)(header.root_offset + header.root_bytes), ROOT);
    const uint32_t kernel_count =
        entry_of(index_of(golden.data, ROOT), ROOT, SECTION_ENTRIES)->count;
    for (uint32_t i = 0; i < kernel_count; ++i) {
        const struct entry_record entry = *kernel_of(golden.data, i);
        extremes_between(&golden, (size_t)entry.offset + FRAME_HEAD_BYTES,
                         (size_t)entry.offset + entry.frame.stored_bytes, (int)i);
        extremes_between(&golden, (size_t)entry.offset + entry.frame.stored_bytes,
                         (size_t)(entry.offset + aotci_index_bytes(&entry)), ROOT);
    }
    free(golden.data);
}

static void test_extremes(void) {
    extremes_of_a_large_root();
    static const char *const names[] = {"golden.aotc", "looped.aotc", "boxes.aotc", "steered.aotc",
                                        "grouped.aotc", "empty.aotc"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        extremes_of(names[i]);
    }
}

/* A change of one field, sealed, and its expected error. */
struct change {
    int kernel;
    enum section_kind section; /* 0: the header; `at` is in a directory's entry */
    bool in_directory;
    uint32_t record;
    size_t at;
    uint64_t value;
    unsigned bytes;
    aotc_status status;
    const char *text;
};

#define IN_HEADER(field, value, status, text)                                                      \
    {ROOT,                                                                                         \
     0,                                                                                            \
     false,                                                                                        \
     0,                                                                                            \
     offsetof(struct header_record, field),                                                        \
     (value),                                                                                      \
     sizeof((struct header_record *)0)->field,                                                     \
     status,                                                                                       \
     text}
#define IN_KERNEL(kernel, section, record, type, field, value, status, text)                       \
    {kernel,                                                                                       \
     section,                                                                                      \
     false,                                                                                        \
     record,                                                                                       \
     offsetof(struct type, field),                                                                 \
     (value),                                                                                      \
     sizeof((struct type *)0)->field,                                                              \
     status,                                                                                       \
     text}
#define IN_ROOT(section, record, type, field, value, status, text)                                 \
    IN_KERNEL(ROOT, section, record, type, field, value, status, text)
#define IN_RECORD(section, record, type, field, value, status, text)                               \
    IN_KERNEL(0, section, record, type, field, value, status, text)
#define IN_DIRECTORY(kernel, section, value, status, text)                                         \
    {kernel, section, true, 0, offsetof(struct directory_entry, count), (value), 4, status, text}

/* Change one field at a time, with valid digests, and open. */
static void expect_changes(const char *name, const struct change *changes, size_t count) {
    struct bytes golden = read_golden(name);
    unsigned char *copy = malloc(golden.size_bytes);
    for (size_t i = 0; i < count; ++i) {
        aotc_error error = AOTC_ERROR_INIT;
        const struct change *change = &changes[i];
        memcpy(copy, golden.data, golden.size_bytes);
        unsigned char *target = copy + change->at;
        if (change->section != 0) {
            unsigned char *index = copy_index(&golden, change->kernel);
            const struct directory_entry *entry = entry_of(index, change->kernel, change->section);
            const size_t at = change->in_directory
                                  ? (size_t)((const unsigned char *)entry - index)
                                  : entry->offset + (size_t)entry->record_bytes * change->record;
            target = index_of(copy, change->kernel) + at + change->at;
            free(index);
        }
        memcpy(target, &change->value, change->bytes);
        seal_kernel(copy, golden.size_bytes, change->kernel);
        EXPECT(open_bytes(copy, golden.size_bytes, 0, &error), change->status, &error,
               change->text);
    }
    free(copy);
    free(golden.data);
}

static void test_fields(void) {
    static const struct change changes[] = {
        IN_HEADER(major, 1, AOTC_ERROR_VERSION, "1.0"),
        IN_HEADER(major, 8, AOTC_ERROR_VERSION, "8.0"),
        IN_HEADER(major, 10, AOTC_ERROR_VERSION, "10.0"),
        IN_HEADER(required_features, 1 << 10 | 1, AOTC_ERROR_VERSION, "0x400"),
        IN_HEADER(required_features, 0, AOTC_ERROR_FORMAT, "ENTRIES[0].raw_bytes"),
        IN_HEADER(optional_features, 1, AOTC_ERROR_FORMAT, "optional_features"),
        IN_HEADER(header_bytes, 64, AOTC_ERROR_FORMAT, "header_bytes"),
        IN_HEADER(root_offset, 192, AOTC_ERROR_FORMAT, "root_offset"),
        IN_HEADER(root_bytes, UINT64_MAX, AOTC_ERROR_LIMIT, "18446744073709551615"),
        IN_HEADER(root_bytes, UINT64_C(17) << 20, AOTC_ERROR_LIMIT, "16 MiB"),
        IN_HEADER(file_bytes, (UINT64_C(4) << 30) + 1, AOTC_ERROR_LIMIT, "4 GiB"),
        IN_HEADER(root_bytes, 12, AOTC_ERROR_FORMAT, "root_bytes"),
        IN_HEADER(root_bytes, 8, AOTC_ERROR_FORMAT, "section_count"),
        IN_HEADER(root_bytes, 0, AOTC_ERROR_FORMAT, "root_offset"),
        IN_ROOT(SECTION_ARCHIVE, 0, archive_record, name, 0, AOTC_ERROR_FORMAT,
                  "ARCHIVE[0].name"),
        IN_ROOT(SECTION_ARCHIVE, 0, archive_record, toolchain, UINT32_MAX, AOTC_ERROR_FORMAT,
                  "toolchain"),
        IN_ROOT(SECTION_TARGETS, 1, target_record, major, 8, AOTC_ERROR_FORMAT, "TARGETS[1]"),
        IN_ROOT(SECTION_TARGETS, 1, target_record, feature, 3, AOTC_ERROR_FORMAT, "TARGETS[1]"),
        IN_KERNEL(1, SECTION_KERNELS, 0, kernel_record, first_param, 3, AOTC_ERROR_FORMAT, "slices"),
        IN_RECORD(SECTION_KERNELS, 0, kernel_record, param_count, 257, AOTC_ERROR_LIMIT, "params"),
        IN_RECORD(SECTION_KERNELS, 0, kernel_record, guard_count, 65, AOTC_ERROR_LIMIT, "guards"),
        IN_RECORD(SECTION_KERNELS, 0, kernel_record, config_count, 0, AOTC_ERROR_FORMAT,
                  "config_count"),
        IN_RECORD(SECTION_KERNELS, 0, kernel_record, variant_count, UINT32_MAX, AOTC_ERROR_FORMAT,
                  "slices"),
        IN_RECORD(SECTION_KERNELS, 0, kernel_record, promises, 2, AOTC_ERROR_FORMAT, "guards"),
        IN_RECORD(SECTION_KERNELS, 0, kernel_record, grid_rank, 2, AOTC_ERROR_FORMAT, "grid"),
        IN_RECORD(SECTION_PARAMS, 0, param_record, kind, 4, AOTC_ERROR_FORMAT, "PARAMS[0].kind"),
        IN_RECORD(SECTION_PARAMS, 0, param_record, dtype, 3, AOTC_ERROR_FORMAT, "PARAMS[0].dtype"),
        IN_RECORD(SECTION_PARAMS, 0, param_record, type_variable, 2, AOTC_ERROR_FORMAT,
                  "PARAMS[0].dtype"),
        IN_RECORD(SECTION_PARAMS, 3, param_record, dtype, 12, AOTC_ERROR_FORMAT,
                  "GUARDS[1].expression"),
        IN_RECORD(SECTION_PARAMS, 0, param_record, rank, 1, AOTC_ERROR_FORMAT, "rank"),
        IN_RECORD(SECTION_PARAMS, 0, param_record, divisibility, 3, AOTC_ERROR_FORMAT,
                  "divisibility"),
        IN_RECORD(SECTION_TYPE_VARIABLES, 0, type_variable_record, dtype_count, 16,
                  AOTC_ERROR_FORMAT, "dtypes"),
        IN_KERNEL(1, SECTION_CHOICES, 0, choice_record, value_count, 1025, AOTC_ERROR_LIMIT, "values"),
        IN_KERNEL(1, SECTION_CHOICES, 0, choice_record, first_value, 0, AOTC_ERROR_FORMAT,
                  "first_value"),
        IN_RECORD(SECTION_VALUES, 0, value_record, kind, 5, AOTC_ERROR_FORMAT, "VALUES[0].payload"),
        IN_RECORD(SECTION_GUARDS, 0, guard_record, expression, 10000, AOTC_ERROR_FORMAT,
                  "GUARDS[0].expression"),
        IN_RECORD(SECTION_GUARDS, 0, guard_record, text, 0, AOTC_ERROR_FORMAT, "GUARDS[0].text"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, guards, 9, AOTC_ERROR_FORMAT, "guards"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, guards, 2, AOTC_ERROR_FORMAT, "guards"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, combination, 2, AOTC_ERROR_FORMAT,
                  "combination"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, config, 2, AOTC_ERROR_FORMAT, "config"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, config, 1, AOTC_ERROR_FORMAT, "order"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, target, 2, AOTC_ERROR_FORMAT, "target"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, cubin, 1000, AOTC_ERROR_FORMAT, "cubin"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, cubin, 8, AOTC_ERROR_FORMAT,
                  "one architecture"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, cubin_param_count, 1025, AOTC_ERROR_LIMIT,
                  "cubin params"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, tensor_map_count, 33, AOTC_ERROR_LIMIT,
                  "tensor maps"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, param_bytes, 24, AOTC_ERROR_FORMAT,
                  "param_bytes"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, num_threads, 1025, AOTC_ERROR_FORMAT,
                  "num_threads"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, scratch_align, 8, AOTC_ERROR_FORMAT,
                  "scratch"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, condition, 10000, AOTC_ERROR_FORMAT,
                  "condition"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, condition, 1, AOTC_OK, NULL),
        IN_RECORD(SECTION_CUBIN_PARAMS, 0, cubin_param_record, size, 4, AOTC_ERROR_FORMAT,
                  "CUBIN_PARAMS[0]"),
        IN_RECORD(SECTION_CUBIN_PARAMS, 1, cubin_param_record, offset, 0, AOTC_ERROR_FORMAT,
                  "offset"),
        IN_RECORD(SECTION_CUBIN_PARAMS, 3, cubin_param_record, offset, 8192, AOTC_ERROR_LIMIT,
                  "parameter block"),
        IN_RECORD(SECTION_CUBIN_PARAMS, 0, cubin_param_record, source, 3, AOTC_ERROR_FORMAT,
                  "source"),
        IN_RECORD(SECTION_CUBIN_PARAMS, 3, cubin_param_record, source, 5, AOTC_ERROR_FORMAT,
                  "CUBIN_PARAMS[3].source"),
        /* In a variant that otherwise equals the previous one, with which it is compared. */
        IN_RECORD(SECTION_VARIANTS, 1, variant_record, param_bytes, 24, AOTC_ERROR_FORMAT,
                  "VARIANTS[1].param_bytes"),
        IN_RECORD(SECTION_VARIANTS, 1, variant_record, symbol, 0, AOTC_ERROR_FORMAT,
                  "VARIANTS[1].symbol"),
        IN_RECORD(SECTION_VARIANTS, 1, variant_record, remarks, UINT32_MAX, AOTC_ERROR_FORMAT,
                  "VARIANTS[1].symbol, remarks"),
        IN_RECORD(SECTION_VARIANTS, 1, variant_record, grid[0], 10000, AOTC_ERROR_FORMAT,
                  "VARIANTS[1].grid"),
        IN_RECORD(SECTION_VARIANTS, 1, variant_record, scratch_align, 8, AOTC_ERROR_FORMAT,
                  "VARIANTS[1].scratch"),
        /* And has its parameters and tensor maps, or the next ones. */
        IN_RECORD(SECTION_VARIANTS, 1, variant_record, first_cubin_param, 1, AOTC_ERROR_FORMAT,
                  "VARIANTS[1].first_cubin_param"),
        IN_RECORD(SECTION_VARIANTS, 1, variant_record, cubin_param_count, 3, AOTC_ERROR_FORMAT,
                  "VARIANTS[1].first_cubin_param"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, cubin_param_count, 3, AOTC_ERROR_FORMAT,
                  "VARIANTS[0].param_bytes"),
        IN_KERNEL(4, SECTION_VARIANTS, 1, variant_record, first_tensor_map, 1, AOTC_ERROR_FORMAT,
                  "VARIANTS[1].first_cubin_param, first_tensor_map"),
        IN_KERNEL(4, SECTION_TENSOR_MAPS, 0, tensor_map_record, rank, 6, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[0]"),
        IN_KERNEL(4, SECTION_TENSOR_MAPS, 0, tensor_map_record, interleave, 1, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[0]"),
        IN_KERNEL(4, SECTION_TENSOR_MAPS, 0, tensor_map_record, swizzle, 1, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[0]"), /* rows of 128 bytes */
        IN_KERNEL(4, SECTION_TENSOR_MAPS, 0, tensor_map_record, data_type, 3, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[0]"),
        IN_KERNEL(4, SECTION_TENSOR_MAPS, 0, tensor_map_record, box[0], 257, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[0]"),
        IN_KERNEL(4, SECTION_TENSOR_MAPS, 0, tensor_map_record, box[0], 4, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[0]"),
        IN_KERNEL(4, SECTION_TENSOR_MAPS, 0, tensor_map_record, oob_fill, 1, AOTC_OK, NULL),
        IN_DIRECTORY(0, SECTION_PARAMS, UINT32_MAX, AOTC_ERROR_LIMIT, "size of a section"),
        IN_DIRECTORY(ROOT, SECTION_STRINGS, (16 << 20) + 1, AOTC_ERROR_LIMIT, "size of a section"),
        IN_DIRECTORY(ROOT, SECTION_TARGETS, 65, AOTC_ERROR_LIMIT, "TARGETS"),
        IN_DIRECTORY(ROOT, SECTION_ENTRIES, 65537, AOTC_ERROR_LIMIT, "ENTRIES"),
        IN_DIRECTORY(ROOT, SECTION_ENTRIES, 65536, AOTC_ERROR_FORMAT, "count"),
        IN_DIRECTORY(0, SECTION_KERNELS, 0, AOTC_ERROR_FORMAT, "offset"),
        IN_DIRECTORY(0, SECTION_TARGETS, 65, AOTC_ERROR_LIMIT, "TARGETS"),
        IN_ROOT(SECTION_ENTRIES, 0, entry_record, name, 0, AOTC_ERROR_FORMAT, "ENTRIES[0].name"),
        IN_ROOT(SECTION_ENTRIES, 1, entry_record, name, 1, AOTC_ERROR_FORMAT, "ENTRIES[1].name"),
        IN_ROOT(SECTION_ENTRIES, 0, entry_record, frame_count, UINT32_MAX, AOTC_ERROR_FORMAT,
                "ENTRIES[0].frame_count"),
        IN_ROOT(SECTION_ENTRIES, 0, entry_record, frame_count, 1, AOTC_ERROR_FORMAT,
                "ENTRIES[1].offset"),
        IN_ROOT(SECTION_ENTRIES, 4, entry_record, frame_count, 0, AOTC_ERROR_FORMAT, "FRAMES"),
        IN_ROOT(SECTION_ENTRIES, 0, entry_record, frame.raw_bytes, (16 << 20) + 1, AOTC_ERROR_LIMIT,
                "decoded size"),
        IN_ROOT(SECTION_ENTRIES, 1, entry_record, frame.raw_bytes, 0, AOTC_ERROR_FORMAT, "ENTRIES[1]"),
        IN_ROOT(SECTION_ENTRIES, 1, entry_record, frame.raw_bytes, 4000, AOTC_ERROR_FORMAT, "content size"),
        IN_ROOT(SECTION_ENTRIES, 1, entry_record, offset, 0, AOTC_ERROR_FORMAT, "ENTRIES[1].offset"),
        IN_ROOT(SECTION_ENTRIES, 0, entry_record, frame.stored_bytes, UINT32_MAX, AOTC_ERROR_FORMAT,
                "ENTRIES[0].offset"),
        IN_ROOT(SECTION_ENTRIES, 0, entry_record, frame.stored_bytes, 8, AOTC_ERROR_FORMAT,
                "ENTRIES[1].offset"),
        IN_ROOT(SECTION_ENTRIES, 1, entry_record, frame.sha256[3], 1, AOTC_ERROR_CHECKSUM, "index"),
        IN_DIRECTORY(ROOT, SECTION_SLOTS, 8, AOTC_ERROR_FORMAT, "offset"),
        IN_ROOT(SECTION_SLOTS, 0, slot_record, tag, 1, AOTC_ERROR_FORMAT, "SLOTS"),
        IN_ROOT(SECTION_SLOTS, 0, slot_record, kernel, 9, AOTC_ERROR_FORMAT, "SLOTS"),
        IN_RECORD(SECTION_FRAMES, 0, frame_record, raw_bytes, (64 << 20) + 1, AOTC_ERROR_LIMIT,
                  "decoded size"),
        IN_RECORD(SECTION_FRAMES, 0, frame_record, raw_bytes, 0, AOTC_ERROR_FORMAT, "FRAMES[0]"),
        IN_RECORD(SECTION_FRAMES, 0, frame_record, raw_bytes, 8, AOTC_ERROR_FORMAT, "BLOBS[1]"),
        IN_DIRECTORY(0, SECTION_FRAMES, 15, AOTC_ERROR_FORMAT, "offset"),
        IN_RECORD(SECTION_EXPRESSIONS, 1, expression_record, code_offset, 1, AOTC_ERROR_FORMAT,
                  "EXPRESSIONS[1]"),
        IN_RECORD(SECTION_EXPRESSIONS, 0, expression_record, code_bytes, 4097, AOTC_ERROR_LIMIT,
                  "bytecode"),
        IN_RECORD(SECTION_EXPRESSIONS, 0, expression_record, stack_depth, 33, AOTC_ERROR_LIMIT,
                  "stack"),
        IN_RECORD(SECTION_EXPRESSIONS, 0, expression_record, stack_depth, 1, AOTC_ERROR_FORMAT,
                  "stack depth"),
        IN_RECORD(SECTION_BLOBS, 0, blob_record, raw_bytes, (64 << 20) + 1, AOTC_ERROR_LIMIT,
                  "decoded size"),
        IN_RECORD(SECTION_BLOBS, 1, blob_record, frame, 0, AOTC_ERROR_FORMAT, "BLOBS[1]"),
        IN_RECORD(SECTION_BLOBS, 0, blob_record, raw_bytes, 8, AOTC_ERROR_FORMAT, "BLOBS[1]"),
        IN_RECORD(SECTION_BLOBS, 15, blob_record, raw_bytes, 8, AOTC_ERROR_FORMAT, "end"),
        IN_RECORD(SECTION_BLOBS, 15, blob_record, frame, 16, AOTC_ERROR_FORMAT, "BLOBS[15]"),
        IN_RECORD(SECTION_BLOBS, 0, blob_record, kind, 2, AOTC_ERROR_FORMAT, "cubin"),
    };
    expect_changes("golden.aotc", changes, sizeof changes / sizeof *changes);
}

/* Blobs of one frame are adjacent, and only they begin elsewhere than at 0. */
static void test_fields_of_groups(void) {
    static const struct change changes[] = {
        IN_RECORD(SECTION_BLOBS, 0, blob_record, start, 8, AOTC_ERROR_FORMAT, "BLOBS[0].frame"),
        IN_RECORD(SECTION_BLOBS, 1, blob_record, start, 0, AOTC_ERROR_FORMAT, "BLOBS[1].frame"),
        IN_RECORD(SECTION_BLOBS, 1, blob_record, start, 64 << 20, AOTC_ERROR_LIMIT,
                  "decoded size of a frame"),
        IN_RECORD(SECTION_BLOBS, 1, blob_record, frame, 1, AOTC_ERROR_FORMAT, "BLOBS[1].frame"),
        IN_RECORD(SECTION_BLOBS, 1, blob_record, kind, 2, AOTC_ERROR_FORMAT, "BLOBS[1].frame"),
        IN_RECORD(SECTION_BLOBS, 1, blob_record, raw_bytes, 1, AOTC_ERROR_FORMAT,
                  "BLOBS[2].frame"),
    };
    static const struct change without[] = {
        IN_RECORD(SECTION_BLOBS, 1, blob_record, start, 8, AOTC_ERROR_FORMAT, "BLOBS[1].frame"),
    };
    expect_changes("grouped.aotc", changes, sizeof changes / sizeof *changes);
    expect_changes("golden.aotc", without, sizeof without / sizeof *without);
}

/* The index of a kernel has its name. */
static void test_another_name(void) {
    struct bytes twins = read_golden("twins.aotc");
    aotc_error error = AOTC_ERROR_INIT;
    const struct bytes names = {index_of(twins.data, 0), kernel_of(twins.data, 0)->frame.raw_bytes};
    for (size_t at = 0; at + 4 <= names.size_bytes; ++at) {
        if (memcmp(names.data + at, "add", 4) == 0) {
            memcpy(names.data + at, "adb", 4);
        }
    }
    seal_kernel(twins.data, twins.size_bytes, 0);
    EXPECT(open_bytes(twins.data, twins.size_bytes, 0, &error), AOTC_ERROR_FORMAT, &error, "name");
    free(twins.data);
}

/* Variants whose parameters and tensor maps differ from the previous variant's. */
static void test_fields_of_others(void) {
    static const struct change changes[] = {
        IN_RECORD(SECTION_CUBIN_PARAMS, 2, cubin_param_record, size, 4, AOTC_ERROR_FORMAT,
                  "CUBIN_PARAMS[2]"),
        IN_RECORD(SECTION_CUBIN_PARAMS, 2, cubin_param_record, zero, 1, AOTC_ERROR_FORMAT,
                  "CUBIN_PARAMS[2]"),
        IN_RECORD(SECTION_TENSOR_MAPS, 1, tensor_map_record, rank, 6, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[1]"),
        IN_RECORD(SECTION_TENSOR_MAPS, 1, tensor_map_record, box[0], 257, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[1]"),
        IN_RECORD(SECTION_TENSOR_MAPS, 1, tensor_map_record, box[1], 32, AOTC_OK, NULL),
        IN_RECORD(SECTION_VARIANTS, 1, variant_record, first_tensor_map, 0, AOTC_ERROR_FORMAT, "owner"),
    };
    expect_changes("boxes.aotc", changes, sizeof changes / sizeof *changes);
}

/* Grid extents are passed only to persistent kernels, for an existing axis. */
static void test_fields_of_loops(void) {
    static const struct change changes[] = {
        IN_RECORD(SECTION_CUBIN_PARAMS, 1, cubin_param_record, index, 3, AOTC_ERROR_FORMAT,
                  "CUBIN_PARAMS[1].source, index, size"),
        IN_RECORD(SECTION_CUBIN_PARAMS, 1, cubin_param_record, size, 8, AOTC_ERROR_FORMAT,
                  "CUBIN_PARAMS[1].source, index, size"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, flags, 1, AOTC_ERROR_FORMAT,
                  "CUBIN_PARAMS[1].source, index, size"),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, flags, 3, AOTC_OK, NULL),
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, flags, 6, AOTC_ERROR_FORMAT, "flags"),
    };
    expect_changes("looped.aotc", changes, sizeof changes / sizeof *changes);
}

/* Bytes invalid in UTF-8, or at their position. (A NUL in a string may make two good ones.) */
static void test_strings_of(int kernel) {
    struct bytes golden = read_golden("golden.aotc");
    unsigned char *index = copy_index(&golden, kernel);
    const struct directory_entry entry = *entry_of(index, kernel, SECTION_STRINGS);
    unsigned char *strings = index_of(golden.data, kernel) + entry.offset;
    const unsigned char bad[] = {0x80, 0xC0, 0xC1, 0xE0, 0xED, 0xF5, 0xFF};
    for (size_t i = 0; i < sizeof bad; ++i) {
        for (uint32_t at = 1; at < entry.count - 1; at += 3) {
            aotc_error error = AOTC_ERROR_INIT;
            const unsigned char before = strings[at];
            strings[at] = bad[i];
            seal_kernel(golden.data, golden.size_bytes, kernel);
            if (before != bad[i]) {
                CHECK(open_bytes(golden.data, golden.size_bytes, 0, &error) == AOTC_ERROR_FORMAT);
            }
            strings[at] = before;
        }
    }
    free(index);
    free(golden.data);
}

static void test_strings(void) {
    test_strings_of(ROOT);
    test_strings_of(0);
    test_strings_of(3);
}

/* A newer minor version may lengthen records; the same minor may not. */
static void test_newer_minor(void) {
    struct bytes empty = read_golden("empty.aotc");
    struct header_record *header = (void *)empty.data;
    struct directory_entry *directory = (void *)(empty.data + root_at(empty.data) + 8);
    directory[2].record_bytes += 8;
    seal(empty.data, empty.size_bytes);
    CHECK(open_bytes(empty.data, empty.size_bytes, 0, NULL) == AOTC_ERROR_FORMAT);
    header->minor = 1;
    header->optional_features = 4;
    seal(empty.data, empty.size_bytes);
    CHECK(open_bytes(empty.data, empty.size_bytes, 0, NULL) == AOTC_OK);
    directory[2].record_bytes += 4;
    seal(empty.data, empty.size_bytes);
    CHECK(open_bytes(empty.data, empty.size_bytes, 0, NULL) == AOTC_ERROR_FORMAT);
    free(empty.data);
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        test_truncation, test_bit_flips, test_extremes, test_fields, test_fields_of_others, test_fields_of_loops,
        test_fields_of_groups, test_another_name, test_strings, test_newer_minor,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
