/* test_lazy.c: code loaded by its first launch. */
#include "fixture.h"

static const struct fake_device hopper = {9, 0, 232448};

static aotc_status load_lazily(struct fixture *fixture, int32_t device, const char *kernel) {
    aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
    options.device = device;
    options.kernel = kernel;
    options.flags = AOTC_LOAD_LAZY;
    return aotc_load(fixture->archive, &options, &fixture->error);
}

static struct fixture begin(int device_count) {
    const struct fake_device devices[2] = {hopper, hopper};
    fake_cuda_reset();
    fake_cuda_set_devices(devices, device_count);
    struct fixture fixture = set_up("grouped.aotc");
    fixture.stream = fake_cuda_create_stream(fake_cuda_primary_context(0));
    for (int i = 0; i < device_count; ++i) {
        EXPECT(load_lazily(&fixture, i, "add"), AOTC_OK, &fixture.error, NULL);
    }
    return fixture;
}

static aotc_status add_on(struct fixture *fixture, struct CUstream_st *stream, aotc_dtype dtype) {
    struct add add;
    add_call(&add, fixture, dtype, 1000);
    add.desc.stream = stream;
    return aotc_launch(kernel_of(fixture, "add"), &add.desc, &fixture->error);
}

/* Load the rest of `add`, as without the flag. */
static void load_rest(struct fixture *fixture) {
    aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
    options.device = 0;
    options.kernel = "add";
    EXPECT(aotc_load(fixture->archive, &options, &fixture->error), AOTC_OK, &fixture->error, NULL);
}

static void test_a_launch_loads_its_variant_alone(void) {
    struct fixture fixture = begin(1);
    CHECK(fake_cuda_calls("cuModuleLoadData") == 0 && fixture.blobs->calls == 0);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_calls("cuModuleLoadData") == 1 && fixture.blobs->calls == 1);
    /* The other variant is in the frame that is still decoded. */
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP16), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_calls("cuModuleLoadData") == 2 && fixture.blobs->calls == 1);
    CHECK(fake_cuda_calls("cuLibraryLoadData") == 0 && fake_cuda_live_libraries() == 2);
    tear_down(&fixture);
}

static void test_a_load_without_the_flag_loads_what_is_left(void) {
    struct fixture fixture = begin(1);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    load_rest(&fixture);
    const unsigned long loaded = fake_cuda_calls("cuLibraryLoadData");
    CHECK(loaded > 1 && fake_cuda_calls("cuModuleLoadData") == 1);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP16), AOTC_OK, &fixture.error, NULL);
    EXPECT(load_lazily(&fixture, 0, "add"), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_calls("cuLibraryLoadData") == loaded);
    tear_down(&fixture);
}

