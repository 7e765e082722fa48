#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"

const char *driver_path;
static const char *directory;
static int failures;

void check(bool holds, const char *file, int line, const char *text) {
    if (!holds) {
        failures += 1;
        (void)fprintf(stderr, "%s:%d: %s\n", file, line, text);
    }
}

void expect(aotc_status got, aotc_status wanted, const aotc_error *error, const char *text,
            const char *file, int line, const char *call) {
    if (got != wanted) {
        failures += 1;
        (void)fprintf(stderr, "%s:%d: %s: %s, expected %s: %s\n", file, line, call,
                      aotc_status_name(got), aotc_status_name(wanted),
                      error == NULL ? "" : error->message);
    } else if (error != NULL && text != NULL && strstr(error->message, text) == NULL) {
        failures += 1;
        (void)fprintf(stderr, "%s:%d: %s: \"%s\" without \"%s\"\n", file, line, call,
                      error->message, text);
    }
}

const char *golden_path(const char *name) {
    static char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

struct bytes read_golden(const char *name) {
    struct bytes bytes = {NULL, 0};
    FILE *file = fopen(golden_path(name), "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        (void)fprintf(stderr, "cannot read %s\n", golden_path(name));
        exit(2);
    }
    bytes.size_bytes = (size_t)ftell(file);
    bytes.data = malloc(bytes.size_bytes + 1);
    rewind(file);
    if (bytes.data == NULL || fread(bytes.data, 1, bytes.size_bytes, file) != bytes.size_bytes) {
        exit(2);
    }
    (void)fclose(file);
    return bytes;
}

struct blob_table *read_blobs(const char *archive_name) {
    char name[256];
    (void)snprintf(name, sizeof name, "%s.raw", archive_name);
    struct blob_table *table = malloc(sizeof *table);
    if (table == NULL) {
        exit(2);
    }
    *table = (struct blob_table){read_golden(name), 0};
    return table;
}

void free_blobs(struct blob_table *table) {
    free(table->file.data);
    free(table);
}

int decompress_stored(void *user, const void *source, size_t source_bytes, void *target,
                      size_t target_bytes) {
    static const unsigned char head[] = {0x28, 0xB5, 0x2F, 0xFD, 0xA0};
    const unsigned char *frame = source;
    (void)user;
    if (source_bytes != target_bytes + 12 || memcmp(frame, head, sizeof head) != 0 ||
        (frame[9] & 7) != 1) {
        return 1;
    }
    memcpy(target, frame + 12, target_bytes);
    return 0;
}

int decompress_from_table(void *user, const void *source, size_t source_bytes, void *target,
                          size_t target_bytes) {
    struct blob_table *table = user;
    const unsigned char *at = table->file.data;
    const unsigned char *end = at + table->file.size_bytes;
    if (decompress_stored(NULL, source, source_bytes, target, target_bytes) == 0) {
        return 0;
    }
    table->calls += 1;
    while (at < end) {
        uint64_t sizes[2];
        memcpy(sizes, at, sizeof sizes);
        at += sizeof sizes;
        if (sizes[0] == source_bytes && memcmp(at, source, source_bytes) == 0 &&
            sizes[1] == target_bytes) {
            memcpy(target, at + sizes[0], target_bytes);
            return 0;
        }
        at += sizes[0] + sizes[1];
    }
    return 1;
}

static void *count_allocate(void *user, size_t size_bytes) {
    struct counting *counting = user;
    if (counting->calls++ == counting->fail_at) {
        return NULL;
    }
    counting->live += 1;
    counting->live_bytes += (long)size_bytes;
    if (counting->live_bytes > counting->peak_bytes) {
        counting->peak_bytes = counting->live_bytes;
    }
    void *memory = malloc(size_bytes);
    if (memory != NULL) {
        memset(memory, 0xA5, size_bytes);
    }
    return memory;
}

static void count_deallocate(void *user, void *memory, size_t size_bytes) {
    struct counting *counting = user;
    counting->live -= 1;
    counting->live_bytes -= (long)size_bytes;
    free(memory);
}

aotc_allocator counting_allocator(struct counting *counting) {
    return (aotc_allocator){count_allocate, count_deallocate, counting};
}

void no_violation(const char *file, int line) {
    const char *violation = fake_cuda_violation();
    check(violation == NULL, file, line, violation == NULL ? "" : violation);
}

aotc_open_options stored_options(void) {
    aotc_open_options options = AOTC_OPEN_OPTIONS_INIT;
    options.decompress = decompress_stored;
    return options;
}

aotc_open_options fake_options(struct blob_table *table) {
    aotc_open_options options = AOTC_OPEN_OPTIONS_INIT;
    options.decompress = decompress_from_table;
    options.decompress_user = table;
    options.driver_path = driver_path;
    return options;
}

aotc_status open_bytes(const unsigned char *data, size_t size_bytes, uint32_t flags,
                       aotc_error *error) {
    aotc_archive *archive = NULL;
    aotc_open_options options = stored_options();
    options.flags = flags;
    aotc_status status = aotc_open_memory(data, size_bytes, &options, &archive, error);
    CHECK((archive != NULL) == (status == AOTC_OK));
    if (status == AOTC_OK) { /* looking for a missing kernel checks the whole root */
        const aotc_kernel *none = NULL;
        status = aotc_kernel_get(archive, "?", &none, error);
        status = status == AOTC_ERROR_NOT_FOUND ? AOTC_OK : status;
    }
    const char *name = NULL;
    for (uint32_t i = 0; status == AOTC_OK && archive != NULL &&
                         aotc_archive_get_kernel_name(archive, i, &name) == AOTC_OK;
         ++i) {
        const aotc_kernel *kernel = NULL;
        status = aotc_kernel_get(archive, name, &kernel, error);
        CHECK((kernel != NULL) == (status == AOTC_OK));
    }
    aotc_release(archive);
    return status;
}

void read_kernels(const aotc_archive *archive, uint32_t count) {
    for (uint32_t i = 0; i <= count; ++i) {
        const aotc_kernel *kernel = NULL;
        CHECK((aotc_kernel_get_at(archive, i, &kernel) == AOTC_OK) == (i < count));
        read_kernel(kernel);
    }
}

void read_kernel(const aotc_kernel *kernel) {
    aotc_kernel_info info = {.struct_size = sizeof info};
    aotc_value value;
    uint32_t size = 0;
    if (kernel == NULL) {
        return;
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

int run_tests(int argc, char **argv, void (*const *tests)(void), size_t count) {
    if (argc != 3) {
        (void)fprintf(stderr, "usage: %s ARCHIVES FAKE_LIBCUDA\n", argv[0]);
        return 2;
    }
    directory = argv[1];
    driver_path = argv[2];
    for (size_t i = 0; i < count; ++i) {
        tests[i]();
    }
    return failures == 0 ? 0 : 1;
}
