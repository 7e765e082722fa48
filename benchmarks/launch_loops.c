/* launch_loops.c: launches in a loop, through the library and through the driver alone.
 *
 * launch.py compiles this together with the library's sources. The driver's own call is made with
 * exactly what aotc_launch passed it once: function, dimensions, attributes and the bytes of every
 * parameter, encoded tensor maps included. That is what a perfect caller pays.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "archive.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_ARGS = 32, MAX_PARAMS = 64, PARAM_BYTES = 128 };

/* What the driver was called with. */
struct recorded {
    CUlaunchConfig config;
    CUlaunchAttribute attributes[4];
    CUfunction function;
    void *params[MAX_PARAMS];
    _Alignas(64) unsigned char bytes[MAX_PARAMS][PARAM_BYTES];
};

struct bench {
    const aotc_kernel *kernel;
    aotc_launch_desc desc;
    aotc_arg args[MAX_ARGS];
    aotc_tensor tensors[MAX_ARGS];
    int64_t sizes[MAX_ARGS][2][LIMIT_RANK];
    uint32_t variant;
    struct recorded raw;
};

static char message[2048];
static struct bench *recording;
static CUresult (*real_launch)(const CUlaunchConfig *, CUfunction, void **, void **);

EXPORT const char *bench_message(void) { return message; }

static int failed(aotc_status status, const aotc_error *error) {
    if (status != AOTC_OK) {
        strncpy(message, error->message, sizeof message - 1);
    }
    return status != AOTC_OK;
}

/* Open an archive and load it into the current context; NULL on failure. */
EXPORT aotc_archive *bench_open(const void *data, size_t size_bytes, aotc_decompress_fn decompress,
                                const char *driver_path) {
    aotc_error error = AOTC_ERROR_INIT;
    aotc_open_options options = AOTC_OPEN_OPTIONS_INIT;
    aotc_archive *archive = NULL;
    options.decompress = decompress;
    options.driver_path = driver_path;
    if (failed(aotc_open_memory(data, size_bytes, &options, &archive, &error), &error) ||
        failed(aotc_load(archive, NULL, &error), &error)) {
        return NULL;
    }
    return archive;
}

/* Prepare launches of a kernel; NULL if there is none of that name. */
EXPORT struct bench *bench_new(aotc_archive *archive, const char *name, void *stream) {
    aotc_error error = AOTC_ERROR_INIT;
    struct bench *bench = aligned_alloc(64, (sizeof *bench + 63) / 64 * 64);
    if (bench == NULL) {
        return NULL;
    }
    memset(bench, 0, sizeof *bench);
    bench->desc = (aotc_launch_desc)AOTC_LAUNCH_DESC_INIT;
    bench->desc.args = bench->args;
    bench->desc.stream = stream;
    return failed(aotc_kernel_get(archive, name, &bench->kernel, &error), &error) ? NULL : bench;
}

EXPORT void bench_pointer(struct bench *bench, int dtype, uint64_t address) {
    bench->args[bench->desc.arg_count++] =
        aotc_arg_bits(AOTC_POINTER, (aotc_dtype)dtype, address);
}

EXPORT void bench_integer(struct bench *bench, int dtype, int64_t value) {
    bench->args[bench->desc.arg_count++] = aotc_integer(value, (aotc_dtype)dtype);
}

EXPORT void bench_tensor(struct bench *bench, int dtype, uint64_t address, uint32_t rank,
                         const int64_t *shape, const int64_t *strides) {
    const uint32_t index = bench->desc.arg_count++;
    memcpy(bench->sizes[index][0], shape, rank * sizeof *shape);
    memcpy(bench->sizes[index][1], strides, rank * sizeof *strides);
    bench->tensors[index] = (aotc_tensor){(void *)(uintptr_t)address, rank, 0,
                                          bench->sizes[index][0], bench->sizes[index][1]};
    bench->args[index] = aotc_tensor_arg(&bench->tensors[index], (aotc_dtype)dtype);
}

static CUresult record(const CUlaunchConfig *config, CUfunction function, void **params,
                       void **extra) {
    struct recorded *raw = &recording->raw;
    const struct aotc_archive *archive = recording->kernel->archive;
    const struct variant_record *variant =
        aotci_variant(archive, recording->kernel->record->first_variant + recording->variant);
    raw->config = *config;
    raw->function = function;
    if (config->attribute_count != 0) {
        memcpy(raw->attributes, config->attributes,
               config->attribute_count * sizeof *config->attributes);
    }
    raw->config.attributes = raw->attributes;
    for (uint32_t i = 0; i < variant->cubin_param_count; ++i) {
        memcpy(raw->bytes[i], params[i],
               aotci_cubin_param(archive, variant->first_cubin_param + i)->size);
        raw->params[i] = raw->bytes[i];
    }
    return real_launch(config, function, params, extra);
}

/* Launch once and keep what the driver was called with; 0 on success. */
EXPORT int bench_record(struct bench *bench) {
    aotc_error error = AOTC_ERROR_INIT;
    aotc_selection selection = {.struct_size = sizeof selection};
    struct aotci_driver *driver =
        &((struct aotc_archive *)(uintptr_t)bench->kernel->archive)->driver;
    if (failed(aotc_select(bench->kernel, &bench->desc, &selection, &error), &error)) {
        return 1;
    }
    bench->variant = selection.variant;
    recording = bench;
    real_launch = driver->launch;
    driver->launch = record;
    const int result = failed(aotc_launch(bench->kernel, &bench->desc, &error), &error);
    driver->launch = real_launch;
    return result;
}

/* Number of tensor maps of the variant that was launched. */
EXPORT uint32_t bench_map_count(const struct bench *bench) {
    return aotci_variant(bench->kernel->archive,
                         bench->kernel->record->first_variant + bench->variant)
        ->tensor_map_count;
}

static double now_ns(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Nanoseconds of each of `count` launches through the library; negative on failure. */
EXPORT double bench_aotc(const struct bench *bench, int count) {
    aotc_error error = AOTC_ERROR_INIT;
    const double start = now_ns();
    for (int i = 0; i < count; ++i) {
        if (failed(aotc_launch(bench->kernel, &bench->desc, &error), &error)) {
            return -1;
        }
    }
    return (now_ns() - start) / count;
}

/* Nanoseconds of each of `count` calls of the driver with what was recorded; negative on failure.
 */
EXPORT double bench_raw(struct bench *bench, int count) {
    const struct aotci_driver *driver = &bench->kernel->archive->driver;
    struct recorded *raw = &bench->raw;
    const double start = now_ns();
    for (int i = 0; i < count; ++i) {
        if (driver->launch(&raw->config, raw->function, raw->params, NULL) != CUDA_SUCCESS) {
            return -1;
        }
    }
    return (now_ns() - start) / count;
}
