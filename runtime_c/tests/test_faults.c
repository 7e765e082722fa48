/* test_faults.c: faults of the machine: no driver, an old one, each entry point failing, no memory,
 * forks, captures, lost contexts, archives that lie about their cubins. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "format.h"
#include "harness.h"
#include "sha256.h"

#define ADDRESS(number) ((void *)(uintptr_t)(number))

static aotc_error error = AOTC_ERROR_INIT;

static aotc_archive *open_golden(const char *name, struct blob_table *blobs) {
    aotc_archive *archive = NULL;
    const aotc_open_options options = fake_options(blobs);
    EXPECT(aotc_open_file(golden_path(name), &options, &archive, &error), AOTC_OK, &error, NULL);
    return archive;
}

static void load_device(const char *name, aotc_status status, const char *text) {
    struct blob_table *blobs = read_blobs(name);
    aotc_archive *archive = open_golden(name, blobs);
    aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
    options.device = 0;
    EXPECT(aotc_load(archive, &options, &error), status, &error, text);
    aotc_release(archive);
    CHECK(fake_cuda_live_libraries() == 0 && fake_cuda_retained_contexts() == 0);
    free_blobs(blobs);
}

/* A launch of `add` on the legacy stream. */
static aotc_status launch_add(const aotc_archive *archive, struct CUstream_st *stream) {
    const aotc_kernel *kernel = NULL;
    const aotc_arg args[] = {aotc_pointer(ADDRESS(0x1000), AOTC_FP32),
                             aotc_pointer(NULL, AOTC_FP32), aotc_pointer(NULL, AOTC_FP32),
                             aotc_i32(4096)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    CHECK(aotc_kernel_get(archive, "add", &kernel, NULL) == AOTC_OK);
    desc.args = args;
    desc.arg_count = 4;
    desc.stream = stream;
    return aotc_launch(kernel, &desc, &error);
}

/* ---- the driver
 * ------------------------------------------------------------------------------------ */

static void test_no_driver(void) {
    struct blob_table *blobs = read_blobs("small.aotc");
    aotc_open_options options = fake_options(blobs);
    aotc_archive *archive = NULL;
    const char *const paths[][2] = {
        {"/nonexistent/libcuda.so.1", "install the NVIDIA driver"},
        {"libm.so.6", "cuDriverGetVersion"},
    };
    for (size_t i = 0; i < 2; ++i) {
        options.driver_path = paths[i][0];
        EXPECT(aotc_open_file(golden_path("small.aotc"), &options, &archive, &error), AOTC_OK,
               &error, NULL);
        EXPECT(aotc_load(archive, NULL, &error), AOTC_ERROR_DRIVER, &error, paths[i][1]);
        CHECK(strcmp(error.file, paths[i][0]) == 0);
        aotc_release(archive);
    }
    free_blobs(blobs);
}

static void test_old_driver(void) {
    static const char *const required[] = {
        "cuInit", "cuLibraryLoadData", "cuLaunchKernelEx", "cuKernelSetAttribute", "cuStreamGetCtx",
    };
    static const char *const optional[] = {"cuFuncLoad", "cuKernelGetParamInfo",
                                           "cuTensorMapEncodeTiled"};
    fake_cuda_reset();
    fake_cuda_set_driver_version(11080);
    load_device("small.aotc", AOTC_ERROR_DRIVER,
                "expected CUDA 12.0 or newer (driver 525), got CUDA 11.8");
    for (size_t i = 0; i < sizeof required / sizeof *required; ++i) {
        fake_cuda_reset();
        fake_cuda_hide(required[i]);
        load_device("small.aotc", AOTC_ERROR_DRIVER, required[i]);
    }
    fake_cuda_reset();
    fake_cuda_set_driver_version(12000);
    for (size_t i = 0; i < sizeof optional / sizeof *optional; ++i) {
        fake_cuda_hide(optional[i]);
    }
    load_device("small.aotc", AOTC_OK, NULL);
    CHECK(fake_cuda_calls("cuFuncGetAttribute") == 8); /* forces loading before 12.4 */
    fake_cuda_reset();
    fake_cuda_set_devices(NULL, 0);
    load_device("small.aotc", AOTC_ERROR_DRIVER, "expected a GPU");
    NO_VIOLATION();
}

/* Errors of the driver, and their statuses. */
static const struct {
    int result;
    aotc_status status;
    const char *remedy;
} results[] = {
    {2, AOTC_ERROR_CUDA, "free GPU memory"},
    {3, AOTC_ERROR_CUDA, "spawn"},
    {100, AOTC_ERROR_DRIVER, "nvidia-smi"},
    {200, AOTC_ERROR_CUDA, "older than the compiler"},
    {201, AOTC_ERROR_STATE, "context"},
    {209, AOTC_ERROR_ARCH, "build the archive for this GPU"},
    {222, AOTC_ERROR_DRIVER, "newer"},
    {400, AOTC_ERROR_ARG, "check the stream"},
    {500, AOTC_ERROR_NOT_FOUND, ""},
    {700, AOTC_ERROR_CUDA, "restart the process"},
    {719, AOTC_ERROR_CUDA, "restart the process"},
    {720, AOTC_ERROR_CUDA, "smaller"},
    {912, AOTC_ERROR_CUDA, "fewer num_ctas"},
    {900, AOTC_ERROR_CAPTURE, "outside"},
    {901, AOTC_ERROR_CAPTURE, "outside"},
    {999, AOTC_ERROR_CUDA, ""},
};

/* Each entry point used in loading or launching fails, at each of its first calls, with several
 * errors. */
static void test_every_call_fails(void) {
    static const char *const symbols[] = {
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent",
        "cuCtxGetDevice",
        "cuCtxGetId",
        "cuDeviceGetAttribute",
        "cuThreadExchangeStreamCaptureMode",
        "cuLibraryLoadData",
        "cuLibraryGetKernel",
        "cuKernelSetAttribute",
        "cuKernelGetFunction",
        "cuFuncLoad",
        "cuStreamGetCtx",
        "cuLaunchKernelEx",
        "cuTensorMapEncodeTiled",
    };
    struct blob_table *blobs = read_blobs("golden.aotc");
    const int64_t shape[2] = {128, 64};
    const int64_t strides[2] = {64, 1};
    const aotc_tensor tensor = {ADDRESS(0x10000), 2, 0, shape, strides};
    const aotc_arg args[2] = {aotc_tensor_arg(&tensor, AOTC_BF16),
                              aotc_pointer(ADDRESS(0x20000), AOTC_BF16)};
    unsigned long failed = 0;
    for (size_t s = 0; s < sizeof symbols / sizeof *symbols; ++s) {
        for (size_t r = 0; r < sizeof results / sizeof *results; ++r) {
            for (int skip = 0; skip < 2; ++skip) {
                const aotc_kernel *kernel = NULL;
                aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
                aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
                fake_cuda_reset();
                aotc_archive *archive = open_golden("golden.aotc", blobs);
                fake_cuda_fail(symbols[s], skip, results[r].result);
                CHECK(aotc_kernel_get(archive, "tma", &kernel, NULL) == AOTC_OK);
                options.device = 0;
                options.kernel = "tma";
                error = (aotc_error)AOTC_ERROR_INIT;
                aotc_status status = aotc_load(archive, &options, &error);
                if (status == AOTC_OK) {
                    struct CUctx_st *context = fake_cuda_create_context(0);
                    fake_cuda_set_current(context);
                    status = aotc_load(archive, NULL, &error);
                    desc.args = args;
                    desc.arg_count = 2;
                    desc.stream = fake_cuda_create_stream(context);
                    for (int i = 0; status == AOTC_OK && i < 2; ++i) {
                        status = aotc_launch(kernel, &desc, &error);
                    }
                }
                if (status != AOTC_OK) {
                    failed += 1;
                    EXPECT(status, results[r].status, &error, results[r].remedy);
                    CHECK(error.cuda == results[r].result);
                }
                aotc_release(archive);
                CHECK(fake_cuda_live_libraries() == 0 && fake_cuda_retained_contexts() == 0);
                NO_VIOLATION();
            }
        }
    }
    /* Two calls of each are made, but cuInit and the like are called once. */
    CHECK(failed >= sizeof symbols / sizeof *symbols * sizeof results / sizeof *results);
    free_blobs(blobs);
}

/* Queries for kernels whose CTAs loop over programs: for each variant in turn. */
static void test_occupancy_fails(void) {
    static const char *const symbols[] = {"cuOccupancyMaxActiveBlocksPerMultiprocessor",
                                          "cuOccupancyMaxActiveClusters"};
    for (size_t s = 0; s < sizeof symbols / sizeof *symbols; ++s) {
        for (size_t r = 0; r < sizeof results / sizeof *results; ++r) {
            for (int skip = 0; skip < 2; ++skip) {
                fake_cuda_reset();
                fake_cuda_fail(symbols[s], skip, results[r].result);
                load_device("looped.aotc", results[r].status, symbols[s]);
                CHECK(error.cuda == results[r].result);
                NO_VIOLATION();
            }
        }
        fake_cuda_reset();
        fake_cuda_hide(symbols[s]);
        load_device("looped.aotc", AOTC_ERROR_DRIVER, symbols[s]);
    }
    NO_VIOLATION();
}

/* ---- archives that lie
 * -------------------------------------------------------------------------------- */

static void test_wrong_cubins(void) {
    fake_cuda_reset();
    load_device("wrong.aotc", AOTC_ERROR_FORMAT,
                "function wrong: expected the parameters that the index lists");
    fake_cuda_reset();
    static const struct fake_device blackwell = {10, 0, 232448};
    fake_cuda_set_devices(&blackwell, 1);
    load_device("hopper.aotc", AOTC_ERROR_ARCH,
                "a GPU for sm_90a, got compute capability 10.0; build the archive for sm_100");
    NO_VIOLATION();
}

/* A damaged blob is detected before the driver sees it; other kernels are not affected. */
static void test_damaged_blob(void) {
    struct blob_table *blobs = read_blobs("small.aotc");
    struct bytes small = read_golden("small.aotc");
    const aotc_open_options options = fake_options(blobs);
    aotc_archive *archive = NULL;
    aotc_load_options load = AOTC_LOAD_OPTIONS_INIT;
    load.device = 0;
    fake_cuda_reset();
    small.data[small.size_bytes - 1] ^= 1;
    EXPECT(aotc_open_memory(small.data, small.size_bytes, &options, &archive, &error), AOTC_OK,
           &error, NULL);
    EXPECT(aotc_load(archive, &load, &error), AOTC_ERROR_CHECKSUM, &error, "frame 7");
    EXPECT(launch_add(archive, NULL), AOTC_ERROR_STATE, &error, NULL);
    aotc_release(archive);
    CHECK(fake_cuda_calls("cuLibraryLoadData") == 7 && fake_cuda_live_libraries() == 0);

    /* No decompressor; one that fails. */
    small.data[small.size_bytes - 1] ^= 1;
    aotc_open_options without = options;
    without.decompress = NULL;
#ifndef AOTC_WITH_ZSTD
    EXPECT(aotc_open_memory(small.data, small.size_bytes, &without, &archive, &error), AOTC_OK,
           &error, NULL);
    EXPECT(aotc_load(archive, &load, &error), AOTC_ERROR_UNSUPPORTED, &error,
           "aotc_open_options.decompress");
    aotc_release(archive);
#endif
    struct blob_table nothing = {{NULL, 0}, 0};
    without = options;
    without.decompress_user = &nothing;
    EXPECT(aotc_open_memory(small.data, small.size_bytes, &without, &archive, &error), AOTC_OK,
           &error, NULL);
    EXPECT(aotc_load(archive, &load, &error), AOTC_ERROR_FORMAT, &error, "cannot be decoded");
    aotc_release(archive);
    free(small.data);
    free_blobs(blobs);
    NO_VIOLATION();
}

/* The variants of a kernel for a target share a frame: it is decoded once, and only if the kernel is
 * loaded; damaged, it fails that kernel alone. */
static void test_shared_frames(void) {
    struct blob_table *blobs = read_blobs("grouped.aotc");
    struct bytes grouped = read_golden("grouped.aotc");
    const aotc_open_options options = fake_options(blobs);
    aotc_archive *archive = NULL;
    aotc_load_options load = AOTC_LOAD_OPTIONS_INIT;
    load.device = 0;
    load.kernel = "add";
    fake_cuda_reset();
    EXPECT(aotc_open_memory(grouped.data, grouped.size_bytes, &options, &archive, &error), AOTC_OK,
           &error, NULL);
    EXPECT(aotc_load(archive, &load, &error), AOTC_OK, &error, NULL);
    CHECK(blobs->calls == 1 && fake_cuda_calls("cuLibraryLoadData") == 8);
    load.kernel = "choose";
    EXPECT(aotc_load(archive, &load, &error), AOTC_OK, &error, NULL);
    CHECK(blobs->calls == 2 && fake_cuda_calls("cuLibraryLoadData") == 17);
    fake_cuda_set_current(fake_cuda_create_context(0));
    EXPECT(aotc_load(archive, NULL, &error), AOTC_OK, &error, NULL);
    EXPECT(launch_add(archive, NULL), AOTC_OK, &error, NULL);
    aotc_release(archive);
    CHECK(fake_cuda_live_libraries() == 0);
    NO_VIOLATION();

    fake_cuda_reset();
    /* The frames of `add`, for sm_80 first, are the first after the five indices. */
    struct header_record header;
    struct directory_entry entries;
    struct entry_record last;
    memcpy(&header, grouped.data, sizeof header);
    const unsigned char *root = grouped.data + header.root_offset;
    memcpy(&entries, root + 8 + 2 * sizeof entries, sizeof entries);
    memcpy(&last, root + entries.offset + 4 * sizeof last, sizeof last);
    grouped.data[last.offset + last.frame.stored_bytes + 20] ^= 1;
    EXPECT(aotc_open_memory(grouped.data, grouped.size_bytes, &options, &archive, &error), AOTC_OK,
           &error, NULL);
    const struct fake_device ampere = {8, 0, 163 << 10};
    fake_cuda_set_devices(&ampere, 1);
    load.kernel = "add";
    EXPECT(aotc_load(archive, &load, &error), AOTC_ERROR_CHECKSUM, &error, "frame 0");
    load.kernel = "shared";
    CHECK(aotc_load(archive, &load, &error) != AOTC_ERROR_CHECKSUM);
    aotc_release(archive);
    free(grouped.data);
    free_blobs(blobs);
    NO_VIOLATION();
}

/* Decodes from the table, then changes a blob's contents. */
struct forger {
    struct blob_table *blobs;
    size_t at;
    unsigned char value;
};

static int forge(void *user, const void *source, size_t source_bytes, void *target,
                 size_t target_bytes) {
    const struct forger *forger = user;
    if (decompress_stored(NULL, source, source_bytes, target, target_bytes) == 0) {
        return 0;
    }
    const int failed =
        decompress_from_table(forger->blobs, source, source_bytes, target, target_bytes);
    ((unsigned char *)target)[forger->at] = forger->value;
    return failed;
}

static void test_forged_cubins(void) {
    static const struct {
        size_t at;
        unsigned char value;
        aotc_status status;
        const char *text;
    } forgeries[] = {
        {0, '/', AOTC_ERROR_FORMAT, "not a cubin"},
        {18, 62, AOTC_ERROR_FORMAT, "not a cubin"},
        {49, 80, AOTC_ERROR_FORMAT, "another architecture"},
        {60, 255, AOTC_ERROR_FORMAT, "outside it"},
        {62, 9, AOTC_ERROR_FORMAT, "without names"},
        /* In the names of sections, stored after the header and a table of four. */
        {64 + 4 * 64 + 11, 'T', AOTC_ERROR_NOT_FOUND, "expected the function add_"},
    };
    struct forger forger = {read_blobs("small.aotc"), 0, 0};
    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; ++i) {
        aotc_open_options options = fake_options(NULL);
        aotc_archive *archive = NULL;
        aotc_load_options load = AOTC_LOAD_OPTIONS_INIT;
        load.device = 0;
        fake_cuda_reset();
        forger.at = forgeries[i].at;
        forger.value = forgeries[i].value;
        options.decompress = forge;
        options.decompress_user = &forger;
        EXPECT(aotc_open_file(golden_path("small.aotc"), &options, &archive, &error), AOTC_OK,
               &error, NULL);
        EXPECT(aotc_load(archive, &load, &error), forgeries[i].status, &error, forgeries[i].text);
        CHECK(fake_cuda_calls("cuLibraryLoadData") == 0);
        aotc_release(archive);
        NO_VIOLATION();
    }
    free_blobs(forger.blobs);
}

