/* test_open.c: opening archives: contents of a good one, files, options, memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "format.h"
#include "harness.h"

/* ---- what a good one says ----------------------------------------------------------------------
 */

static void test_info(void) {
    aotc_archive *archive = NULL;
    const aotc_kernel *kernel = NULL;
    aotc_error error = AOTC_ERROR_INIT;
    const aotc_open_options options = stored_options();
    EXPECT(aotc_open_file(golden_path("golden.aotc"), &options, &archive, &error), AOTC_OK, &error,
           NULL);
    aotc_archive_info info = {.struct_size = sizeof info};
    CHECK(aotc_archive_get_info(archive, &info) == AOTC_OK);
    CHECK(strcmp(info.name, "golden") == 0 && strcmp(info.version, "1.2.3") == 0);
    CHECK(info.kernel_count == 5 && info.target_count == 2);
    read_kernels(archive, info.kernel_count);

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

    /* A struct of a later version keeps its tail zero; too small a one is refused. */
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

/* ---- without compression ----------------------------------------------------------------------- */

static void launch_from(const char *name, const char *kernel, uint32_t flags) {
    fake_cuda_reset();
    aotc_archive *archive = NULL;
    const aotc_kernel *found = NULL;
    aotc_error error = AOTC_ERROR_INIT;
    aotc_open_options options = AOTC_OPEN_OPTIONS_INIT; /* without a decompressor */
    aotc_load_options load = AOTC_LOAD_OPTIONS_INIT;
    options.driver_path = driver_path;
    options.flags = flags;
    load.kernel = kernel;
    load.device = 0;
    load.flags = AOTC_LOAD_LAZY;
    EXPECT(aotc_open_file(golden_path(name), &options, &archive, &error), AOTC_OK, &error, NULL);
    EXPECT(aotc_kernel_get(archive, kernel, &found, &error), AOTC_OK, &error, NULL);
    EXPECT(aotc_load(archive, &load, &error), AOTC_OK, &error, NULL);
    aotc_arg args[4] = {aotc_pointer((void *)0x1000, AOTC_FP32), aotc_pointer((void *)0x2000, AOTC_FP32),
                        aotc_pointer((void *)0x3000, AOTC_FP32), aotc_i32(1000)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    desc.args = args;
    desc.arg_count = 4;
    desc.stream = fake_cuda_create_stream(fake_cuda_primary_context(0));
    for (int i = 0; i < 3; ++i) { /* the first loads, the second keeps its plan, the third finds it */
        EXPECT(aotc_launch(found, &desc, &error), AOTC_OK, &error, NULL);
    }
    CHECK(fake_cuda_calls("cuModuleLoadData") == 1);
    aotc_release(archive);
    CHECK(fake_cuda_live_libraries() == 0);
    NO_VIOLATION();
}

static void test_without_compression(void) {
    static const uint32_t flags[] = {0, AOTC_OPEN_MAP, AOTC_OPEN_COPY, AOTC_OPEN_VERIFY_BLOBS,
                                     AOTC_OPEN_MAP | AOTC_OPEN_VERIFY_BLOBS, AOTC_OPEN_TRUSTED,
                                     AOTC_OPEN_MAP | AOTC_OPEN_TRUSTED};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; ++i) {
        launch_from("stored.aotc", "add", flags[i]);
        launch_from("many.aotc", "add_077", flags[i]);
        launch_from("later.aotc", "add", flags[i]); /* a newer minor version, with a long directory */
    }
    aotc_archive *archive = NULL;
    aotc_error error = AOTC_ERROR_INIT;
    aotc_open_options options = AOTC_OPEN_OPTIONS_INIT;
    options.flags = AOTC_OPEN_MAP | AOTC_OPEN_COPY;
    EXPECT(aotc_open_file(golden_path("stored.aotc"), &options, &archive, &error), AOTC_ERROR_ARG, &error,
           "known flags");
    options.flags = AOTC_OPEN_TRUSTED | AOTC_OPEN_VERIFY_BLOBS;
    EXPECT(aotc_open_file(golden_path("stored.aotc"), &options, &archive, &error), AOTC_ERROR_ARG, &error,
           "known flags");
}

/* Trusted archives have no digests compared; offsets and sizes are checked. */
static void test_trusted(void) {
    static const char *const names[] = {"stored.aotc", "many.aotc"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        struct bytes golden = read_golden(names[i]);
        struct header_record header;
        aotc_archive *archive = NULL;
        const aotc_kernel *kernel = NULL;
        aotc_error error = AOTC_ERROR_INIT;
        aotc_open_options options = stored_options();
        aotc_archive_info info = {.struct_size = sizeof info};
        memcpy(&header, golden.data, sizeof header);
        golden.data[HEADER_BYTES] ^= 1; /* the first seal */
        EXPECT(aotc_open_memory(golden.data, golden.size_bytes, &options, &archive, &error),
               AOTC_ERROR_CHECKSUM, &error, "root");
        options.flags = AOTC_OPEN_TRUSTED;
        EXPECT(aotc_open_memory(golden.data, golden.size_bytes, &options, &archive, &error), AOTC_OK, &error,
               NULL);
        CHECK(aotc_archive_get_info(archive, &info) == AOTC_OK);
        read_kernels(archive, info.kernel_count);
        EXPECT(aotc_kernel_get(archive, "none", &kernel, &error), AOTC_ERROR_NOT_FOUND, &error, "kernel");
        aotc_release(archive);
        memset(golden.data + header.root_offset + 8 + 8, 0xFF, 4); /* where its first section begins */
        EXPECT(aotc_open_memory(golden.data, golden.size_bytes, &options, &archive, &error),
               AOTC_ERROR_FORMAT, &error, "directory");
        free(golden.data);
    }
}

/* An archive at an odd address is readable: data that needs alignment is copied. */
static void test_unaligned_memory(void) {
    static const char *const names[] = {"stored.aotc", "many.aotc", "later.aotc", "golden.aotc"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        struct bytes golden = read_golden(names[i]);
        unsigned char *moved = malloc(golden.size_bytes + 1);
        memcpy(moved + 1, golden.data, golden.size_bytes);
        aotc_archive *archive = NULL;
        const aotc_open_options options = stored_options();
        aotc_archive_info info = {.struct_size = sizeof info};
        EXPECT(aotc_open_memory(moved + 1, golden.size_bytes, &options, &archive, NULL), AOTC_OK, NULL,
               NULL);
        CHECK(aotc_archive_get_info(archive, &info) == AOTC_OK);
        read_kernels(archive, info.kernel_count);
        aotc_release(archive);
        free(moved);
        free(golden.data);
    }
}

/* ---- a large root -------------------------------------------------------------------------------- */

static void test_a_large_root_is_verified_in_pieces(void) {
    struct bytes many = read_golden("many.aotc");
    aotc_archive *archive = NULL;
    const aotc_kernel *kernel = NULL;
    aotc_error error = AOTC_ERROR_INIT;
    aotc_open_options options = stored_options();
    struct header_record header;
    memcpy(&header, many.data, sizeof header);
    CHECK(header.root_bytes > 8 << 10);
    EXPECT(aotc_open_memory(many.data, many.size_bytes, &options, &archive, &error), AOTC_OK, &error, NULL);
    EXPECT(aotc_kernel_get(archive, "add_000", &kernel, &error), AOTC_OK, &error, NULL);
    EXPECT(aotc_kernel_get(archive, "add_159", &kernel, &error), AOTC_OK, &error, NULL);
    EXPECT(aotc_kernel_get(archive, "add_16", &kernel, &error), AOTC_ERROR_NOT_FOUND, &error, "did you mean");
    aotc_release(archive);

    /* A damaged name in the root: kernels are found, their indices have names, and listing all
     * reports it. */
    unsigned char *name = memmem(many.data, header.root_offset + header.root_bytes, "add_159", sizeof "add_159");
    CHECK(name != NULL);
    name[0] ^= 1;
    EXPECT(aotc_open_memory(many.data, many.size_bytes, &options, &archive, &error), AOTC_OK, &error, NULL);
    EXPECT(aotc_kernel_get(archive, "add_000", &kernel, &error), AOTC_OK, &error, NULL);
    EXPECT(aotc_kernel_get(archive, "add_159", &kernel, &error), AOTC_OK, &error, NULL);
    EXPECT(aotc_kernel_get(archive, "none", &kernel, &error), AOTC_ERROR_CHECKSUM, &error, "root");
    aotc_archive_info info = {.struct_size = sizeof info};
    CHECK(aotc_archive_get_info(archive, &info) == AOTC_ERROR_CHECKSUM);
    aotc_release(archive);
    options.flags = AOTC_OPEN_VERIFY_BLOBS;
    EXPECT(aotc_open_memory(many.data, many.size_bytes, &options, &archive, &error), AOTC_ERROR_CHECKSUM,
           &error, "root");
    name[0] ^= 1;
    options.flags = 0;
    const size_t opened[] = {HEADER_BYTES + 1, (size_t)header.root_offset + 17}; /* a seal, the directory */
    for (size_t i = 0; i < sizeof opened / sizeof *opened; ++i) {
        many.data[opened[i]] ^= 1;
        EXPECT(aotc_open_memory(many.data, many.size_bytes, &options, &archive, &error), AOTC_ERROR_CHECKSUM,
               &error, "root");
        many.data[opened[i]] ^= 1;
    }
    free(many.data);
}

/* Offsets of frames are not verified: at a wrong offset the digest differs. */
static void test_wrong_places_of_frames(void) {
    struct bytes many = read_golden("many.aotc");
    struct header_record header;
    struct directory_entry directory[5];
    struct entry_record entry;
    memcpy(&header, many.data, sizeof header);
    unsigned char *root = many.data + header.root_offset;
    memcpy(directory, root + 8, sizeof directory);
    memcpy(&entry, root + directory[2].offset + 77 * sizeof entry, sizeof entry); /* add_077 */
    unsigned char *place = many.data + entry.offset + aotci_index_bytes(&entry) - sizeof(uint64_t);
    uint64_t offset = 0;
    memcpy(&offset, place, sizeof offset);
    const struct {
        uint64_t offset;
        aotc_status status;
        const char *text;
    } places[] = {
        {offset, AOTC_OK, NULL},
        {entry.offset, AOTC_ERROR_CHECKSUM, "kernel 'add_077': frame"},
        {offset - 64, AOTC_ERROR_CHECKSUM, "kernel 'add_077': frame"},
        {offset + 8, AOTC_ERROR_FORMAT, "kernel 'add_077': frame"},
        {0, AOTC_ERROR_FORMAT, "kernel 'add_077': frame"},
        {header.file_bytes, AOTC_ERROR_FORMAT, "kernel 'add_077': frame"},
        {UINT64_MAX - 63, AOTC_ERROR_FORMAT, "kernel 'add_077': frame"},
    };
    aotc_load_options load = AOTC_LOAD_OPTIONS_INIT;
    load.kernel = "add_077";
    load.device = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
        aotc_archive *archive = NULL;
        aotc_error error = AOTC_ERROR_INIT;
        aotc_open_options options = stored_options();
        options.driver_path = driver_path;
        memcpy(place, &places[i].offset, sizeof offset);
        fake_cuda_reset();
        EXPECT(aotc_open_memory(many.data, many.size_bytes, &options, &archive, &error), AOTC_OK, &error, NULL);
        EXPECT(aotc_load(archive, &load, &error), places[i].status, &error, places[i].text);
        aotc_release(archive);
        options.flags = AOTC_OPEN_VERIFY_BLOBS;
        EXPECT(aotc_open_memory(many.data, many.size_bytes, &options, &archive, &error),
               i == 0 ? AOTC_OK : AOTC_ERROR_FORMAT, &error, i == 0 ? NULL : "place");
        aotc_release(archive);
    }
    free(many.data);
}

