/* test_tensor_maps.c: tensor maps of launches and in memory, and variants that depend on them. */
#include <string.h>

#include "fixture.h"

/* ---- tensor maps, clusters, programmatic launches ---- */

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

    /* An unchanged tensor is not encoded again; one with any difference is. */
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

/* ---- tensor maps for memory ---- */

/* The fake driver's encoding of a map: address, data type and swizzle, sizes, strides, box. */
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

/* ---- a config with tensor maps on a condition, and without ---- */

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

    /* If any part of the condition fails, the launch still works. */
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

/* A driver without a map encoder launches variants without maps. */
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

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        test_tensor_map, test_maps_for_memory, test_no_map_for_memory, test_condition,
        test_condition_without_encoder,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
