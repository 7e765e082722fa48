/* test_open.c: opening archives, good and bad: every truncation, every bit, every field. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format.h"
#include "harness.h"
#include "sha256.h"

static aotc_status open_bytes(const unsigned char *data, size_t size_bytes, uint32_t flags,
                              aotc_error *error) {
    aotc_archive *archive = NULL;
    aotc_open_options options = AOTC_OPEN_OPTIONS_INIT;
    options.flags = flags;
    const aotc_status status = aotc_open_memory(data, size_bytes, &options, &archive, error);
    CHECK((archive != NULL) == (status == AOTC_OK));
    aotc_release(archive);
    return status;
}

/* ---- looking into a good one -------------------------------------------------------------------
 */

static void look_into_kernels(const aotc_archive *archive, uint32_t count) {
    for (uint32_t i = 0; i <= count; ++i) {
        const aotc_kernel *kernel = NULL;
        aotc_kernel_info info = {.struct_size = sizeof info};
        aotc_value value;
        uint32_t size = 0;
        CHECK((aotc_kernel_get_at(archive, i, &kernel) == AOTC_OK) == (i < count));
        if (kernel == NULL) {
            continue;
        }
        CHECK(aotc_kernel_get_info(kernel, &info) == AOTC_OK);
        for (uint32_t k = 0; k <= info.param_count; ++k) {
            aotc_param_info param = {.struct_size = sizeof param};
            CHECK((aotc_kernel_get_param(kernel, k, &param) == AOTC_OK) == (k < info.param_count));
        }
        for (uint32_t k = 0; k <= info.type_variable_count; ++k) {
            aotc_type_variable_info variable = {.struct_size = sizeof variable};
            CHECK((aotc_kernel_get_type_variable(kernel, k, &variable) == AOTC_OK) ==
                  (k < info.type_variable_count));
        }
        for (uint32_t k = 0; k < info.choice_count; ++k) {
            aotc_choice_info choice = {.struct_size = sizeof choice};
            CHECK(aotc_kernel_get_choice(kernel, k, &choice) == AOTC_OK);
            for (uint32_t v = 0; v <= choice.value_count; ++v) {
                CHECK((aotc_kernel_get_choice_value(kernel, k, v, &value) == AOTC_OK) ==
                      (v < choice.value_count));
            }
        }
        for (uint32_t k = 0; k <= info.constant_count; ++k) {
            CHECK((aotc_kernel_get_constant(kernel, k, &value) == AOTC_OK) ==
                  (k < info.constant_count));
        }
        for (uint32_t k = 0; k <= info.guard_count; ++k) {
            aotc_guard_info guard = {.struct_size = sizeof guard};
            CHECK((aotc_kernel_get_guard(kernel, k, &guard) == AOTC_OK) == (k < info.guard_count));
        }
        for (uint32_t k = 0; k < info.config_count; ++k) {
            CHECK(aotc_kernel_get_config_size(kernel, k, &size) == AOTC_OK);
            for (uint32_t v = 0; v <= size; ++v) {
                CHECK((aotc_kernel_get_config_entry(kernel, k, v, &value) == AOTC_OK) ==
                      (v < size));
            }
        }
        for (uint32_t k = 0; k <= info.variant_count; ++k) {
            aotc_variant_info variant = {.struct_size = sizeof variant};
            CHECK((aotc_kernel_get_variant(kernel, k, &variant) == AOTC_OK) ==
                  (k < info.variant_count));
        }
    }
}