/* ---- memory
 * ------------------------------------------------------------------------------------------------
 */

static void out_of_memory_with(const char *name) {
    struct blob_table *blobs = read_blobs(name);
    bool done = false;
    for (long nth = 0; !done; ++nth) {
        struct counting counting = {.fail_at = -1};
        aotc_open_options options = fake_options(blobs);
        aotc_load_options load = AOTC_LOAD_OPTIONS_INIT;
        aotc_archive *archive = NULL;
        fake_cuda_reset();
        options.allocator = counting_allocator(&counting);
        EXPECT(aotc_open_file(golden_path(name), &options, &archive, &error), AOTC_OK, &error,
               NULL);
        counting.fail_at = counting.calls + nth;
        load.device = 0;
        const aotc_status status = aotc_load(archive, &load, &error);
        done = status == AOTC_OK;
        EXPECT(status, done ? AOTC_OK : AOTC_ERROR_NOMEM, &error, NULL);
        counting.fail_at = -1; /* and the rest still works */
        EXPECT(aotc_load(archive, &load, &error), AOTC_OK, &error, NULL);
        /* A launch allocates nothing. */
        fake_cuda_set_current(NULL);
        const long calls = counting.calls;
        CHECK(launch_add(archive, NULL) == AOTC_ERROR_STATE);
        struct CUctx_st *context = fake_cuda_create_context(0);
        fake_cuda_set_current(context);
        CHECK(aotc_load(archive, NULL, &error) == AOTC_OK);
        const long calls_before = counting.calls;
        EXPECT(launch_add(archive, NULL), AOTC_OK, &error, NULL);
        CHECK(calls < calls_before && counting.calls == calls_before);
        aotc_release(archive);
        CHECK(counting.live == 0 && counting.live_bytes == 0);
        CHECK(fake_cuda_live_libraries() == 0 && fake_cuda_retained_contexts() == 0);
        NO_VIOLATION();
    }
    free_blobs(blobs);
}