/* Between frames there are zeros, and after the last one nothing. */
static void test_padding_between_frames(void) {
    struct bytes stored = read_golden("stored.aotc");
    struct header_record header;
    struct directory_entry directory[3];
    struct entry_record entry;
    memcpy(&header, stored.data, sizeof header);
    const unsigned char *root = stored.data + header.root_offset;
    memcpy(directory, root + 8, sizeof directory);
    for (size_t i = 0; i < 2; ++i) { /* before an index, and after the places that follow it */
        memcpy(&entry, root + directory[2].offset + 2 * sizeof entry, sizeof entry);
        const size_t at = (size_t)(entry.offset + (i == 0 ? 0 : aotci_index_bytes(&entry)) - (i == 0));
        aotc_error error = AOTC_ERROR_INIT;
        stored.data[at] ^= 1;
        EXPECT(open_bytes(stored.data, stored.size_bytes, 0, &error), AOTC_OK, &error, NULL);
        EXPECT(open_bytes(stored.data, stored.size_bytes, AOTC_OPEN_VERIFY_BLOBS, &error), AOTC_ERROR_FORMAT,
               &error, "zeros");
        stored.data[at] ^= 1;
    }
    free(stored.data);
}

/* Two names of one slot, which is the first kernel's. */
static void test_names_of_one_slot(void) {
    static const char *const names[] = {"qtndaxrdmj", "pfjbgukvzj", "qtndaxrdmj"};
    for (size_t first = 0; first < 2; ++first) {
        aotc_archive *archive = NULL;
        aotc_error error = AOTC_ERROR_INIT;
        const aotc_open_options options = stored_options();
        EXPECT(aotc_open_file(golden_path("many.aotc"), &options, &archive, &error), AOTC_OK, &error, NULL);
        for (size_t i = first; i < sizeof names / sizeof *names; ++i) {
            const aotc_kernel *kernel = NULL;
            aotc_kernel_info info = {.struct_size = sizeof info};
            EXPECT(aotc_kernel_get(archive, names[i], &kernel, &error), AOTC_OK, &error, NULL);
            CHECK(aotc_kernel_get_info(kernel, &info) == AOTC_OK && strcmp(info.name, names[i]) == 0);
        }
        aotc_release(archive);
    }
}