static void test_info(void) {
    aotc_archive *archive = NULL;
    const aotc_kernel *kernel = NULL;
    aotc_error error = AOTC_ERROR_INIT;
    EXPECT(aotc_open_file(golden_path("golden.aotc"), NULL, &archive, &error), AOTC_OK, &error,
           NULL);
    aotc_archive_info info = {.struct_size = sizeof info};
    CHECK(aotc_archive_get_info(archive, &info) == AOTC_OK);
    CHECK(strcmp(info.name, "golden") == 0 && strcmp(info.version, "1.2.3") == 0);
    CHECK(info.kernel_count == 5 && info.target_count == 2);
    look_into_kernels(archive, info.kernel_count);

    CHECK(aotc_kernel_get(archive, "choose", &kernel, &error) == AOTC_OK);
    aotc_value value;
    CHECK(aotc_kernel_get_choice_value(kernel, 1, 1, &value) == AOTC_OK);
    CHECK(strcmp(value.name, "MODE") == 0 && value.kind == AOTC_VALUE_STRING);
    CHECK(strcmp(value.as.string, "exact") == 0);
    CHECK(aotc_kernel_get_constant(kernel, 2, &value) == AOTC_OK);
    CHECK(strcmp(value.name, "SCALE") == 0 && value.as.real == 0.25);
    aotc_variant_info variant = {.struct_size = sizeof variant};
    CHECK(aotc_kernel_get_variant(kernel, 0, &variant) == AOTC_OK);
    CHECK(strcmp(variant.target, "sm_90a") == 0 && strcmp(variant.remarks, "one\ntwo") == 0);
    CHECK(aotc_kernel_get(archive, "add", &kernel, &error) == AOTC_OK);
    aotc_param_info param = {.struct_size = sizeof param};
    CHECK(aotc_kernel_get_param(kernel, 3, &param) == AOTC_OK);
    CHECK(param.optional == 1 && param.divisibility == 16 && param.dtype == AOTC_I32 &&
          param.type_variable == -1);
    aotc_guard_info guard = {.struct_size = sizeof guard};
    CHECK(aotc_kernel_get_guard(kernel, 0, &guard) == AOTC_OK);
    CHECK(guard.promised == 1 && strcmp(guard.expression, "x_ptr % 16 == 0") == 0);

    /* A struct of a later version keeps its tail zero; one that is too small is refused. */
    struct {
        aotc_guard_info known;
        uint64_t later;
    } larger = {.known.struct_size = sizeof larger, .later = 7};
    CHECK(aotc_kernel_get_guard(kernel, 0, &larger.known) == AOTC_OK && larger.later == 0);
    guard.struct_size = 8;
    CHECK(aotc_kernel_get_guard(kernel, 0, &guard) == AOTC_ERROR_ARG);

    EXPECT(aotc_kernel_get(archive, "ad", &kernel, &error), AOTC_ERROR_NOT_FOUND, &error,
           "did you mean 'add'");
    CHECK(kernel == NULL && strcmp(error.kernel, "ad") == 0);
    EXPECT(aotc_kernel_get(archive, "scartch", &kernel, &error), AOTC_ERROR_NOT_FOUND, &error,
           "'scratch'");
    EXPECT(aotc_kernel_get(archive, "something-else", &kernel, &error), AOTC_ERROR_NOT_FOUND,
           &error, "'tma'");
    EXPECT(aotc_kernel_get(archive, NULL, &kernel, &error), AOTC_ERROR_ARG, &error, "NULL");
    EXPECT(aotc_kernel_get(archive, "", &kernel, NULL), AOTC_ERROR_NOT_FOUND, NULL, NULL);
    aotc_retain(archive);
    aotc_release(archive);
    aotc_release(archive);
    aotc_release(NULL);
    aotc_retain(NULL);
}

/* ---- files ------------------------------------------------------------------------------------
 */

