/* test_unload.c: unload an archive from a device, and load it again; cached plans for one device
 * are never used on another. */
#include "fixture.h"

static const struct fake_device ampere = {8, 0, 166912};
static const struct fake_device hopper = {9, 0, 232448};

enum { MOST_DEVICES = 4 };

/* An archive on the primary contexts of several devices, each with a stream. */
struct set {
    struct fixture fixture;
    int count;
    struct CUstream_st *streams[MOST_DEVICES];
};

static aotc_status load_on(struct set *set, int32_t device) {
    aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
    options.device = device;
    return aotc_load(set->fixture.archive, &options, &set->fixture.error);
}

static struct set load_set(const struct fake_device *devices, int count) {
    fake_cuda_reset();
    fake_cuda_set_devices(devices, count);
    struct set set = {.fixture = set_up("golden.aotc"), .count = count};
    for (int i = 0; i < count; ++i) {
        EXPECT(load_on(&set, i), AOTC_OK, &set.fixture.error, NULL);
        set.streams[i] = fake_cuda_create_stream(fake_cuda_primary_context(i));
    }
    return set;
}

/* Launch `add` on a device. */
static aotc_status add_on(struct set *set, int device, int32_t n, struct fake_launch *launch) {
    struct add add;
    add_call(&add, &set->fixture, AOTC_FP32, n);
    add.desc.stream = set->streams[device];
    const aotc_status status =
        aotc_launch(kernel_of(&set->fixture, "add"), &add.desc, &set->fixture.error);
    if (status == AOTC_OK) {
        fake_cuda_last_launch(launch);
    }
    return status;
}

