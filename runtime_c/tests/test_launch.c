/* test_launch.c: loading, choosing and launching on the fake driver. */
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "harness.h"

#define ADDRESS(number) ((void *)(uintptr_t)(number))

/* An archive loaded on device 0, with a stream of its own; reset before. */
struct fixture {
    struct blob_table *blobs;
    aotc_archive *archive;
    struct CUctx_st *context;
    struct CUstream_st *stream;
    aotc_error error;
};

static struct fixture set_up(const char *name) {
    struct fixture fixture = {.blobs = read_blobs(name), .error = AOTC_ERROR_INIT};
    const aotc_open_options options = fake_options(fixture.blobs);
    EXPECT(aotc_open_file(golden_path(name), &options, &fixture.archive, &fixture.error), AOTC_OK,
           &fixture.error, NULL);
    fixture.context = fake_cuda_create_context(0);
    fixture.stream = fake_cuda_create_stream(fixture.context);
    fake_cuda_set_current(fixture.context);
    return fixture;
}

static struct fixture load(const char *name) {
    fake_cuda_reset();
    struct fixture fixture = set_up(name);
    EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_OK, &fixture.error, NULL);
    return fixture;
}

static void tear_down(struct fixture *fixture) {
    aotc_release(fixture->archive);
    free_blobs(fixture->blobs);
    CHECK(fake_cuda_live_libraries() == 0);
    CHECK(fake_cuda_retained_contexts() == 0);
    NO_VIOLATION();
}

static const aotc_kernel *kernel_of(const struct fixture *fixture, const char *name) {
    const aotc_kernel *kernel = NULL;
    CHECK(aotc_kernel_get(fixture->archive, name, &kernel, NULL) == AOTC_OK);
    return kernel;
}

static uint32_t read_u32(const unsigned char *bytes) {
    uint32_t value = 0;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static uint64_t read_u64(const unsigned char *bytes) {
    uint64_t value = 0;
    memcpy(&value, bytes, sizeof value);
    return value;
}

/* ---- add: types, guards, configs, grid
 * ------------------------------------------------------------- */

struct add {
    aotc_arg args[4];
    aotc_launch_desc desc;
};

static void add_call(struct add *add, const struct fixture *fixture, aotc_dtype dtype, int32_t n) {
    add->args[0] = aotc_pointer(ADDRESS(0x1000), dtype);
    add->args[1] = aotc_pointer(ADDRESS(0x2004), dtype);
    add->args[2] = aotc_pointer(ADDRESS(0x3000), dtype);
    add->args[3] = aotc_i32(n);
    add->desc = (aotc_launch_desc)AOTC_LAUNCH_DESC_INIT;
    add->desc.args = add->args;
    add->desc.arg_count = 4;
    add->desc.stream = fixture->stream;
}

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
        aotc_pointer(ADDRESS(0x1000), AOTC_DTYPE_NONE); /* another argument says the type */
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

/* Everything that may be wrong with the arguments of a launch, and the message that says so. */
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

/* ---- choose: scalars and choices
 * -------------------------------------------------------------------- */

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

/* ---- scratch and computed parameters
 * -------------------------------------------------------------------- */

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
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "800 bytes of device memory");
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

/* ---- tensor maps, clusters, programmatic launches
 * ---------------------------------------------------------- */

static void test_tensor_map(void) {
    struct fixture fixture = load("golden.aotc");
    const aotc_kernel *kernel = kernel_of(&fixture, "tma");
    int64_t shape[2] = {300, 128};
    int64_t strides[2] = {136, 1};
    aotc_tensor tensor = {ADDRESS(0x10000), 2, 0, shape, strides};
    const aotc_arg args[2] = {aotc_tensor_arg(&tensor, AOTC_BF16),
                              aotc_pointer(ADDRESS(0x20000), AOTC_BF16)};
    const aotc_value no_wait[] = {aotc_bool_value("WAITS", 0)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    struct fake_launch launch;
    desc.args = args;
    desc.arg_count = 2;
    desc.stream = fixture.stream;
    desc.config = no_wait;
    desc.config_count = 1;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(launch.grid[0] == 3 * 16 && launch.grid[1] == 2 && launch.cluster[0] == 16 &&
          launch.block[0] == 384);
    CHECK(launch.shared_bytes == 100 * 1024 && launch.is_pdl == 0);
    CHECK(read_u64(launch.params) == 0x10000 && read_u64(launch.params + 16) == 128);
    CHECK(read_u64(launch.params + 24) == 300 && read_u64(launch.params + 56) == 272);
    CHECK(read_u64(launch.params + 128) == 0x20000);

    /* A tensor that is as it was is not encoded again; one that differs in anything is. */
    CHECK(fake_cuda_calls("cuTensorMapEncodeTiled") == 1);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(fake_cuda_calls("cuTensorMapEncodeTiled") == 1);
    CHECK(read_u64(launch.params) == 0x10000 && read_u64(launch.params + 56) == 272);
    for (unsigned i = 0; i < 3; ++i) {
        shape[0] += i == 0;
        strides[0] += i == 1 ? 8 : 0;
        tensor.address = ADDRESS(i == 2 ? 0x10010 : 0x10000);
        EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
        fake_cuda_last_launch(&launch);
        CHECK(fake_cuda_calls("cuTensorMapEncodeTiled") == 2 + i);
        CHECK(read_u64(launch.params) == (i == 2 ? 0x10010 : 0x10000));
        CHECK(read_u64(launch.params + 24) == 301);
        CHECK(read_u64(launch.params + 56) == (i == 0 ? 272 : 288));
    }
    tensor.address = ADDRESS(0x10000);
    desc.flags = AOTC_LAUNCH_PDL;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error, "waits");
    const aotc_value wait[] = {aotc_bool_value("WAITS", 1)};
    desc.config = wait;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(launch.is_pdl == 1 && launch.cluster[0] == 2);
    desc.flags = 0;

    tensor.address = ADDRESS(0x10008);
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "multiple of 16, got 0x10008");
    tensor.address = ADDRESS(0x10000);
    strides[0] = 129;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "argument 'a': expected stride of dimension 1");
    strides[0] = INT64_C(1) << 40;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "stride of dimension 1");
    strides[0] = INT64_MAX;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "an overflow");
    strides[0] = 136;
    desc.grid_rank = 1;
    desc.grid[0] = 1;
    shape[1] = 0;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "size of dimension 0");
    shape[1] = 128;
    desc.grid[0] = INT32_MAX / 2 + 1; /* in programs; twice as many blocks */
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "0 to 1073741823 programs");
    tensor.rank = 3;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "a tensor of rank 2, got rank 3");
    tensor.shape = NULL;
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "shape and strides");
    tear_down(&fixture);
}

/* ---- several devices and contexts
 * --------------------------------------------------------------------------- */

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

    /* 200 KiB of shared memory: not on 8.x, which says so; on 9.0 it runs. */
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
        {{8, 9, 101376}, 32, "pick_sm_86"},
        {{9, 0, 232448}, 16, "pick_sm_90a"},
        {{9, 1, 232448}, 16, NULL},
        {{10, 0, 232448}, 16, "pick_sm_100a"},
        {{10, 1, 232448}, 16, "pick_sm_100f"},
        {{10, 3, 232448}, 16, "pick_sm_103a"},
        {{11, 0, 232448}, 16, NULL},
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

/* Without a variant for the arguments' alignment: which guards failed. */
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
        test_add,          test_empty_grid, test_wrong_arguments, test_choose,
        test_scratch,      test_tensor_map, test_devices,         test_targets,
        test_nothing_fits, test_one_kernel, test_empty_archive,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