static void test_files(void) {
    aotc_archive *archive = NULL;
    aotc_error error = AOTC_ERROR_INIT;
    char path[4200];
    EXPECT(aotc_open_file(golden_path("missing.aotc"), NULL, &archive, &error), AOTC_ERROR_IO,
           &error, "missing");
    CHECK(error.os_error == ENOENT);
    EXPECT(aotc_open_file(golden_path(""), NULL, &archive, &error), AOTC_ERROR_IO, &error,
           "directory");
    CHECK(error.os_error == EISDIR);
    (void)snprintf(path, sizeof path, "%s.fifo", golden_path("x"));
    (void)unlink(path);
    CHECK(mkfifo(path, 0600) == 0);
    EXPECT(aotc_open_file(path, NULL, &archive, &error), AOTC_ERROR_IO, &error, "regular");
    (void)unlink(path);
    EXPECT(aotc_open_file("/dev/null", NULL, &archive, &error), AOTC_ERROR_IO, &error, "regular");
    EXPECT(aotc_open_file(NULL, NULL, &archive, &error), AOTC_ERROR_ARG, &error, NULL);
    EXPECT(aotc_open_file(path, NULL, NULL, &error), AOTC_ERROR_ARG, &error, NULL);

    /* An empty file, a file of another kind, one that is cut, one with a tail. */
    struct bytes golden = read_golden("golden.aotc");
    const struct {
        size_t size_bytes;
        const char *text;
    } cuts[] = {{0, "fewer bytes"},
                {127, "fewer bytes"},
                {128, "file size"},
                {golden.size_bytes - 1, "file size"},
                {golden.size_bytes + 1, "file size"}};
    (void)snprintf(path, sizeof path, "%s", golden_path("cut.aotc"));
    golden.data[golden.size_bytes] = 0;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; ++i) {
        FILE *file = fopen(path, "wb");
        CHECK(file != NULL &&
              fwrite(golden.data, 1, cuts[i].size_bytes, file) == cuts[i].size_bytes);
        (void)fclose(file);
        EXPECT(aotc_open_file(path, NULL, &archive, &error), AOTC_ERROR_FORMAT, &error,
               cuts[i].text);
        CHECK(strcmp(error.file, path) == 0);
    }
    /* Four sparse GiB that say that they are an archive: no memory is asked for before the index is
     * known to be what was written. */
    struct header_record header;
    memcpy(&header, golden.data, sizeof header);
    header.file_bytes = UINT64_C(4) << 30;
    struct counting counting = {.fail_at = -1};
    aotc_open_options options = AOTC_OPEN_OPTIONS_INIT;
    options.allocator = counting_allocator(&counting);
    FILE *sparse = fopen(path, "wb");
    CHECK(sparse != NULL && fwrite(&header, sizeof header, 1, sparse) == 1);
    CHECK(ftruncate(fileno(sparse), (off_t)header.file_bytes) == 0);
    (void)fclose(sparse);
    EXPECT(aotc_open_file(path, &options, &archive, &error), AOTC_ERROR_CHECKSUM, &error, NULL);
    CHECK(counting.peak_bytes < 1 << 20 && counting.live == 0);
    CHECK(truncate(path, (off_t)header.file_bytes + 1) == 0);
    EXPECT(aotc_open_file(path, &options, &archive, &error), AOTC_ERROR_FORMAT, &error, "file size");

    /* What happens to the file afterwards has no effect. */
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(golden.data, 1, golden.size_bytes, file) == golden.size_bytes);
    (void)fclose(file);
    EXPECT(aotc_open_file(path, NULL, &archive, &error), AOTC_OK, &error, NULL);
    CHECK(truncate(path, 0) == 0);
    look_into_kernels(archive, 5);
    aotc_release(archive);
    (void)unlink(path);
    free(golden.data);
}

/* ---- bad bytes ---------------------------------------------------------------------------------
 */

static void test_truncation(void) {
    struct bytes golden = read_golden("golden.aotc");
    for (size_t size = 0; size < golden.size_bytes; ++size) {
        CHECK(open_bytes(golden.data, size, 0, NULL) == AOTC_ERROR_FORMAT);
    }
    golden.data[golden.size_bytes] = 0;
    CHECK(open_bytes(golden.data, golden.size_bytes + 1, 0, NULL) == AOTC_ERROR_FORMAT);
    free(golden.data);
}

