/* test_launch.c: the parameters of a launch, its variant, and its errors. */
#include <string.h>

#include "fixture.h"

/* ---- add: types, guards, configs, grid ---- */

static void test_add(void) {
    struct fixture fixture = load("golden.aotc");
    const aotc_kernel *kernel = kernel_of(&fixture, "add");
    struct add add;
    struct fake_launch launch;
    add_call(&add, &fixture, AOTC_FP32, 4096);
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(strcmp(launch.symbol, "add_fp32_01") == 0);
    CHECK(launch.grid[0] == 4 && launch.grid[1] == 1 && launch.grid[2] == 1);
    CHECK(launch.block[0] == 128 && launch.block[1] == 1 && launch.cluster[0] == 1 &&
          launch.shared_bytes == 0);
    CHECK(launch.stream == fixture.stream && launch.context == fixture.context);
    CHECK(launch.param_bytes == 28 && read_u64(launch.params) == 0x1000 &&
          read_u64(launch.params + 8) == 0x2004);
    CHECK(read_u64(launch.params + 16) == 0x3000 && read_u32(launch.params + 24) == 4096);

    add_call(&add, &fixture, AOTC_FP16, 4097); /* the guard on n fails: the general variant */
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(strcmp(launch.symbol, "add_fp16_0") == 0 && launch.grid[0] == 5);

    add.args[0] =
        aotc_pointer(ADDRESS(0x1000), AOTC_DTYPE_NONE); /* another argument has the type */
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);

    const aotc_value wide[] = {aotc_int_value("num_warps", 8)};
    add.desc.config = wide;
    add.desc.config_count = 1;
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(launch.block[0] == 256 && launch.grid[0] == 3);

    add.desc.grid_rank = 2; /* the caller's grid instead */
    add.desc.grid[0] = 7;
    add.desc.grid[1] = 65535;
    add.desc.stream = NULL;
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(launch.grid[0] == 7 && launch.grid[1] == 65535 && launch.stream == NULL);

    aotc_selection selection = {.struct_size = sizeof selection};
    aotc_variant_info variant = {.struct_size = sizeof variant};
    EXPECT(aotc_select(kernel, &add.desc, &selection, &fixture.error), AOTC_OK, &fixture.error,
           NULL);
    CHECK(selection.grid[0] == 7 && selection.block[0] == 256 && selection.function != NULL);
    CHECK(aotc_kernel_get_variant(kernel, selection.variant, &variant) == AOTC_OK);
    CHECK(strcmp(variant.symbol, "add_fp16_0") == 0 && strcmp(variant.target, "sm_90a") == 0);
    tear_down(&fixture);
}

static void test_empty_grid(void) {
    struct fixture fixture = load("golden.aotc");
    struct add add;
    add_call(&add, &fixture, AOTC_FP32, 0);
    EXPECT(aotc_launch(kernel_of(&fixture, "add"), &add.desc, &fixture.error), AOTC_OK,
           &fixture.error, NULL);
    CHECK(fake_cuda_launches() == 0);
    tear_down(&fixture);
}