/* Launch `tma` on a device, for a matrix of `rows` at an address. */
static aotc_status tma_on(struct set *set, int device, int64_t rows, uintptr_t address,
                          struct fake_launch *launch) {
    const int64_t shape[2] = {rows, 128};
    const int64_t strides[2] = {128, 1};
    const aotc_tensor tensor = {ADDRESS(address), 2, 0, shape, strides};
    const aotc_arg args[2] = {aotc_tensor_arg(&tensor, AOTC_BF16),
                              aotc_pointer(ADDRESS(address + 0x8000), AOTC_BF16)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    desc.args = args;
    desc.arg_count = 2;
    desc.stream = set->streams[device];
    const aotc_status status =
        aotc_launch(kernel_of(&set->fixture, "tma"), &desc, &set->fixture.error);
    if (status == AOTC_OK) {
        fake_cuda_last_launch(launch);
    }
    return status;
}

/* The same arguments again and again, on each device in turn: each launches its own variant, in its
 * own context. */
static void test_nothing_is_mixed(void) {
    const struct fake_device kinds[MOST_DEVICES] = {ampere, hopper, ampere, hopper};
    for (int count = 2; count <= MOST_DEVICES; count += 2) {
        struct set set = load_set(kinds, count);
        for (int round = 0; round < 3; ++round) {
            for (int i = 0; i < count; ++i) {
                struct fake_launch launch = {.device = -1};
                EXPECT(add_on(&set, i, 1000, &launch), AOTC_OK, &set.fixture.error, NULL);
                CHECK(launch.device == i && launch.stream == set.streams[i]);
                CHECK(launch.context == fake_cuda_primary_context(i));
                CHECK(launch.arch == 10 * kinds[i].major + kinds[i].minor);
            }
        }
        tear_down(&set.fixture);
    }
}

/* Tensors of four devices, in turn and twice: a launch has the map of its own tensor. */
static void test_tensor_maps(void) {
    const struct fake_device kinds[MOST_DEVICES] = {hopper, hopper, hopper, hopper};
    struct set set = load_set(kinds, MOST_DEVICES);
    for (int round = 0; round < 2; ++round) {
        for (int i = 0; i < MOST_DEVICES; ++i) {
            const uintptr_t address = 0x100000 * (uintptr_t)(i + 1);
            struct fake_launch launch = {.device = -1};
            EXPECT(tma_on(&set, i, 300 + i, address, &launch), AOTC_OK, &set.fixture.error, NULL);
            CHECK(launch.device == i && read_u64(launch.params) == address);
            CHECK(read_u64(launch.params + 24) == (uint64_t)(300 + i));
            CHECK(read_u64(launch.params + 128) == address + 0x8000);
        }
        CHECK(fake_cuda_calls("cuTensorMapEncodeTiled") == MOST_DEVICES);
    }
    /* Without its device, a tensor's map is encoded at most once more after reloading. */
    EXPECT(aotc_unload(set.fixture.archive, 2, &set.fixture.error), AOTC_OK, &set.fixture.error,
           NULL);
    EXPECT(load_on(&set, 2), AOTC_OK, &set.fixture.error, NULL);
    struct fake_launch launch = {.device = -1};
    EXPECT(tma_on(&set, 2, 305, 0x300000, &launch), AOTC_OK, &set.fixture.error, NULL);
    CHECK(launch.device == 2 && read_u64(launch.params + 24) == 305);
    tear_down(&set.fixture);
}

static void test_unload(void) {
    const struct fake_device kinds[] = {hopper, hopper};
    struct set set = load_set(kinds, 2);
    aotc_archive *archive = set.fixture.archive;
    aotc_error *error = &set.fixture.error;
    struct fake_launch launch;
    const int libraries = fake_cuda_live_libraries();
    for (int round = 0; round < 20; ++round) {
        EXPECT(add_on(&set, 1, 7, &launch), AOTC_OK, error, NULL);
        EXPECT(aotc_unload(archive, 1, error), AOTC_OK, error, NULL);
        CHECK(fake_cuda_retained_contexts() == 1); /* device 0 */
        CHECK(fake_cuda_live_libraries() == libraries); /* device 0 launches them all */
        EXPECT(aotc_unload(archive, 1, error), AOTC_OK, error, NULL); /* nothing is there */
        CHECK(fake_cuda_retained_contexts() == 1);
        EXPECT(add_on(&set, 1, 7, &launch), AOTC_ERROR_ARG, error,
               "stream: expected a stream of a context with the kernel loaded");
        EXPECT(add_on(&set, 0, 7, &launch), AOTC_OK, error, NULL);
        CHECK(launch.device == 0);
        EXPECT(load_on(&set, 1), AOTC_OK, error, NULL);
        EXPECT(add_on(&set, 1, 7, &launch), AOTC_OK, error, NULL);
        CHECK(launch.device == 1 && launch.context == fake_cuda_primary_context(1));
    }
    /* The last device takes the code with it, and it is loaded again. */
    EXPECT(aotc_unload(archive, 0, error), AOTC_OK, error, NULL);
    EXPECT(aotc_unload(archive, 1, error), AOTC_OK, error, NULL);
    CHECK(fake_cuda_live_libraries() == 0 && fake_cuda_retained_contexts() == 0);
    EXPECT(add_on(&set, 0, 7, &launch), AOTC_ERROR_STATE, error, "aotc_load");
    EXPECT(load_on(&set, 0), AOTC_OK, error, NULL);
    EXPECT(add_on(&set, 0, 7, &launch), AOTC_OK, error, NULL);
    CHECK(launch.device == 0 && fake_cuda_live_libraries() == libraries);
    tear_down(&set.fixture);
}

/* A device of another target has code of its own, which goes with it. */
static void test_code_that_one_device_launches(void) {
    const struct fake_device kinds[] = {ampere, hopper};
    struct set set = load_set(kinds, 2);
    const int all = fake_cuda_live_libraries();
    struct fake_launch launch;
    EXPECT(aotc_unload(set.fixture.archive, 1, &set.fixture.error), AOTC_OK, &set.fixture.error,
           NULL);
    CHECK(fake_cuda_live_libraries() < all && fake_cuda_live_libraries() > 0);
    EXPECT(add_on(&set, 0, 7, &launch), AOTC_OK, &set.fixture.error, NULL);
    EXPECT(load_on(&set, 1), AOTC_OK, &set.fixture.error, NULL);
    CHECK(fake_cuda_live_libraries() == all);
    EXPECT(add_on(&set, 1, 7, &launch), AOTC_OK, &set.fixture.error, NULL);
    tear_down(&set.fixture);
}

/* Contexts of the caller's own, and ones at the address of an earlier one. */
static void test_contexts(void) {
    struct fixture fixture = load("golden.aotc");
    struct add add;
    add_call(&add, &fixture, AOTC_FP32, 7);
    const aotc_kernel *kernel = kernel_of(&fixture, "add");
    for (int round = 0; round < 3; ++round) {
        EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
        fake_cuda_replace_context(fixture.context);
        EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_OK, &fixture.error, NULL);
        fake_cuda_begin_capture(); /* its code is in the new context, too */
        EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
        CHECK(fake_cuda_end_capture() == 1);
        EXPECT(aotc_unload(fixture.archive, AOTC_CURRENT_CONTEXT, &fixture.error), AOTC_OK,
               &fixture.error, NULL);
        CHECK(fake_cuda_live_libraries() == 0);
        EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_STATE, &fixture.error,
               "aotc_load");
        EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_OK, &fixture.error, NULL);
    }
    tear_down(&fixture);
}