/* A library already loaded for another context is reused, not loaded anew. */
static void test_a_launch_takes_the_library_that_is_there(void) {
    struct fixture fixture = begin(2);
    struct CUstream_st *other = fake_cuda_create_stream(fake_cuda_primary_context(1));
    load_rest(&fixture);
    const unsigned long loaded = fake_cuda_calls("cuLibraryLoadData");
    EXPECT(add_on(&fixture, other, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_calls("cuLibraryLoadData") == loaded);
    CHECK(fake_cuda_calls("cuModuleLoadData") == 0);
    /* Code in use stays when the device that loaded it is unloaded. */
    EXPECT(aotc_unload(fixture.archive, 0, &fixture.error), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_live_libraries() == 1);
    EXPECT(add_on(&fixture, other, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    tear_down(&fixture);
}

/* Each context has modules of its own, which go with it. */
static void test_a_module_goes_with_its_context(void) {
    struct fixture fixture = begin(2);
    struct CUstream_st *other = fake_cuda_create_stream(fake_cuda_primary_context(1));
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    EXPECT(add_on(&fixture, other, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_calls("cuModuleLoadData") == 2 && fake_cuda_live_libraries() == 2);
    /* A destroyed context took its modules along: no call is made for them. */
    fake_cuda_destroy_context(fake_cuda_primary_context(1));
    CHECK(fake_cuda_live_libraries() == 1);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    tear_down(&fixture);
    CHECK(fake_cuda_calls("cuModuleUnload") == 1 && fake_cuda_live_libraries() == 0);

    /* Another context at its address has none of them either. */
    fixture = begin(1);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    fake_cuda_replace_context(fake_cuda_primary_context(0));
    EXPECT(load_lazily(&fixture, 0, "add"), AOTC_OK, &fixture.error, NULL);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_calls("cuModuleLoadData") == 2);
    tear_down(&fixture);
    CHECK(fake_cuda_calls("cuModuleUnload") == 1 && fake_cuda_live_libraries() == 0);
}

/* An archive loaded lazily in the current context, without a reference. */
static struct fixture begin_current(int device_count) {
    const struct fake_device devices[2] = {hopper, hopper};
    fake_cuda_reset();
    fake_cuda_set_devices(devices, device_count);
    struct fixture fixture = set_up("grouped.aotc");
    EXPECT(load_lazily(&fixture, AOTC_CURRENT_CONTEXT, "add"), AOTC_OK, &fixture.error, NULL);
    return fixture;
}

/* A context at the address of an earlier one, with launches there or without. */
static void test_a_context_is_replaced(void) {
    for (int launched = 0; launched < 2; ++launched) {
        struct fixture fixture = begin_current(1);
        if (launched) {
            EXPECT(add_on(&fixture, NULL, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
        }
        fake_cuda_replace_context(fixture.context);
        EXPECT(load_lazily(&fixture, AOTC_CURRENT_CONTEXT, "add"), AOTC_OK, &fixture.error, NULL);
        EXPECT(add_on(&fixture, NULL, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
        CHECK(fake_cuda_calls("cuModuleLoadData") == (launched ? 2u : 1u));
        EXPECT(add_on(&fixture, NULL, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
        tear_down(&fixture);
        CHECK(fake_cuda_calls("cuModuleUnload") == 1);
    }
}

/* Another device's context may lie there, too. */
static void test_a_context_is_replaced_by_one_of_another_device(void) {
    struct fixture fixture = begin_current(2);
    fake_cuda_move_context(fixture.context, 1);
    EXPECT(load_lazily(&fixture, AOTC_CURRENT_CONTEXT, "add"), AOTC_OK, &fixture.error, NULL);
    EXPECT(add_on(&fixture, NULL, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    EXPECT(aotc_unload(fixture.archive, AOTC_CURRENT_CONTEXT, &fixture.error), AOTC_OK,
           &fixture.error, NULL);
    CHECK(fake_cuda_live_libraries() == 0 && fake_cuda_calls("cuModuleUnload") == 1);
    CHECK(fake_cuda_calls("cuDeviceGetAttribute") == 4); /* two of each device */
    tear_down(&fixture);
}

/* A destroyed context that is still current cannot be loaded in. */
static void test_a_context_that_is_gone_is_refused(void) {
    fake_cuda_reset();
    struct fixture fixture = set_up("grouped.aotc");
    fake_cuda_destroy_context(fixture.context);
    EXPECT(load_lazily(&fixture, AOTC_CURRENT_CONTEXT, "add"), AOTC_ERROR_STATE, &fixture.error,
           "make a context current");
    tear_down(&fixture);
}

/* The context of a stream is found before and after its query was looked up. */
static void test_streams_of_two_contexts(void) {
    struct fixture fixture = begin(2);
    struct CUstream_st *other = fake_cuda_create_stream(fake_cuda_primary_context(1));
    struct fake_launch launch;
    for (int round = 0; round < 3; ++round) {
        for (int device = 0; device < 2; ++device) {
            EXPECT(add_on(&fixture, device == 0 ? fixture.stream : other, AOTC_FP32), AOTC_OK,
                   &fixture.error, NULL);
            fake_cuda_last_launch(&launch);
            CHECK(launch.context == fake_cuda_primary_context(device));
        }
    }
    tear_down(&fixture);
}

static void test_contexts_load_and_unload_by_themselves(void) {
    struct fixture fixture = begin(2);
    struct CUstream_st *other = fake_cuda_create_stream(fake_cuda_primary_context(1));
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    EXPECT(aotc_unload(fixture.archive, 0, &fixture.error), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_live_libraries() == 0);
    EXPECT(add_on(&fixture, other, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_live_libraries() == 1);
    EXPECT(load_lazily(&fixture, 0, "add"), AOTC_OK, &fixture.error, NULL);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_live_libraries() == 2);
    EXPECT(aotc_unload(fixture.archive, 1, &fixture.error), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_live_libraries() == 1);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    tear_down(&fixture);
}

/* The driver puts the code into the context at the launch, but not in a capture. */
static void test_code_is_loaded_before_a_captured_launch_alone(void) {
    struct fixture fixture = begin(1);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_calls("cuFuncLoad") == 0 && fake_cuda_calls("cuModuleLoadData") == 1);
    fake_cuda_begin_capture();
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP16), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_end_capture());
    CHECK(fake_cuda_calls("cuFuncLoad") == 1 && fake_cuda_calls("cuLibraryLoadData") == 1);
    /* If the driver cannot tell whether a stream is captured, it counts as captured. */
    EXPECT(aotc_unload(fixture.archive, 0, &fixture.error), AOTC_OK, &fixture.error, NULL);
    EXPECT(load_lazily(&fixture, 0, "add"), AOTC_OK, &fixture.error, NULL);
    fake_cuda_fail("cuStreamIsCapturing", 0, 1);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_calls("cuFuncLoad") == 2);
    tear_down(&fixture);
}

/* A launch refused by the driver leaves the variant to the next one. */
static void test_a_first_launch_that_fails_is_first_again(void) {
    struct fixture fixture = begin(2);
    fake_cuda_fail("cuLaunchKernelEx", 0, 2);
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_ERROR_CUDA, &fixture.error,
           "cuLaunchKernelEx");
    /* Its module belongs to its context: unloading another one keeps it. */
    EXPECT(aotc_unload(fixture.archive, 1, &fixture.error), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_live_libraries() == 1);
    fake_cuda_begin_capture();
    EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_end_capture());
    CHECK(fake_cuda_calls("cuFuncLoad") == 1 && fake_cuda_calls("cuModuleLoadData") == 1);
    CHECK(fake_cuda_calls("cuLibraryLoadData") == 0);
    tear_down(&fixture);
}

/* Each call of the driver on the way fails once; the launch after it succeeds. */
static void test_a_launch_that_cannot_load_is_tried_again(void) {
    static const char *const calls[] = {
        "cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode", "cuModuleLoadData",
        "cuModuleGetFunction"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
        struct fixture fixture = begin(1);
        fake_cuda_fail(calls[i], 0, 2);
        EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_ERROR_CUDA, &fixture.error,
               calls[i]);
        fake_cuda_fail(calls[i], 0, 0);
        CHECK(fake_cuda_live_libraries() == 0);
        EXPECT(add_on(&fixture, fixture.stream, AOTC_FP32), AOTC_OK, &fixture.error, NULL);
        tear_down(&fixture);
    }
}

static aotc_status launch_one(struct fixture *fixture, const char *name) {
    struct add add;
    add_call(&add, fixture, AOTC_FP32, 1000);
    add.desc.stream = fixture->stream;
    return aotc_launch(kernel_of(fixture, name), &add.desc, &fixture->error);
}

/* In an archive of many kernels only loaded ones have tables. */
static void test_a_few_of_many_kernels(void) {
    static const char *const names[] = {"add_000", "add_063", "add_064", "add_129"};
    fake_cuda_reset();
    struct fixture fixture = set_up("many.aotc");
    for (int round = 0; round < 2; ++round) {
        for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
            EXPECT(load_lazily(&fixture, 0, names[i]), AOTC_OK, &fixture.error, NULL);
            fixture.stream = fake_cuda_create_stream(fake_cuda_primary_context(0));
            EXPECT(launch_one(&fixture, names[i]), AOTC_OK, &fixture.error, NULL);
            EXPECT(launch_one(&fixture, "add_062"), AOTC_ERROR_STATE, &fixture.error, "aotc_load");
            EXPECT(launch_one(&fixture, "add_128"), AOTC_ERROR_STATE, &fixture.error, "aotc_load");
        }
        CHECK(fake_cuda_live_libraries() == (int)(sizeof names / sizeof *names));
        EXPECT(aotc_unload(fixture.archive, 0, &fixture.error), AOTC_OK, &fixture.error, NULL);
        CHECK(fake_cuda_live_libraries() == 0);
    }
    tear_down(&fixture);
}

/* Maps are encoded on request, though no loaded kernel has any. */
static void test_a_map_is_encoded(void) {
    struct fixture fixture = begin(1);
    const int64_t shape[2] = {300, 128};
    const int64_t strides[2] = {128, 1};
    const uint32_t block[2] = {64, 64};
    const aotc_tensor tensor = {ADDRESS(0x10000), 2, 0, shape, strides};
    aotc_tensor_map map;
    EXPECT(aotc_tensor_map_encode(fixture.archive, &tensor, AOTC_BF16, block, &map, &fixture.error),
           AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_calls("cuTensorMapEncodeTiled") == 1);
    tear_down(&fixture);
    fake_cuda_reset();
    fake_cuda_hide("cuTensorMapEncodeTiled");
    fixture = set_up("grouped.aotc");
    EXPECT(load_lazily(&fixture, 0, "add"), AOTC_OK, &fixture.error, NULL);
    EXPECT(aotc_tensor_map_encode(fixture.archive, &tensor, AOTC_BF16, block, &map, &fixture.error),
           AOTC_ERROR_UNSUPPORTED, &fixture.error, NULL);
    tear_down(&fixture);
}

static void test_flags_are_checked(void) {
    struct fixture fixture = begin(1);
    aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
    options.flags = 2;
    EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "known flags");
    options.flags = 0;
    options.reserved = 1;
    EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "known flags");
    tear_down(&fixture);
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        test_a_launch_loads_its_variant_alone,
        test_a_load_without_the_flag_loads_what_is_left,
        test_a_launch_takes_the_library_that_is_there,
        test_a_module_goes_with_its_context,
        test_a_context_is_replaced,
        test_a_context_is_replaced_by_one_of_another_device,
        test_a_context_that_is_gone_is_refused,
        test_streams_of_two_contexts,
        test_contexts_load_and_unload_by_themselves,
        test_code_is_loaded_before_a_captured_launch_alone,
        test_a_first_launch_that_fails_is_first_again,
        test_a_launch_that_cannot_load_is_tried_again,
        test_a_few_of_many_kernels,
        test_a_map_is_encoded,
        test_flags_are_checked,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