/* Every possible error in the arguments of a launch, and its message. */
static void test_wrong_arguments(void) {
    struct fixture fixture = load("golden.aotc");
    const aotc_kernel *kernel = kernel_of(&fixture, "add");
    const aotc_value bad_config[] = {aotc_int_value("num_warps", 16)};
    const aotc_value bad_name[] = {aotc_int_value(NULL, 16)};
    const aotc_value choice[] = {aotc_bool_value("CAUSAL", 1)};
    struct add add;
    static const struct {
        uint32_t at;
        aotc_arg arg;
        aotc_status status;
        const char *text;
    } cases[] = {
        {0,
         {AOTC_SCALAR, AOTC_I64, {4096}},
         AOTC_ERROR_ARG,
         "argument 'x_ptr': expected a pointer, got a scalar"},
        {0, {7, AOTC_I64, {4096}}, AOTC_ERROR_ARG, "an unknown kind"},
        {0,
         {AOTC_POINTER, AOTC_BF16, {4096}},
         AOTC_ERROR_ARG,
         "argument 'x_ptr': expected fp16, fp32 for T, got bf16"},
        {0, {AOTC_POINTER, 99, {4096}}, AOTC_ERROR_ARG, "got unknown"},
        {1,
         {AOTC_POINTER, AOTC_FP16, {4096}},
         AOTC_ERROR_ARG,
         "as the arguments of type T before it, got fp16"},
        {3, {AOTC_SCALAR, AOTC_I64, {4096}}, AOTC_ERROR_ARG, "argument 'n': expected i32, got i64"},
        {3,
         {AOTC_SCALAR, AOTC_DTYPE_NONE, {4096}},
         AOTC_ERROR_ARG,
         "argument 'n': expected i32, got none"},
        {0, {AOTC_POINTER, AOTC_FP32, {4097}}, AOTC_ERROR_ARG, "x_ptr is a multiple of 16"},
        {0,
         {AOTC_POINTER, AOTC_FP32, {UINT64_MAX - 15}},
         AOTC_ERROR_ARG,
         "x_ptr is a multiple of 16"},
        {3,
         {AOTC_SCALAR, AOTC_I32, {UINT64_C(0xFFFFFFFF80000000)}},
         AOTC_ERROR_ARG,
         "got -2097152"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        add_call(&add, &fixture, AOTC_FP32, 4096);
        add.args[cases[i].at] = cases[i].arg;
        EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), cases[i].status, &fixture.error,
               cases[i].text);
        EXPECT(aotc_launch(kernel, &add.desc, NULL), cases[i].status, NULL, NULL);
        CHECK(strcmp(fixture.error.kernel, "add") == 0 &&
              strstr(fixture.error.file, "golden.aotc") != NULL);
    }
    add_call(&add, &fixture, AOTC_DTYPE_NONE, 4096);
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "type T");
    add_call(&add, &fixture, AOTC_FP32, 4096);
    add.desc.arg_count = 3;
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "4 (x_ptr, y_ptr, out_ptr, n)");
    add.desc.arg_count = 4;
    add.desc.args = NULL;
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "arguments");
    add_call(&add, &fixture, AOTC_FP32, 4096);
    add.desc.config = bad_config;
    add.desc.config_count = 1;
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_NOT_FOUND, &fixture.error,
           "num_warps = 16");
    add.desc.config = bad_name;
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_NOT_FOUND, &fixture.error,
           "NULL = 16");
    add.desc.config = NULL;
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "arrays");
    add_call(&add, &fixture, AOTC_FP32, 4096);
    add.desc.choices = choice;
    add.desc.choice_count = 1;
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "no choices, got CAUSAL");
    add_call(&add, &fixture, AOTC_FP32, 4096);
    add.desc.flags = AOTC_LAUNCH_PDL;
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "AOTC_LAUNCH_PDL");
    add.desc.flags = 2;
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "aotc_launch_desc");
    EXPECT(aotc_launch(kernel, NULL, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "aotc_launch_desc");
    EXPECT(aotc_launch(NULL, &add.desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "aotc_launch_desc");
    add.desc.struct_size = 8;
    EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "aotc_launch_desc");
    static const struct {
        uint32_t rank;
        int64_t grid[3];
        const char *text;
    } grids[] = {
        {1, {-1}, "grid.x: expected 0 to 2147483647 programs, got -1"},
        {1, {INT64_C(1) << 31}, "grid.x"},
        {2, {1, 65536}, "grid.y: expected 0 to 65535"},
        {3, {1, 1, INT64_MAX}, "grid.z"},
        {4, {1, 1, 1}, "grid: expected 1 to 3 dimensions, got 4"},
    };
    for (size_t i = 0; i < sizeof grids / sizeof *grids; ++i) {
        add_call(&add, &fixture, AOTC_FP32, 4096);
        add.desc.grid_rank = grids[i].rank;
        memcpy(add.desc.grid, grids[i].grid, sizeof add.desc.grid);
        EXPECT(aotc_launch(kernel, &add.desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
               grids[i].text);
    }
    aotc_selection selection = {.struct_size = 4};
    EXPECT(aotc_select(kernel, &add.desc, &selection, &fixture.error), AOTC_ERROR_ARG,
           &fixture.error, "selection");
    CHECK(fake_cuda_launches() == 0);
    tear_down(&fixture);
}

/* ---- choose: scalars and choices ---- */

static void test_choose(void) {
    struct fixture fixture = load("golden.aotc");
    const aotc_kernel *kernel = kernel_of(&fixture, "choose");
    const aotc_arg args[15] = {
        aotc_i1(1),
        aotc_i8(-1),
        aotc_i16(-2),
        aotc_i32(-3),
        aotc_i64(-4),
        aotc_u8(5),
        aotc_u16(6),
        aotc_u32(7),
        aotc_u64(8),
        aotc_fp16_bits(0x3C00),
        aotc_bf16_bits(0x3F80),
        aotc_fp32(1.5F),
        aotc_fp64(-2.5),
        aotc_integer(0x38, AOTC_FP8E4NV),
        aotc_integer(0x3C, AOTC_FP8E5),
    };
    static const struct {
        aotc_value mode;
        const char *symbol;
    } modes[] = {
        {{"MODE", AOTC_VALUE_STRING, 0, {.string = "fast"}}, "choose_True_fast"},
        {{"MODE", AOTC_VALUE_STRING, 0, {.string = "exact"}}, "choose_True_exact"},
        {{"MODE", AOTC_VALUE_NULL, 0, {0}}, "choose_True_None"},
        {{"MODE", AOTC_VALUE_INT, 0, {3}}, "choose_True_3"},
        {{"MODE", AOTC_VALUE_FLOAT, 0, {.real = 0.5}}, "choose_True_0_5"},
    };
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    struct fake_launch launch;
    aotc_value choices[3];
    desc.args = args;
    desc.arg_count = 15;
    desc.choices = choices;
    desc.choice_count = 2;
    desc.grid_rank = 1;
    desc.grid[0] = 3;
    desc.stream = fixture.stream;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; ++i) {
        choices[0] = modes[i].mode; /* in any order */
        choices[1] = aotc_bool_value("CAUSAL", 1);
        EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
        fake_cuda_last_launch(&launch);
        CHECK(strcmp(launch.symbol, modes[i].symbol) == 0);
    }
    float single = 0;
    double wide = 0;
    memcpy(&single, launch.params + 36, sizeof single);
    memcpy(&wide, launch.params + 40, sizeof wide);
    CHECK(launch.params[0] == 1 && launch.params[1] == 0xFF &&
          read_u32(launch.params + 4) == UINT32_MAX - 2);
    CHECK(read_u64(launch.params + 8) == UINT64_MAX - 3 && single == 1.5F && wide == -2.5);
    CHECK(launch.params[48] == 0x38 && launch.params[49] == 0x3C);

    choices[2] = aotc_int_value("ONLY", 7);
    desc.choice_count = 3;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    choices[2] = aotc_int_value("ONLY", 8);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "choice 'ONLY': expected one of 7, got 8");
    choices[2] = aotc_int_value("OTHER", 8);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "of CAUSAL, MODE, ONLY, got MODE, CAUSAL, OTHER");
    choices[2] = aotc_value_bits("ONLY", (aotc_value_kind)9, 0);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "unknown kind 9");
    choices[2] = aotc_bool_value("CAUSAL", 1); /* twice */
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error, "each once");
    desc.choice_count = 2;
    choices[1] = aotc_int_value("CAUSAL", 1);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "one of true, false, got 1");
    desc.choice_count = 1;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "choice 'CAUSAL': expected one of true, false, got nothing");
    desc.choice_count = 2;
    choices[0] = aotc_string_value("MODE", NULL);
    choices[1] = aotc_bool_value("CAUSAL", 0);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "\"fast\", \"exact\", null, 3, 0.5");
    choices[0] = aotc_float_value("MODE", 0.5); /* listed, but not built for CAUSAL = false */
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_NOT_FOUND, &fixture.error,
           "dtypes and choices");
    choices[0] = aotc_null_value("MODE");
    desc.grid_rank = 0;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "no grid: pass one");
    aotc_arg bad[15];
    memcpy(bad, args, sizeof bad);
    bad[0] = aotc_arg_bits(AOTC_SCALAR, AOTC_I1, 2);
    desc.args = bad;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "argument 'a_i1': expected 0 or 1, got 2");
    tear_down(&fixture);
}