/* Any one bit: found, and by a status that fits. */
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

/* Write the digest that belongs to a changed header and index. */
static void seal(unsigned char *data, size_t size_bytes) {
    struct header_record header;
    struct aotci_sha256 hash;
    memcpy(&header, data, sizeof header);
    memset(data + offsetof(struct header_record, index_sha256), 0, sizeof header.index_sha256);
    aotci_sha256_begin(&hash);
    if (header.index_bytes <= size_bytes - HEADER_BYTES) {
        aotci_sha256_update(&hash, data, (size_t)(HEADER_BYTES + header.index_bytes));
    }
    aotci_sha256_end(&hash, data + offsetof(struct header_record, index_sha256));
}

static uint64_t index_end(const struct bytes *archive) {
    struct header_record header;
    memcpy(&header, archive->data, sizeof header);
    return HEADER_BYTES + header.index_bytes;
}

/* Every 32-bit word of header and index at extremes, with a digest that fits: nothing is read that
 * is not there (the sanitizers say so), and what is accepted can be looked into. */
static void extremes_of(const char *name) {
    struct bytes golden = read_golden(name);
    const uint64_t end = index_end(&golden);
    unsigned long accepted = 0;
    for (size_t at = 8; at + 4 <= end; at += 4) {
        uint32_t original = 0;
        memcpy(&original, golden.data + at, sizeof original);
        const uint32_t extremes[] = {
            0,          1,          original + 1,      original - 1, 0x7FFFFFFF,
            0x80000000, 0xFFFFFFFF, original ^ 0xFF00, original << 8};
        for (size_t i = 0; i < sizeof extremes / sizeof *extremes; ++i) {
            if (extremes[i] == original) {
                continue;
            }
            memcpy(golden.data + at, &extremes[i], sizeof original);
            seal(golden.data, golden.size_bytes);
            aotc_archive *archive = NULL;
            if (aotc_open_memory(golden.data, golden.size_bytes, NULL, &archive, NULL) == AOTC_OK) {
                aotc_archive_info info = {.struct_size = sizeof info};
                CHECK(aotc_archive_get_info(archive, &info) == AOTC_OK);
                look_into_kernels(archive, info.kernel_count);
                accepted += 1;
            }
            aotc_release(archive);
        }
        memcpy(golden.data + at, &original, sizeof original);
    }
    /* Most changes cannot be accepted; some (sizes, digests of sources, values) mean something else
     * only. */
    CHECK(accepted < end / 4 * 9 / 2);
    free(golden.data);
}

static void test_extremes(void) {
    extremes_of("golden.aotc");
    extremes_of("looped.aotc");
    extremes_of("empty.aotc");
}

/* A change of one field, sealed, and what it must be called. */
struct change {
    enum section_kind section; /* 0: the header */
    uint32_t record;
    size_t at;
    uint64_t value;
    unsigned bytes;
    aotc_status status;
    const char *text;
};

#define IN_HEADER(field, value, status, text)                                                      \
    {0,                                                                                            \
     0,                                                                                            \
     offsetof(struct header_record, field),                                                        \
     (value),                                                                                      \
     sizeof((struct header_record *)0)->field,                                                     \
     status,                                                                                       \
     text}
#define IN_RECORD(section, record, type, field, value, status, text)                               \
    {section, record, offsetof(struct type, field), (value), sizeof((struct type *)0)->field,      \
     status,  text}

#define IN_DIRECTORY(section, value, status, text)                                                 \
    {0,                                                                                            \
     0,                                                                                            \
     HEADER_BYTES + 8 + sizeof(struct directory_entry) * ((section)-1) +                           \
         offsetof(struct directory_entry, count),                                                  \
     (value),                                                                                      \
     4,                                                                                            \
     status,                                                                                       \
     text}

