/* test_selection.c: the config of a launch by the values of its arguments, on different GPUs. */
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

/* A launch of `steered`, and its expected function. */
struct steered {
    int32_t m, n, k;
    const char *symbol;
};

struct call {
    aotc_arg args[4];
    aotc_launch_desc desc;
};

static void steered_call(struct call *call, const struct fixture *fixture, aotc_dtype dtype, int32_t m,
                         int32_t n, int32_t k) {
    call->args[0] = aotc_pointer(ADDRESS(0x1000), dtype);
    call->args[1] = aotc_i32(m);
    call->args[2] = aotc_i32(n);
    call->args[3] = aotc_i32(k);
    call->desc = (aotc_launch_desc)AOTC_LAUNCH_DESC_INIT;
    call->desc.args = call->args;
    call->desc.arg_count = 4;
    call->desc.stream = fixture->stream;
}

static void expect_symbol(struct fixture *fixture, const struct call *call, const char *symbol) {
    const aotc_kernel *kernel = kernel_of(fixture, "steered");
    struct fake_launch launch;
    aotc_selection selection = {.struct_size = sizeof selection};
    aotc_variant_info variant = {.struct_size = sizeof variant};
    EXPECT(aotc_launch(kernel, &call->desc, &fixture->error), AOTC_OK, &fixture->error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(strcmp(launch.symbol, symbol) == 0);
    EXPECT(aotc_select(kernel, &call->desc, &selection, &fixture->error), AOTC_OK, &fixture->error, NULL);
    CHECK(aotc_kernel_get_variant(kernel, selection.variant, &variant) == AOTC_OK);
    CHECK(strcmp(variant.symbol, symbol) == 0);
}

/* Each twice, the second time with other launches in the cache. */
static void expect_all(struct fixture *fixture, aotc_dtype dtype, const struct steered *cases,
                       size_t count) {
    for (size_t i = 0; i < 2 * count; ++i) {
        const struct steered *one = &cases[i % count];
        struct call call;
        steered_call(&call, fixture, dtype, one->m, one->n, one->k);
        expect_symbol(fixture, &call, one->symbol);
    }
}

#define EXPECT_ALL(fixture, dtype, cases) expect_all(fixture, dtype, cases, sizeof(cases) / sizeof *(cases))

static const struct steered own[] = {
    {1, 16, 1, "steered_fp16_2_aligned"},
    {1, 17, 1, "steered_fp16_2"},
    {16, 1 << 16, 1, "steered_fp16_2_aligned"},       /* at the threshold */
    {16, (1 << 16) + 16, 1, "steered_fp16_3_aligned"}, /* above it */
    {16, (1 << 16) + 1, 1, "steered_fp16_0"},          /* no config of the leaf takes it */
    {17, 1 << 16, 1, "steered_fp16_5_aligned"},
    {17, 1 << 16, 0, "steered_fp16_2_aligned"}, /* the condition of the first config fails */
    {17, (1 << 16) + 1, 1, "steered_fp16_2"},
};

static const struct steered of_target[] = {
    {1, 16, 4, "steered_fp16_4_aligned"},
    {1, 16, 3, "steered_fp16_1_aligned"},
    {1, 16, 0, "steered_fp16_1_aligned"}, /* a division by zero */
    {1, 17, 0, "steered_fp16_2"},
    {17, 1 << 16, 1, "steered_fp16_5_aligned"},
};

static const struct steered other_dtype[] = {
    {1, 16, 4, "steered_fp32_2_aligned"},
    {17, (1 << 16) + 1, 1, "steered_fp32_2"},
};

static const struct steered older[] = {
    {1, -16, 1, "steered_fp16_4_aligned"},
    {1, 16, 1, "steered_fp16_2_aligned"},
    {1, 0, 1, "steered_fp16_2_aligned"},
};

static const struct steered unsteered[] = {{1, -16, 1, "steered_fp32_0_aligned"}};

static void test_own_gpu(void) {
    struct fixture fixture = load("steered.aotc");
    CHECK(fake_cuda_calls("cuDeviceGetName") == 1);
    EXPECT_ALL(&fixture, AOTC_FP16, own);
    EXPECT_ALL(&fixture, AOTC_FP32, other_dtype);
    CHECK(fake_cuda_calls("cuDeviceGetName") == 1);
    tear_down(&fixture);
}

static struct fixture load_on(const struct fake_device *device, uint32_t flags) {
    fake_cuda_reset();
    fake_cuda_set_devices(device, 1);
    struct fixture fixture = set_up("steered.aotc");
    aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
    options.flags = flags;
    EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_OK, &fixture.error, NULL);
    return fixture;
}

/* Part of a GPU has a name of its own. */
static void test_gpu_of_another_name(void) {
    static const struct fake_device part = {9, 0, FAKE_CUDA_MIG_BELOW_BYTES - 1};
    const uint32_t flags[] = {0, AOTC_LOAD_LAZY};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; ++i) {
        struct fixture fixture = load_on(&part, flags[i]);
        EXPECT_ALL(&fixture, AOTC_FP16, of_target);
        EXPECT_ALL(&fixture, AOTC_FP32, other_dtype);
        tear_down(&fixture);
    }
}

static void test_gpu_without_a_name(void) {
    fake_cuda_reset();
    fake_cuda_hide("cuDeviceGetName");
    struct fixture old = set_up("steered.aotc");
    EXPECT(aotc_load(old.archive, NULL, &old.error), AOTC_OK, &old.error, NULL);
    EXPECT_ALL(&old, AOTC_FP16, of_target);
    tear_down(&old);
    fake_cuda_reset();
    fake_cuda_fail("cuDeviceGetName", 0, 999);
    struct fixture fixture = set_up("steered.aotc");
    EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_OK, &fixture.error, NULL);
    EXPECT_ALL(&fixture, AOTC_FP16, of_target);
    tear_down(&fixture);
}

static void test_another_target(void) {
    static const struct fake_device ampere = {8, 0, 166912};
    struct fixture fixture = load_on(&ampere, 0);
    EXPECT_ALL(&fixture, AOTC_FP16, older);
    EXPECT_ALL(&fixture, AOTC_FP32, unsteered);
    tear_down(&fixture);
}

/* The caller's entries come first; the leaf decides the rest. */
static void test_named_config(void) {
    struct fixture fixture = load("steered.aotc");
    struct call call;
    for (int64_t config = 0; config < 6; ++config) {
        const aotc_value wanted[] = {aotc_int_value("CONFIG", config)};
        char symbol[] = "steered_fp16_0_aligned";
        symbol[strlen("steered_fp16_")] = (char)('0' + config);
        steered_call(&call, &fixture, AOTC_FP16, 1, 16, 1);
        call.desc.config = wanted;
        call.desc.config_count = 1;
        expect_symbol(&fixture, &call, symbol);
    }
    const aotc_value odd[] = {aotc_int_value("CONFIG", 3)};
    steered_call(&call, &fixture, AOTC_FP16, 1, 17, 1);
    call.desc.config = odd;
    call.desc.config_count = 1;
    EXPECT(aotc_launch(kernel_of(&fixture, "steered"), &call.desc, &fixture.error),
           AOTC_ERROR_NOT_FOUND, &fixture.error, "n is a multiple of 16");
    tear_down(&fixture);
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        test_own_gpu, test_gpu_of_another_name, test_gpu_without_a_name, test_another_target,
        test_named_config,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