static void test_out_of_memory(void) {
    out_of_memory_with("golden.aotc");
    out_of_memory_with("grouped.aotc");
}

/* ---- forks, captures, lost contexts
 * --------------------------------------------------------------------------- */

static void test_fork(void) {
    struct blob_table *blobs = read_blobs("small.aotc");
    fake_cuda_reset();
    aotc_archive *archive = open_golden("small.aotc", blobs);
    fake_cuda_set_current(fake_cuda_create_context(0));
    EXPECT(aotc_load(archive, NULL, &error), AOTC_OK, &error, NULL);
    EXPECT(launch_add(archive, NULL), AOTC_OK, &error, NULL);
    const pid_t child = fork();
    if (child == 0) {
        const bool refused = launch_add(archive, NULL) == AOTC_ERROR_FORKED &&
                             aotc_load(archive, NULL, &error) == AOTC_ERROR_FORKED &&
                             strstr(error.message, "exec") != NULL;
        aotc_release(archive); /* does not call the driver */
        _exit(refused && fake_cuda_live_libraries() == 8 && fake_cuda_violation() == NULL ? 0 : 1);
    }
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
          WEXITSTATUS(status) == 0);
    EXPECT(launch_add(archive, NULL), AOTC_OK, &error, NULL);
    aotc_release(archive);
    free_blobs(blobs);
    NO_VIOLATION();
}