/* The path to a kernel may be damaged: no kernel is mistaken for another, and a found one is
 * verified. */
static void test_a_search_meets_damage(void) {
    struct bytes many = read_golden("many.aotc");
    struct header_record header;
    memcpy(&header, many.data, sizeof header);
    const size_t end = (size_t)(header.root_offset + header.root_bytes);
    char path[4200];
    (void)snprintf(path, sizeof path, "%s", golden_path("damaged.aotc"));
    for (size_t at = (size_t)header.root_offset + 128; at < end; at += 97) {
        many.data[at] ^= 0x40;
        FILE *file = fopen(path, "wb");
        CHECK(file != NULL && fwrite(many.data, 1, many.size_bytes, file) == many.size_bytes);
        (void)fclose(file);
        for (unsigned way = 0; way < 3; ++way) {
            static const char *const names[] = {"add_000", "add_079", "add_080", "add_159"};
            aotc_archive *archive = NULL;
            aotc_open_options options = stored_options();
            options.flags = way == 0 ? AOTC_OPEN_MAP : 0;
            CHECK((way == 2 ? aotc_open_memory(many.data, many.size_bytes, &options, &archive, NULL)
                            : aotc_open_file(path, &options, &archive, NULL)) == AOTC_OK);
            for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
                const aotc_kernel *kernel = NULL;
                aotc_kernel_info info = {.struct_size = sizeof info};
                const aotc_status status = aotc_kernel_get(archive, names[i], &kernel, NULL);
                CHECK(status == AOTC_OK || status == AOTC_ERROR_CHECKSUM);
                CHECK((status == AOTC_OK) == (kernel != NULL));
                CHECK(kernel == NULL || (aotc_kernel_get_info(kernel, &info) == AOTC_OK &&
                                         strcmp(info.name, names[i]) == 0));
            }
            aotc_release(archive);
        }
        many.data[at] ^= 0x40;
    }
    (void)unlink(path);
    free(many.data);
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

    /* An empty file, a file of another kind, a truncated one, one with a tail. */
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
    /* Four sparse GiB that claim to be an archive: no memory is allocated before the index is
     * verified. */
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

    /* A replaced file stays as it was, and so does a copied one, whatever becomes of it. Truncation
     * or changes in place are detected by later reads; data already read stays. */
    const aotc_kernel *kernel = NULL;
    for (unsigned way = 0; way < 4; ++way) {
        options = stored_options();
        options.flags = way == 1 ? AOTC_OPEN_COPY : 0;
        FILE *file = fopen(path, "wb");
        CHECK(file != NULL && fwrite(golden.data, 1, golden.size_bytes, file) == golden.size_bytes);
        (void)fclose(file);
        EXPECT(aotc_open_file(path, &options, &archive, &error), AOTC_OK, &error, NULL);
        EXPECT(aotc_kernel_get(archive, "add", &kernel, &error), AOTC_OK, &error, NULL);
        if (way == 0) {
            CHECK(unlink(path) == 0);
        } else if (way == 3) {
            file = fopen(path, "r+b");
            CHECK(file != NULL);
            for (size_t at = 0; at < golden.size_bytes; ++at) {
                CHECK(fputc(golden.data[at] ^ 1, file) != EOF);
            }
            (void)fclose(file);
        } else {
            CHECK(truncate(path, 200) == 0);
        }
        if (way <= 1) {
            read_kernels(archive, 5);
        } else {
            const aotc_kernel *other = NULL;
            EXPECT(aotc_kernel_get(archive, "tma", &other, &error),
                   way == 2 ? AOTC_ERROR_IO : AOTC_ERROR_CHECKSUM, &error,
                   way == 2 ? "became shorter" : "expected the bytes that were written");
            CHECK(other == NULL && (int32_t)aotc_kernel_get_at(archive, 4, &other) == error.status);
            read_kernel(kernel);
        }
        aotc_release(archive);
        (void)unlink(path);
    }
    free(golden.data);
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
    } options = {.known = stored_options()};
    options.known.struct_size = sizeof options;
    EXPECT(aotc_open_memory(golden.data, golden.size_bytes, &options.known, &archive, &error),
           AOTC_OK, &error, NULL);
    aotc_release(archive);
    options.later = 1;
    EXPECT(aotc_open_memory(golden.data, golden.size_bytes, &options.known, &archive, &error),
           AOTC_ERROR_ARG, &error, "aotc_open_options");
    options.known = stored_options();
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
    read_kernels(archive, 5);
    aotc_release(archive);

    /* An error struct of another size is left alone. */
    error.struct_size = 16;
    error.status = 99;
    CHECK(aotc_open_file(NULL, NULL, &archive, &error) == AOTC_ERROR_ARG && error.status == 99);
    free(golden.data);
}