static void test_wrong_calls(void) {
    fake_cuda_reset();
    struct fixture fixture = set_up("golden.aotc");
    EXPECT(aotc_unload(NULL, 0, &fixture.error), AOTC_ERROR_ARG, &fixture.error, "aotc_unload");
    EXPECT(aotc_unload(fixture.archive, 7, &fixture.error), AOTC_OK, &fixture.error,
           NULL); /* never loaded: there is no driver to ask */
    EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_OK, &fixture.error, NULL);
    EXPECT(aotc_unload(fixture.archive, 1, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "0 to 0");
    EXPECT(aotc_unload(fixture.archive, -2, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "got -2");
    fake_cuda_set_current(NULL);
    EXPECT(aotc_unload(fixture.archive, AOTC_CURRENT_CONTEXT, &fixture.error), AOTC_ERROR_STATE,
           &fixture.error, "a current CUDA context");
    fake_cuda_set_current(fixture.context);
    fake_cuda_fail("cuThreadExchangeStreamCaptureMode", 0, 999);
    EXPECT(aotc_unload(fixture.archive, AOTC_CURRENT_CONTEXT, &fixture.error), AOTC_ERROR_CUDA,
           &fixture.error, "cuThreadExchangeStreamCaptureMode");
    struct add add;
    struct fake_launch launch;
    add_call(&add, &fixture, AOTC_FP32, 7); /* and everything works as before */
    EXPECT(aotc_launch(kernel_of(&fixture, "add"), &add.desc, &fixture.error), AOTC_OK,
           &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(launch.context == fixture.context);
    tear_down(&fixture);
}

/* A stream under capture at the time stays valid. */
static void test_capture(void) {
    const struct fake_device kinds[] = {hopper, hopper};
    struct set set = load_set(kinds, 2);
    struct fake_launch launch;
    fake_cuda_begin_capture();
    EXPECT(aotc_unload(set.fixture.archive, 1, &set.fixture.error), AOTC_OK, &set.fixture.error,
           NULL);
    EXPECT(add_on(&set, 0, 7, &launch), AOTC_OK, &set.fixture.error, NULL);
    tear_down(&set.fixture); /* releasing invalidates nothing either */
    CHECK(fake_cuda_end_capture() == 1);
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        test_nothing_is_mixed, test_tensor_maps, test_unload,  test_code_that_one_device_launches,
        test_contexts,         test_wrong_calls, test_capture,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
