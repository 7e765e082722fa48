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
    aotc_selection selection = {.struct_size = sizeof selection};
    EXPECT(aotc_launch(kernel, &desc, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "AOTC_LAUNCH_PDL: expected a variant that waits for the launch before it, got one for "
           "sm_90a that does not");
    EXPECT(aotc_select(kernel, &desc, &selection, &fixture.error), AOTC_ERROR_ARG, &fixture.error,
           "AOTC_LAUNCH_PDL");
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

/* ---- tensor maps for memory
 * ---------------------------------------------------------------------------- */

/* What the fake driver makes of a map: address, data type and swizzle, sizes, strides, box. */
static void expect_map(const struct fixture *fixture, aotc_dtype dtype, uint32_t rank,
                       const uint32_t *block, uint64_t data_type, uint64_t swizzle,
                       const uint64_t *box) {
    const int64_t shape[5] = {3, 5, 7, 300, 1000};
    const int64_t strides[5] = {INT64_C(1) << 30, 1 << 25, 1 << 22, 1 << 12, 1};
    const aotc_tensor tensor = {ADDRESS(0x40000), rank, 0, shape + 5 - rank, strides + 5 - rank};
    const uint64_t bytes = aotc_dtype_bytes(dtype);
    aotc_tensor_map map;
    aotc_error error = AOTC_ERROR_INIT;
    EXPECT(aotc_tensor_map_encode(fixture->archive, &tensor, dtype, block, &map, &error), AOTC_OK,
           &error, NULL);
    CHECK(map.words[0] == 0x40000);
    CHECK(map.words[1] == (rank | data_type << 8 | swizzle << 16));
    for (uint32_t i = 0; i < rank; ++i) {
        CHECK(map.words[2 + i] == (uint64_t)shape[4 - i]);
        CHECK(map.words[11 + i] == box[i]);
        CHECK(i == 0 || map.words[6 + i] == (uint64_t)strides[4 - i] * bytes);
    }
}

static void test_maps_for_memory(void) {
    struct fixture fixture = load("golden.aotc");
    const uint32_t square[2] = {64, 64};
    expect_map(&fixture, AOTC_BF16, 2, square, 9, 3, (uint64_t[]){64, 64});
    expect_map(&fixture, AOTC_FP32, 2, square, 7, 3, (uint64_t[]){32, 64});
    expect_map(&fixture, AOTC_FP8E5, 2, square, 0, 2, (uint64_t[]){64, 64});
    expect_map(&fixture, AOTC_I32, 2, (const uint32_t[]){512, 8}, 3, 1, (uint64_t[]){8, 256});
    expect_map(&fixture, AOTC_U16, 2, (const uint32_t[]){512, 8}, 1, 0, (uint64_t[]){8, 256});
    expect_map(&fixture, AOTC_FP16, 1, (const uint32_t[]){512}, 6, 0, (uint64_t[]){256});
    expect_map(&fixture, AOTC_I8, 3, (const uint32_t[]){1, 1, 1024}, 0, 0,
               (uint64_t[]){256, 1, 1});
    expect_map(&fixture, AOTC_FP64, 5, (const uint32_t[]){1, 2, 1, 4, 16}, 8, 3,
               (uint64_t[]){16, 4, 1, 2, 1});
    tear_down(&fixture);
}

static void test_no_map_for_memory(void) {
    struct fixture fixture = load("golden.aotc");
    int64_t shape[2] = {300, 128};
    int64_t strides[2] = {136, 1};
    aotc_tensor tensor = {ADDRESS(0x40000), 2, 0, shape, strides};
    uint32_t block[2] = {64, 64};
    aotc_tensor_map map;
    aotc_error *error = &fixture.error;
    const aotc_archive *archive = fixture.archive;
#define REFUSED(text)                                                                              \
    EXPECT(aotc_tensor_map_encode(archive, &tensor, AOTC_BF16, block, &map, error),                \
           AOTC_ERROR_ARG, error, text)
    block[0] = 48;
    REFUSED("block[0]: expected a power of two, got 48");
    block[0] = 0;
    REFUSED("block[0]: expected a power of two, got 0");
    block[0] = 64;
    block[1] = 4;
    REFUSED("block[1]: expected 8 or more, got 4");
    block[1] = 64;
    tensor.address = ADDRESS(0x40008);
    REFUSED("a multiple of 16, got 0x40008");
    tensor.address = ADDRESS(0x40000);
    strides[0] = 130;
    REFUSED("stride of dimension 1 (0 is the innermost) in bytes");
    strides[0] = INT64_MAX;
    REFUSED("stride of dimension 1");
    strides[0] = -136;
    REFUSED("stride of dimension 1");
    strides[0] = 136;
    strides[1] = 2;
    REFUSED("a last axis without gaps, got a stride of 2");
    shape[1] = 1; /* a single element has no next one */
    EXPECT(aotc_tensor_map_encode(archive, &tensor, AOTC_BF16, block, &map, error), AOTC_OK, error,
           NULL);
    strides[1] = 1;
    shape[0] = 0;
    REFUSED("size of dimension 1");
    shape[0] = 300;
    tensor.rank = 6;
    REFUSED("rank 1 to 5");
    tensor.rank = 0;
    REFUSED("rank 1 to 5");
    tensor.rank = 2;
#undef REFUSED
    EXPECT(aotc_tensor_map_encode(archive, &tensor, AOTC_DTYPE_NONE, block, &map, error),
           AOTC_ERROR_ARG, error, "its dtype");
    EXPECT(aotc_tensor_map_encode(archive, &tensor, (aotc_dtype)99, block, &map, error),
           AOTC_ERROR_ARG, error, "its dtype");
    EXPECT(aotc_tensor_map_encode(archive, &tensor, AOTC_BF16, NULL, &map, error), AOTC_ERROR_ARG,
           error, "a block");
    tear_down(&fixture);
    fixture = set_up("golden.aotc");
    EXPECT(aotc_tensor_map_encode(fixture.archive, &tensor, AOTC_BF16, block, &map, &fixture.error),
           AOTC_ERROR_STATE, &fixture.error, "aotc_load");
    tear_down(&fixture);
}

/* ---- a config with tensor maps on a condition, and without
 * ------------------------------------------------- */

struct mapped {
    aotc_arg args[3];
    aotc_value config[1];
    aotc_launch_desc desc;
};

static void mapped_call(struct mapped *mapped, const struct fixture *fixture, int32_t rows,
                        int64_t stride) {
    mapped->args[0] = aotc_pointer(ADDRESS(0x10000), AOTC_BF16);
    mapped->args[1] = aotc_i32(rows);
    mapped->args[2] = aotc_i64(stride);
    mapped->desc = (aotc_launch_desc)AOTC_LAUNCH_DESC_INIT;
    mapped->desc.args = mapped->args;
    mapped->desc.arg_count = 3;
    mapped->desc.stream = fixture->stream;
}

/* Ask for a config by its number. */
static void mapped_config(struct mapped *mapped, int64_t config) {
    mapped->config[0] = aotc_int_value("CONFIG", config);
    mapped->desc.config = mapped->config;
    mapped->desc.config_count = 1;
}

static void expect_symbol(const struct fixture *fixture, const struct mapped *mapped,
                          const char *symbol) {
    struct fake_launch launch;
    aotc_error error = AOTC_ERROR_INIT;
    EXPECT(aotc_launch(kernel_of(fixture, "mapped"), &mapped->desc, &error), AOTC_OK, &error, NULL);
    fake_cuda_last_launch(&launch);
    CHECK(strcmp(launch.symbol, symbol) == 0);
}

static void test_condition(void) {
    struct fixture fixture = load("mapped.aotc");
    const aotc_kernel *kernel = kernel_of(&fixture, "mapped");
    struct mapped mapped;
    struct fake_launch launch;
    mapped_call(&mapped, &fixture, 256, 72);
    expect_symbol(&fixture, &mapped, "mapped_0");
    fake_cuda_last_launch(&launch);
    CHECK(read_u64(launch.params) == 0x10000 && read_u64(launch.params + 16) == 64);
    CHECK(read_u64(launch.params + 24) == 256 && read_u64(launch.params + 56) == 144);
    CHECK(read_u64(launch.params + 128) == 72 && launch.grid[0] == 2);
    expect_symbol(&fixture, &mapped, "mapped_0");
    CHECK(fake_cuda_calls("cuTensorMapEncodeTiled") == 1);

    /* Whatever of the condition fails, the launch does not. */
    static const struct {
        int32_t rows;
        int64_t stride;
    } unfit[] = {{255, 72}, {256, 71}, {256, -8}, {256, INT64_C(1) << 39}, {256, INT64_MIN}};
    for (size_t i = 0; i < sizeof unfit / sizeof *unfit; ++i) {
        mapped_call(&mapped, &fixture, unfit[i].rows, unfit[i].stride);
        expect_symbol(&fixture, &mapped, "plain_0");
        fake_cuda_last_launch(&launch);
        CHECK(read_u64(launch.params) == 0x10000 &&
              read_u64(launch.params + 128) == (uint64_t)unfit[i].stride);
    }
    mapped_call(&mapped, &fixture, 0, 8); /* an empty grid: no map is encoded for it */
    EXPECT(aotc_launch(kernel, &mapped.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_calls("cuTensorMapEncodeTiled") == 1);

    /* A caller that asks for a config gets the better of its two. */
    mapped_call(&mapped, &fixture, 256, 72);
    mapped_config(&mapped, 0);
    expect_symbol(&fixture, &mapped, "mapped_0");
    mapped_config(&mapped, 1);
    expect_symbol(&fixture, &mapped, "plain_1");
    mapped_config(&mapped, 2);
    expect_symbol(&fixture, &mapped, "mapped_2");
    mapped.args[2] = aotc_i64(INT64_MAX); /* a condition without a value does not hold */
    EXPECT(aotc_launch(kernel, &mapped.desc, &fixture.error), AOTC_ERROR_NOT_FOUND, &fixture.error,
           "expected rows * stride * stride > 0");
    mapped_config(&mapped, 0);
    expect_symbol(&fixture, &mapped, "plain_0");

    aotc_variant_info info = {.struct_size = sizeof info};
    CHECK(aotc_kernel_get_variant(kernel, 0, &info) == AOTC_OK && info.condition != NULL &&
          strncmp(info.condition, "rows % 128 == 0 and ", 20) == 0);
    CHECK(aotc_kernel_get_variant(kernel, 1, &info) == AOTC_OK && info.condition == NULL &&
          info.config == 0);
    tear_down(&fixture);
}

/* A driver that encodes no maps launches what needs none. */
static void test_condition_without_encoder(void) {
    fake_cuda_reset();
    fake_cuda_hide("cuTensorMapEncodeTiled");
    struct fixture fixture = set_up("mapped.aotc");
    struct mapped mapped;
    EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_OK, &fixture.error, NULL);
    mapped_call(&mapped, &fixture, 256, 72);
    expect_symbol(&fixture, &mapped, "plain_0");
    tear_down(&fixture);
}

/* ---- blocks that loop over programs
 * --------------------------------------------------------------------------- */

struct looped {
    aotc_arg args[1];
    aotc_value config[1];
    aotc_launch_desc desc;
};

static void looped_call(struct looped *looped, const struct fixture *fixture, int64_t config,
                        int64_t x, int64_t y, int64_t z) {
    looped->args[0] = aotc_pointer(ADDRESS(0x10000), AOTC_FP32);
    looped->config[0] = aotc_int_value("CONFIG", config);
    looped->desc = (aotc_launch_desc)AOTC_LAUNCH_DESC_INIT;
    looped->desc.args = looped->args;
    looped->desc.arg_count = 1;
    looped->desc.config = looped->config;
    looped->desc.config_count = 1;
    looped->desc.grid_rank = 3;
    looped->desc.grid[0] = x;
    looped->desc.grid[1] = y;
    looped->desc.grid[2] = z;
    looped->desc.stream = fixture->stream;
    looped->desc.scratch = ADDRESS(0x80000);
    looped->desc.scratch_bytes = UINT64_MAX;
}

/* 5 multiprocessors hold 2 blocks each, or one if it takes more than half of the shared memory. */
static void test_looped_programs(void) {
    static const struct {
        int64_t config, x, y, z;
        uint32_t grid[3], cluster[3];
    } cases[] = {
        {0, 1, 1, 1, {1, 1, 1}, {1, 1, 1}},
        {0, 9, 1, 1, {9, 1, 1}, {1, 1, 1}},
        {0, 5, 2, 1, {10, 1, 1}, {1, 1, 1}},
        {0, 1, 11, 1, {6, 1, 1}, {1, 1, 1}}, /* two turns need no more */
        {0, 3, 5, 7, {10, 1, 1}, {1, 1, 1}},
        {0, INT32_MAX, 1, 1, {10, 1, 1}, {1, 1, 1}},
        {0, 32768, 65535, 1, {10, 1, 1}, {1, 1, 1}},
        {1, 1, 1, 11, {6, 1, 1}, {1, 1, 1}},
        {2, 1, 1, 11, {4, 1, 1}, {1, 1, 1}},
        {2, 1, 4, 1, {4, 1, 1}, {1, 1, 1}},
        {3, 2, 2, 1, {8, 1, 1}, {2, 1, 1}},
        {3, 2, 3, 1, {6, 1, 1}, {2, 1, 1}},
        {3, INT32_MAX / 2, 1, 1, {10, 1, 1}, {2, 1, 1}},
        {4, 3, 1, 1, {2, 2, 4}, {2, 2, 4}}, /* a cluster that fits nowhere: one is tried */
    };
    struct fixture fixture = load("looped.aotc");
    const aotc_kernel *kernel = kernel_of(&fixture, "looped");
    const unsigned long blocks_asked =
        fake_cuda_calls("cuOccupancyMaxActiveBlocksPerMultiprocessor");
    CHECK(blocks_asked == 3 && fake_cuda_calls("cuOccupancyMaxActiveClusters") == 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const int64_t programs[3] = {cases[i].x, cases[i].y, cases[i].z};
        aotc_selection selection = {.struct_size = sizeof selection};
        struct looped looped;
        struct fake_launch launch;
        looped_call(&looped, &fixture, cases[i].config, programs[0], programs[1], programs[2]);
        EXPECT(aotc_select(kernel, &looped.desc, &selection, &fixture.error), AOTC_OK,
               &fixture.error, NULL);
        EXPECT(aotc_launch(kernel, &looped.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
        fake_cuda_last_launch(&launch);
        for (unsigned k = 0; k < 3; ++k) {
            CHECK(launch.grid[k] == cases[i].grid[k] && selection.grid[k] == cases[i].grid[k]);
            CHECK(launch.cluster[k] == cases[i].cluster[k]);
            /* The golden kernel takes the axes in the order z, x, y. */
            CHECK(read_u32(launch.params + 8 + 4 * ((k + 1) % 3)) == (uint32_t)programs[k]);
        }
        CHECK(selection.scratch_bytes ==
              16 * (uint64_t)(programs[0] * programs[1] * programs[2]));
        CHECK(read_u64(launch.params) == 0x10000 && read_u64(launch.params + 24) == 0x80000);
    }
    CHECK(fake_cuda_calls("cuOccupancyMaxActiveBlocksPerMultiprocessor") == blocks_asked);
    CHECK(fake_cuda_launches() == sizeof cases / sizeof *cases);
    aotc_variant_info info = {.struct_size = sizeof info};
    CHECK(aotc_kernel_get_variant(kernel, 0, &info) == AOTC_OK && info.loops_programs == 1 &&
          info.waits_pdl == 0);
    tear_down(&fixture);
}

static void test_wrong_looped_programs(void) {
    static const struct {
        int64_t config, x, y, z;
        const char *text; /* NULL: nothing is wrong, and nothing launched */
    } cases[] = {
        {0, 0, 7, 7, NULL},
        {0, 7, 7, 0, NULL},
        {0, 32769, 65535, 1, "grid: expected at most 2147483647 programs, got 2147516415"},
        {0, INT32_MAX, 65535, 65535, "programs, got 922309"},
        {3, INT32_MAX / 2, 2, 1, "grid: expected at most 1073741823 programs, got 2147483646"},
        {0, -1, 1, 1, "grid.x: expected 0 to 2147483647 programs, got -1"},
        {0, 1, 65536, 1, "grid.y: expected 0 to 65535 programs"},
    };
    struct fixture fixture = load("looped.aotc");
    const aotc_kernel *kernel = kernel_of(&fixture, "looped");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        struct looped looped;
        looped_call(&looped, &fixture, cases[i].config, cases[i].x, cases[i].y, cases[i].z);
        EXPECT(aotc_launch(kernel, &looped.desc, &fixture.error),
               cases[i].text == NULL ? AOTC_OK : AOTC_ERROR_ARG, &fixture.error, cases[i].text);
    }
    CHECK(fake_cuda_launches() == 0);
    tear_down(&fixture);
}

/* Each GPU has its own number of blocks that run at a time. */
static void test_looped_on_devices(void) {
    static const struct fake_device devices[] = {{9, 0, 232448}, {9, 0, 150000}};
    fake_cuda_reset();
    fake_cuda_set_devices(devices, 2);
    struct fixture fixture = set_up("looped.aotc");
    aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
    for (int32_t device = 0; device < 2; ++device) {
        struct looped looped;
        struct fake_launch launch;
        options.device = device;
        EXPECT(aotc_load(fixture.archive, &options, &fixture.error), AOTC_OK, &fixture.error, NULL);
        fake_cuda_set_current(fake_cuda_primary_context(device));
        looped_call(&looped, &fixture, 1, 100, 1, 1);
        looped.desc.stream = NULL;
        EXPECT(aotc_launch(kernel_of(&fixture, "looped"), &looped.desc, &fixture.error), AOTC_OK,
               &fixture.error, NULL);
        fake_cuda_last_launch(&launch);
        CHECK(launch.device == device && launch.grid[0] == (device == 0 ? 10 : 5));
    }
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
        test_scratch,      test_tensor_map, test_condition,       test_condition_without_encoder,
        test_devices,      test_targets,
        test_nothing_fits, test_one_kernel, test_empty_archive, test_maps_for_memory,
        test_no_map_for_memory, test_looped_programs, test_wrong_looped_programs,
        test_looped_on_devices,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