/* ---- scratch and computed parameters ---- */

static void test_scratch(void) {
    struct fixture fixture = load("golden.aotc");
    const aotc_kernel *kernel = kernel_of(&fixture, "scratch");
    aotc_arg args[2] = {aotc_pointer(ADDRESS(0x1000), AOTC_FP32), aotc_i64(10)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    aotc_selection selection = {.struct_size = sizeof selection};
    struct fake_launch launch;
    desc.args = args;
    desc.arg_count = 2;
    desc.stream = fixture.stream;
    EXPECT(aotc_select(kernel, &desc, &selection, &fixture.error), AOTC_OK, &fixture.error, NULL);
    CHECK(selection.scratch_bytes == 4 * 10 * 10 * 2 && selection.scratch_align == 128);
    desc.scratch = ADDRESS(0x8000);
    desc.scratch_bytes = 799;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error, "scratch");
    desc.scratch_bytes = 800;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(read_u64(launch.params + 8) == 0x8000 && read_u64(launch.params + 16) == 99);
    CHECK(read_u32(launch.params + 24) == 3 && launch.grid[0] == 10 && launch.grid[1] == 2);
    desc.scratch = ADDRESS(0x8010);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "aligned to 128");
    args[1] = aotc_i64(INT64_C(1) << 62);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error, "grid.x");
    desc.grid_rank = 1;
    desc.grid[0] = 1;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "a value of 4 * n, got an overflow");
    args[1] = aotc_i64(INT64_C(1) << 40);
    desc.grid[0] = INT32_MAX;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error, "2^63");
    args[1] = aotc_i64(-1);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error, "-4 bytes");
    args[1] = aotc_i64(INT64_C(1) << 33);
    desc.grid[0] = 1;
    desc.scratch = ADDRESS(0x8000);
    desc.scratch_bytes = UINT64_MAX;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error, "n * n - 1");
    args[1] =
        aotc_i64(INT64_C(1) << 31); /* n * n - 1 is below 2^63, the last one must fit in 32 bits */
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    args[1] = aotc_i64(0); /* nothing to launch: no scratch asked for */
    desc.grid_rank = 0;
    desc.scratch = NULL;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    tear_down(&fixture);
}

