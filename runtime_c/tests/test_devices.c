/* test_devices.c: several devices, contexts and targets, and variants that run on none. */
#include <string.h>

#include "fixture.h"

static void test_devices(void) {
    static const struct fake_device devices[] = {
        {8, 6, 101376}, {9, 0, 232448}, {12, 0, 101376}, {8, 0, 166912}};
    fake_cuda_reset();
    fake_cuda_set_devices(devices, 4);
    struct fixture fixture = set_up("golden.aotc");
    const aotc_kernel *kernel = kernel_of(&fixture, "add");
    const aotc_kernel *shared = kernel_of(&fixture, "shared");
    aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
    struct fake_launch launch;
    struct add add;
    add_call(&add, &fixture, AOTC_FP32, 4096);
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_STATE, &fixture.error,
           "aotc_load");
    for (int32_t device = 0; device < 2; ++device) {
        options.device = device;
        EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_OK, &fixture.error, NULL);
        EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_OK, &fixture.error, NULL);
    }
    CHECK(fake_cuda_retained_contexts() == 2);
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "stream");
    options.device = 2;
    EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_ERROR_ARCH, &fixture.error,
           "a GPU for sm_80, sm_90a, got compute capability 12.0");
    CHECK(fake_cuda_retained_contexts() == 3);
    EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_OK, &fixture.error,
           NULL); /* current: device 0 */
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(launch.device == 0 && launch.context == fixture.context);

    /* The device follows the stream, not the current context. */
    struct CUctx_st *second = fake_cuda_create_context(1);
    fake_cuda_set_current(second);
    EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_set_current(fixture.context);
    add.desc.stream = fake_cuda_create_stream(second);
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(launch.device == 1 && launch.context == second);

    /* 200 KiB of shared memory: too much for 8.x, with a clear error; on 9.0 it runs. */
    const aotc_arg pointer[] = {aotc_pointer(NULL, AOTC_FP32)};
    add.desc.args = pointer;
    add.desc.arg_count = 1;
    EXPECT(aotc_launch(shared, &add.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(launch.shared_bytes == 200 * 1024);
    add.desc.stream = fixture.stream;
    EXPECT(aotc_launch(shared, &add.desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "at most 101376 bytes, as this GPU has, got 205824 bytes");
    EXPECT(aotc_launch(kernel_of(&fixture, "tma"), &add.desc, &fixture.error), AOTC_ERROR_ARCH,
           &fixture.error, "a GPU for sm_90a, got compute capability 8.6");
    options.device = 3;
    options.kernel = "shared";
    EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "166912");
    options.kernel = "share";
    EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_ERROR_NOT_FOUND,
           &fixture.error, "'shared'");
    options.kernel = NULL;
    options.device = 4;
    EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "0 to 3");
    options.device = -2;
    EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "got -2");
    options.struct_size = 4;
    EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "aotc_load");
    EXPECT(aotc_load(NULL, NULL, &fixture.error), AOTC_ERROR_ARG, &fixture.error, "aotc_load");
    tear_down(&fixture);
}

/* The best target that runs on a GPU: a before f before plain, then the greater minor; and the next
 * one if its guards do not hold. */
static void test_targets(void) {
    static const struct {
        struct fake_device device;
        int32_t n;
        const char *symbol; /* NULL: nothing runs */
    } cases[] = {
        {{8, 0, 101376}, 16, "pick_sm_80"},
        {{8, 6, 101376}, 16, "pick_sm_86"},
        {{8, 6, 101376}, 17, "pick_sm_80"},
        {{8, 7, 166912}, 16, "pick_sm_87"}, /* systems on chip run their own cubins alone */
        {{8, 8, 101376}, 16, NULL},
        {{8, 9, 101376}, 32, "pick_sm_86"},
        {{9, 0, 232448}, 16, "pick_sm_90a"},
        {{9, 1, 232448}, 16, NULL},
        {{10, 0, 232448}, 16, "pick_sm_100a"},
        {{10, 1, 232448}, 16, "pick_sm_100f"},
        {{10, 3, 232448}, 16, "pick_sm_103a"},
        {{10, 7, 232448}, 16, "pick_sm_107a"},
        {{11, 0, 232448}, 16, "pick_sm_110f"},
        {{12, 0, 101376}, 16, "pick_sm_120f"},
        {{12, 1, 101376}, 16, "pick_sm_121a"},
        {{13, 0, 232448}, 16, NULL},
        {{7, 5, 65536}, 16, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        fake_cuda_reset();
        fake_cuda_set_devices(&cases[i].device, 1);
        struct fixture fixture = set_up("pick.aotc");
        const aotc_arg args[] = {aotc_i32(cases[i].n)};
        aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
        struct fake_launch launch;
        desc.args = args;
        desc.arg_count = 1;
        desc.stream = fixture.stream;
        if (cases[i].symbol == NULL) {
            EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_ERROR_ARCH,
                   &fixture.error, "sm_103a");
            EXPECT(aotc_launch(kernel_of(&fixture, "pick"), &desc, &fixture.error), AOTC_ERROR_ARCH,
                   &fixture.error, "sm_86");
        } else {
            EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_OK, &fixture.error, NULL);
            EXPECT(aotc_launch(kernel_of(&fixture, "pick"), &desc, &fixture.error), AOTC_OK,
                   &fixture.error, NULL);
            fake_cuda_last_launch(&launch);
            CHECK(strcmp(launch.symbol, cases[i].symbol) == 0);
        }
        tear_down(&fixture);
    }
}

/* Without a variant for the arguments' alignment, the error names the failed guards. */
static void test_nothing_fits(void) {
    static const struct fake_device device = {8, 6, 101376};
    fake_cuda_reset();
    fake_cuda_set_devices(&device, 1);
    struct fixture fixture = set_up("guarded.aotc");
    const aotc_arg args[] = {aotc_i32(17)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    desc.args = args;
    desc.arg_count = 1;
    desc.stream = fixture.stream;
    EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_OK, &fixture.error, NULL);
    EXPECT(aotc_launch(kernel_of(&fixture, "pick"), &desc, &fixture.error), AOTC_ERROR_NOT_FOUND,
           &fixture.error, "n is a multiple of 16");
    tear_down(&fixture);
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        test_devices, test_targets, test_nothing_fits,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