static void test_capture(void) {
    struct blob_table *blobs = read_blobs("small.aotc");
    fake_cuda_reset();
    aotc_archive *archive = open_golden("small.aotc", blobs);
    struct CUctx_st *context = fake_cuda_create_context(0);
    struct CUstream_st *stream = fake_cuda_create_stream(context);
    fake_cuda_set_current(context);
    fake_cuda_begin_capture();
    EXPECT(launch_add(archive, stream), AOTC_ERROR_STATE, &error, "outside of any capture");
    CHECK(fake_cuda_end_capture());
    fake_cuda_begin_capture(); /* loading uses the relaxed mode, and leaves others' captures valid */
    EXPECT(aotc_load(archive, NULL, &error), AOTC_OK, &error, NULL);
    CHECK(fake_cuda_end_capture());
    fake_cuda_begin_capture();
    EXPECT(launch_add(archive, stream), AOTC_OK, &error, NULL);
    CHECK(fake_cuda_end_capture());
    CHECK(fake_cuda_calls("cuThreadExchangeStreamCaptureMode") == 2);
    aotc_release(archive);
    free_blobs(blobs);
    NO_VIOLATION();
}

/* Another context at the address of a lost one: loading again loads again. */
static void test_replaced_context(void) {
    struct blob_table *blobs = read_blobs("small.aotc");
    fake_cuda_reset();
    aotc_archive *archive = open_golden("small.aotc", blobs);
    struct CUctx_st *context = fake_cuda_create_context(0);
    fake_cuda_set_current(context);
    for (int i = 0; i < 2; ++i) {
        EXPECT(aotc_load(archive, NULL, &error), AOTC_OK, &error, NULL);
        EXPECT(aotc_load(archive, NULL, &error), AOTC_OK, &error, NULL);
        CHECK(fake_cuda_calls("cuFuncLoad") == 8u * (unsigned)(i + 1));
        EXPECT(launch_add(archive, NULL), AOTC_OK, &error, NULL);
        fake_cuda_replace_context(context);
    }
    CHECK(fake_cuda_calls("cuLibraryLoadData") == 8);
    aotc_release(archive);
    free_blobs(blobs);
    NO_VIOLATION();
}

static void test_lost_context(void) {
    struct blob_table *blobs = read_blobs("small.aotc");
    fake_cuda_reset();
    aotc_archive *archive = open_golden("small.aotc", blobs);
    struct CUctx_st *context = fake_cuda_create_context(0);
    fake_cuda_set_current(context);
    EXPECT(aotc_load(archive, NULL, &error), AOTC_OK, &error, NULL);
    fake_cuda_fail("cuLaunchKernelEx", 0, 700);
    EXPECT(launch_add(archive, NULL), AOTC_ERROR_CUDA, &error, "restart the process");
    CHECK(error.cuda == 700);
    fake_cuda_destroy_context(context);
    for (int i = 0; i < 8; ++i) {
        fake_cuda_fail("cuLibraryUnload", i, 4); /* the driver is being shut down */
    }
    aotc_release(archive);
    free_blobs(blobs);
    NO_VIOLATION();
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        test_no_driver,       test_old_driver,   test_every_call_fails, test_occupancy_fails,
        test_wrong_cubins,    test_damaged_blob, test_forged_cubins,    test_out_of_memory,
        test_shared_frames,
        test_fork,            test_capture,      test_replaced_context, test_lost_context,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