static void test_scratch_pool(void) {
    struct fixture fixture = load("golden.aotc");
    const aotc_kernel *kernel = kernel_of(&fixture, "scratch");
    aotc_arg args[2] = {aotc_pointer(ADDRESS(0x1000), AOTC_FP32), aotc_i64(10)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    struct fake_launch launch;
    desc.args = args;
    desc.arg_count = 2;
    desc.stream = fixture.stream;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    const uint64_t first = read_u64(launch.params + 8);
    CHECK(first != 0 && first % 128 == 0 && launch.stream == fixture.stream);
    CHECK(desc.scratch == NULL && desc.scratch_bytes == 0);
    CHECK(fake_cuda_live_pools() == 1 && fake_cuda_live_pieces() == 0);

    /* The plan of a launch is cached, its scratch memory is another one. */
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(read_u64(launch.params + 8) != first);

    fake_cuda_begin_capture();
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_end_capture() == 1);

    fake_cuda_fail("cuMemAllocFromPoolAsync", 0, 2);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_CUDA, &fixture.error,
           "cuMemAllocFromPoolAsync");
    fake_cuda_fail("cuLaunchKernelEx", 0, 719);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_CUDA, &fixture.error,
           "cuLaunchKernelEx");
    CHECK(fake_cuda_live_pieces() == 0);
    fake_cuda_fail("cuMemFreeAsync", 0, 1);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_CUDA, &fixture.error,
           "cuMemFreeAsync");

    /* The caller's memory stays the caller's: too little of it is an error. */
    desc.scratch_bytes = 799;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "800 bytes of device memory");
    tear_down(&fixture);
    CHECK(fake_cuda_live_pools() == 0);
}

static void test_no_scratch_pool(void) {
    static const char *const symbols[] = {"cuMemPoolCreate", "cuMemPoolSetAttribute",
                                          "cuMemAllocFromPoolAsync"};
    for (size_t i = 0; i < 2 * sizeof symbols / sizeof *symbols; ++i) {
        const char *symbol = symbols[i / 2];
        fake_cuda_reset();
        if (i % 2 == 0) {
            fake_cuda_hide(symbol);
        } else if (i / 2 < 2) {
            fake_cuda_fail(symbol, 0, 801); /* CUDA_ERROR_NOT_SUPPORTED */
        } else {
            continue;
        }
        struct fixture fixture = set_up("golden.aotc");
        EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_OK, &fixture.error, NULL);
        aotc_arg args[2] = {aotc_pointer(ADDRESS(0x1000), AOTC_FP32), aotc_i64(10)};
        aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
        desc.args = args;
        desc.arg_count = 2;
        desc.stream = fixture.stream;
        EXPECT(aotc_launch(kernel_of(&fixture, "scratch"), &desc, &fixture.error), AOTC_ERROR_ARG,
               &fixture.error, "800 bytes of device memory");
        CHECK(strstr(fixture.error.remedy, "pool") != NULL);
        CHECK(fake_cuda_live_pools() == 0);
        tear_down(&fixture);
    }
    fake_cuda_reset();
}

static void test_one_kernel(void) {
    fake_cuda_reset();
    struct fixture fixture = set_up("golden.aotc");
    aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
    struct add add;
    add_call(&add, &fixture, AOTC_FP32, 4096);
    options.kernel = "add";
    EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_live_libraries() == 8); /* of two targets, one's */
    EXPECT(aotc_launch(kernel_of(&fixture, "add"), &add.desc, &fixture.error), AOTC_OK,
           &fixture.error, NULL);
    EXPECT(aotc_launch(kernel_of(&fixture, "tma"), &add.desc, &fixture.error), AOTC_ERROR_STATE,
           &fixture.error, "call aotc_load first");
    fake_cuda_set_current(NULL);
    EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_ERROR_STATE, &fixture.error,
           "context");
    add.desc.stream = NULL;
    EXPECT(aotc_launch(kernel_of(&fixture, "add"), &add.desc, &fixture.error), AOTC_ERROR_STATE,
           &fixture.error, "current CUDA context");
    tear_down(&fixture);
}

static void test_empty_archive(void) {
    struct fixture fixture = load("empty.aotc");
    tear_down(&fixture);
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        test_add, test_empty_grid, test_wrong_arguments, test_choose, test_scratch, test_scratch_pool,
        test_no_scratch_pool,
        test_one_kernel, test_empty_archive,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