/* Change one field at a time, with a digest that fits, and open. */
static void expect_changes(const char *name, const struct change *changes, size_t count) {
    struct bytes golden = read_golden(name);
    unsigned char *copy = malloc(golden.size_bytes);
    const struct directory_entry *directory = (const void *)(golden.data + HEADER_BYTES + 8);
    for (size_t i = 0; i < count; ++i) {
        aotc_error error = AOTC_ERROR_INIT;
        const struct change *change = &changes[i];
        size_t at = change->at;
        if (change->section != 0) {
            const struct directory_entry *entry = &directory[change->section - 1];
            at += HEADER_BYTES + entry->offset + (size_t)entry->record_bytes * change->record;
        }
        memcpy(copy, golden.data, golden.size_bytes);
        memcpy(copy + at, &change->value, change->bytes);
        seal(copy, golden.size_bytes);
        EXPECT(open_bytes(copy, golden.size_bytes, 0, &error), change->status, &error,
               change->text);
    }
    free(copy);
    free(golden.data);
}

static void test_fields(void) {
    static const struct change changes[] = {
        IN_HEADER(major, 2, AOTC_ERROR_VERSION, "2.0"),
        IN_HEADER(required_features, 1 << 10 | 7, AOTC_ERROR_VERSION, "0x400"),
        IN_HEADER(required_features, 1, AOTC_ERROR_FORMAT, "required_features"),
        IN_HEADER(required_features, 0, AOTC_ERROR_FORMAT, "required_features"),
        IN_HEADER(optional_features, 1, AOTC_ERROR_FORMAT, "optional_features"),
        IN_HEADER(header_bytes, 64, AOTC_ERROR_FORMAT, "header_bytes"),
        IN_HEADER(index_offset, 192, AOTC_ERROR_FORMAT, "index_offset"),
        IN_HEADER(index_bytes, UINT64_MAX, AOTC_ERROR_LIMIT, "18446744073709551615"),
        IN_HEADER(index_bytes, UINT64_C(17) << 20, AOTC_ERROR_LIMIT, "16 MiB"),
        IN_HEADER(file_bytes, (UINT64_C(4) << 30) + 1, AOTC_ERROR_LIMIT, "4 GiB"),
        IN_HEADER(index_bytes, 12, AOTC_ERROR_FORMAT, "index_bytes"),
        IN_HEADER(index_bytes, 8, AOTC_ERROR_FORMAT, "section_count"),
        IN_HEADER(index_bytes, 0, AOTC_ERROR_FORMAT, "section_count"),
        IN_RECORD(SECTION_ARCHIVE, 0, archive_record, name, 0, AOTC_ERROR_FORMAT,
                  "ARCHIVE[0].name"),
        IN_RECORD(SECTION_ARCHIVE, 0, archive_record, toolchain, UINT32_MAX, AOTC_ERROR_FORMAT,
                  "toolchain"),
        IN_RECORD(SECTION_TARGETS, 1, target_record, major, 8, AOTC_ERROR_FORMAT, "TARGETS[1]"),
        IN_RECORD(SECTION_TARGETS, 1, target_record, feature, 3, AOTC_ERROR_FORMAT, "TARGETS[1]"),
        IN_RECORD(SECTION_KERNELS, 1, kernel_record, first_param, 3, AOTC_ERROR_FORMAT, "slices"),
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
        IN_RECORD(SECTION_CHOICES, 0, choice_record, value_count, 1025, AOTC_ERROR_LIMIT, "values"),
        IN_RECORD(SECTION_CHOICES, 0, choice_record, first_value, 0, AOTC_ERROR_FORMAT,
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
        IN_RECORD(SECTION_VARIANTS, 0, variant_record, condition, 1, AOTC_ERROR_FORMAT,
                  "required_features"),
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
        IN_RECORD(SECTION_TENSOR_MAPS, 0, tensor_map_record, rank, 6, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[0]"),
        IN_RECORD(SECTION_TENSOR_MAPS, 0, tensor_map_record, interleave, 1, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[0]"),
        IN_RECORD(SECTION_TENSOR_MAPS, 0, tensor_map_record, swizzle, 1, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[0]"), /* rows of 128 bytes */
        IN_RECORD(SECTION_TENSOR_MAPS, 0, tensor_map_record, data_type, 3, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[0]"),
        IN_RECORD(SECTION_TENSOR_MAPS, 0, tensor_map_record, box[0], 257, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[0]"),
        IN_RECORD(SECTION_TENSOR_MAPS, 0, tensor_map_record, box[0], 4, AOTC_ERROR_FORMAT,
                  "TENSOR_MAPS[0]"),
        IN_RECORD(SECTION_TENSOR_MAPS, 0, tensor_map_record, oob_fill, 1, AOTC_OK, NULL),
        IN_DIRECTORY(SECTION_PARAMS, UINT32_MAX, AOTC_ERROR_LIMIT, "size of a section"),
        IN_DIRECTORY(SECTION_STRINGS, (16 << 20) + 1, AOTC_ERROR_LIMIT, "size of a section"),
        IN_DIRECTORY(SECTION_TARGETS, 65, AOTC_ERROR_LIMIT, "TARGETS"),
        IN_DIRECTORY(SECTION_KERNELS, 65537, AOTC_ERROR_LIMIT, "KERNELS"),
        IN_DIRECTORY(SECTION_KERNELS, 65536, AOTC_ERROR_FORMAT, "count"),
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
        IN_RECORD(SECTION_BLOBS, 1, blob_record, offset, 0, AOTC_ERROR_FORMAT, "BLOBS[1]"),
        IN_RECORD(SECTION_BLOBS, 0, blob_record, stored_bytes, UINT32_MAX, AOTC_ERROR_FORMAT,
                  "BLOBS[0]"),
        IN_RECORD(SECTION_BLOBS, 0, blob_record, kind, 2, AOTC_ERROR_FORMAT, "cubin"),
    };
    expect_changes("golden.aotc", changes, sizeof changes / sizeof *changes);
}

/* What is told of the grid: to blocks that loop over programs, along an axis that there is. */
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

/* Bytes that UTF-8 does not have, or not there. (A NUL in a string may make two good ones.) */
static void test_strings(void) {
    struct bytes golden = read_golden("golden.aotc");
    const struct directory_entry *directory = (const void *)(golden.data + HEADER_BYTES + 8);
    unsigned char *strings = golden.data + HEADER_BYTES + directory[SECTION_STRINGS - 1].offset;
    const unsigned char bad[] = {0x80, 0xC0, 0xC1, 0xE0, 0xED, 0xF5, 0xFF};
    for (size_t i = 0; i < sizeof bad; ++i) {
        for (uint32_t at = 1; at < directory[SECTION_STRINGS - 1].count - 1; at += 3) {
            aotc_error error = AOTC_ERROR_INIT;
            const unsigned char before = strings[at];
            strings[at] = bad[i];
            seal(golden.data, golden.size_bytes);
            if (before != bad[i]) {
                CHECK(open_bytes(golden.data, golden.size_bytes, 0, &error) == AOTC_ERROR_FORMAT);
            }
            strings[at] = before;
        }
    }
    free(golden.data);
}

/* A newer minor version may lengthen records; the same minor may not. */
static void test_newer_minor(void) {
    struct bytes empty = read_golden("empty.aotc");
    struct header_record *header = (void *)empty.data;
    struct directory_entry *directory = (void *)(empty.data + HEADER_BYTES + 8);
    directory[SECTION_KERNELS - 1].record_bytes += 8;
    seal(empty.data, empty.size_bytes);
    CHECK(open_bytes(empty.data, empty.size_bytes, 0, NULL) == AOTC_ERROR_FORMAT);
    header->minor = 1;
    header->optional_features = 4;
    seal(empty.data, empty.size_bytes);
    CHECK(open_bytes(empty.data, empty.size_bytes, 0, NULL) == AOTC_OK);
    directory[SECTION_KERNELS - 1].record_bytes += 4;
    seal(empty.data, empty.size_bytes);
    CHECK(open_bytes(empty.data, empty.size_bytes, 0, NULL) == AOTC_ERROR_FORMAT);
    free(empty.data);
}

/* ---- options, memory ---------------------------------------------------------------------------
 */

static void test_options(void) {
    struct bytes golden = read_golden("golden.aotc");
    aotc_archive *archive = NULL;
    aotc_error error = AOTC_ERROR_INIT;
    struct {
        aotc_open_options known;
        uint64_t later;
    } options = {.known = AOTC_OPEN_OPTIONS_INIT};
    options.known.struct_size = sizeof options;
    EXPECT(aotc_open_memory(golden.data, golden.size_bytes, &options.known, &archive, &error),
           AOTC_OK, &error, NULL);
    aotc_release(archive);
    options.later = 1;
    EXPECT(aotc_open_memory(golden.data, golden.size_bytes, &options.known, &archive, &error),
           AOTC_ERROR_ARG, &error, "aotc_open_options");
    options.known = (aotc_open_options)AOTC_OPEN_OPTIONS_INIT;
    options.known.flags = 1u << 31;
    EXPECT(aotc_open_memory(golden.data, golden.size_bytes, &options.known, &archive, &error),
           AOTC_ERROR_ARG, &error, "flags");
    EXPECT(aotc_open_memory(NULL, 0, NULL, &archive, &error), AOTC_ERROR_ARG, &error, "NULL");
    EXPECT(open_bytes(golden.data, golden.size_bytes, AOTC_OPEN_REQUIRE_SIGNATURE, &error),
           AOTC_ERROR_SIGNATURE, &error, "signature");

    /* A copy outlives its source; memory needs no alignment. */
    unsigned char *moved = malloc(golden.size_bytes + 1);
    memcpy(moved + 1, golden.data, golden.size_bytes);
    options.known.flags = AOTC_OPEN_COPY;
    EXPECT(aotc_open_memory(moved + 1, golden.size_bytes, &options.known, &archive, &error),
           AOTC_OK, &error, NULL);
    free(moved);
    look_into_kernels(archive, 5);
    aotc_release(archive);

    /* An error struct of another size is left alone. */
    error.struct_size = 16;
    error.status = 99;
    CHECK(aotc_open_file(NULL, NULL, &archive, &error) == AOTC_ERROR_ARG && error.status == 99);
    free(golden.data);
}

/* The nth allocation fails: NOMEM, and nothing is left behind. */
static void test_out_of_memory(void) {
    struct bytes golden = read_golden("golden.aotc");
    aotc_archive *archive = NULL;
    for (int way = 0; way < 3; ++way) {
        bool done = false;
        for (long nth = 0; !done; ++nth) {
            struct counting counting = {.fail_at = nth};
            aotc_error error = AOTC_ERROR_INIT;
            aotc_open_options options = AOTC_OPEN_OPTIONS_INIT;
            options.allocator = counting_allocator(&counting);
            options.driver_path = "x";
            options.flags = way == 1 ? AOTC_OPEN_COPY : 0;
            const aotc_status status =
                way == 2
                    ? aotc_open_file(golden_path("golden.aotc"), &options, &archive, &error)
                    : aotc_open_memory(golden.data, golden.size_bytes, &options, &archive, &error);
            done = status == AOTC_OK;
            CHECK(done || status == AOTC_ERROR_NOMEM);
            CHECK(done == (counting.calls <= nth));
            aotc_release(archive);
            CHECK(counting.live == 0 && counting.live_bytes == 0);
        }
    }
    free(golden.data);
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        test_info,     test_files,  test_truncation,      test_bit_flips,
        test_extremes, test_fields, test_fields_of_loops, test_strings,
        test_newer_minor, test_options, test_out_of_memory,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