/* The nth allocation fails: NOMEM, and nothing leaks. */
static void test_out_of_memory(void) {
    struct bytes golden = read_golden("golden.aotc");
    aotc_archive *archive = NULL;
    for (int way = 0; way < 6; ++way) { /* the last two: more than the first read */
        const char *name = way == 4 ? "many.aotc" : way == 5 ? "later.aotc" : "golden.aotc";
        bool done = false;
        for (long nth = 0; !done; ++nth) {
            struct counting counting = {.fail_at = nth};
            aotc_error error = AOTC_ERROR_INIT;
            aotc_open_options options = stored_options();
            options.allocator = counting_allocator(&counting);
            options.driver_path = "x";
            options.flags = way == 1 || way == 3 ? AOTC_OPEN_COPY : 0;
            const aotc_kernel *kernel = NULL;
            aotc_status status =
                way >= 2
                    ? aotc_open_file(golden_path(name), &options, &archive, &error)
                    : aotc_open_memory(golden.data, golden.size_bytes, &options, &archive, &error);
            if (status == AOTC_OK) { /* a kernel with tensor maps */
                status = aotc_kernel_get(archive, way == 4 ? "add_077" : "tma", &kernel, &error);
                CHECK((kernel != NULL) == (status == AOTC_OK));
            }
            if (status == AOTC_OK) {
                aotc_archive_info info = {.struct_size = sizeof info};
                status = aotc_archive_get_info(archive, &info);
            }
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
        test_info, test_files, test_options, test_out_of_memory, test_without_compression, test_trusted,
        test_unaligned_memory, test_a_large_root_is_verified_in_pieces, test_names_of_one_slot,
        test_wrong_places_of_frames, test_padding_between_frames, test_a_search_meets_damage,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
