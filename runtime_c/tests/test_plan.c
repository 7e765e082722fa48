/* test_plan.c: launches equal to an earlier one, and launches with any difference. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "harness.h"

#define ADDRESS(number) ((void *)(uintptr_t)(number))

static aotc_archive *load(const char *name, struct blob_table *blobs) {
    const aotc_open_options options = fake_options(blobs);
    aotc_archive *archive = NULL;
    CHECK(aotc_open_file(golden_path(name), &options, &archive, NULL) == AOTC_OK);
    CHECK(aotc_load(archive, NULL, NULL) == AOTC_OK);
    return archive;
}

static struct aotci_context *context_of(const aotc_archive *archive) {
    return atomic_load_explicit(&archive->contexts, memory_order_acquire);
}

/* ---- the key of a launch ------------------------------------------------------------------ */

static aotc_status launch(const aotc_archive *archive, const char *name,
                          const aotc_launch_desc *desc) {
    const aotc_kernel *kernel = NULL;
    CHECK(aotc_kernel_get(archive, name, &kernel, NULL) == AOTC_OK);
    return aotc_launch(kernel, desc, NULL);
}

/* Launch without selection: only a cached plan works. */
static aotc_status launch_kept(const aotc_archive *archive, const char *name,
                               const aotc_launch_desc *desc) {
    const aotc_kernel *kernel = NULL;
    CHECK(aotc_kernel_get(archive, name, &kernel, NULL) == AOTC_OK);
    _Atomic(struct aotci_dispatch *) *place = aotci_place_of(context_of(archive), kernel->number);
    struct aotci_dispatch *dispatch = atomic_exchange(place, NULL);
    const aotc_status status = aotc_launch(kernel, desc, NULL);
    atomic_store(place, dispatch);
    return status;
}

#define EXPECT_KEPT(name) CHECK(launch_kept(archive, name, &desc) == AOTC_OK)
#define EXPECT_NEW(name) CHECK(launch_kept(archive, name, &desc) == AOTC_ERROR_STATE)

static void check_add(aotc_archive *archive) {
    aotc_arg args[4] = {aotc_pointer(ADDRESS(0x1000), AOTC_FP32),
                        aotc_pointer(ADDRESS(0x2000), AOTC_FP32),
                        aotc_pointer(ADDRESS(0x3000), AOTC_FP32), aotc_i32(4096)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    desc.args = args;
    desc.arg_count = 4;
    EXPECT_NEW("add");
    CHECK(launch(archive, "add", &desc) == AOTC_OK);
    EXPECT_KEPT("add");
    for (unsigned i = 0; i < 4; ++i) {
        const aotc_arg before = args[i];
        args[i].as.bits += 16;
        EXPECT_NEW("add");
        args[i] = before;
        args[i].dtype = i == 3 ? AOTC_U32 : AOTC_FP16;
        EXPECT_NEW("add");
        args[i] = before;
        args[i].kind = i == 3 ? AOTC_POINTER : AOTC_SCALAR;
        EXPECT_NEW("add");
        args[i] = before;
    }
    desc.arg_count = 3;
    EXPECT_NEW("add");
    desc.arg_count = 4;
    desc.flags = AOTC_LAUNCH_PDL;
    EXPECT_NEW("add");
    desc.flags = 0;
    for (uint32_t rank = 1; rank <= 3; ++rank) { /* each is cached before the next is requested */
        desc.grid_rank = rank;
        desc.grid[0] = 4;
        desc.grid[1] = 5;
        desc.grid[2] = 6;
        EXPECT_NEW("add");
        CHECK(launch(archive, "add", &desc) == AOTC_OK);
        EXPECT_KEPT("add");
        desc.grid[rank - 1] += 1;
        EXPECT_NEW("add");
        desc.grid[rank - 1] -= 1;
        desc.grid[2] += rank < 3; /* ignored */
        EXPECT_KEPT("add");
    }
    desc.grid_rank = 0;
    EXPECT_KEPT("add");
    args[3].as.bits = 0; /* an empty grid: nothing is launched or cached */
    CHECK(launch(archive, "add", &desc) == AOTC_OK);
    EXPECT_NEW("add");
}

/* Texts count by their contents, not their addresses. */
static void check_texts(aotc_archive *archive) {
    aotc_arg args[4] = {aotc_pointer(ADDRESS(0x5000), AOTC_FP32),
                        aotc_pointer(ADDRESS(0x6000), AOTC_FP32),
                        aotc_pointer(ADDRESS(0x7000), AOTC_FP32), aotc_i32(32)};
    char name[] = "num_warps";
    aotc_value config[64] = {aotc_int_value(name, 8), aotc_int_value("BLOCK", 2048)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    desc.args = args;
    desc.arg_count = 4;
    desc.config = config;
    desc.config_count = 2;
    CHECK(launch(archive, "add", &desc) == AOTC_OK);
    EXPECT_KEPT("add");
    config[0].name = "num_warps";
    EXPECT_KEPT("add");
    config[0].name = name;
    name[8] = 'z';
    EXPECT_NEW("add");
    name[8] = 's';
    config[0].as.integer = 4;
    EXPECT_NEW("add");
    config[0] = aotc_float_value(name, 8);
    EXPECT_NEW("add");
    config[0] = aotc_string_value(name, "8");
    EXPECT_NEW("add");
    config[0].name = NULL;
    EXPECT_NEW("add");
    config[0] = aotc_int_value(name, 8);
    EXPECT_KEPT("add");
    desc.config_count = 1;
    EXPECT_NEW("add");
    for (size_t i = 1; i < sizeof config / sizeof *config; ++i) {
        config[i] = config[0];
    }
    desc.config_count = sizeof config / sizeof *config; /* more than fits is launched, not cached */
    CHECK(launch(archive, "add", &desc) == AOTC_OK);
    EXPECT_NEW("add");
    /* Wherever the words end. */
    char long_name[100];
    memset(long_name, 'x', sizeof long_name);
    for (size_t bytes = sizeof long_name - 1; bytes != 0; --bytes) {
        long_name[bytes] = '\0';
        for (uint32_t count = 1; count <= sizeof config / sizeof *config; ++count) {
            config[count - 1].name = long_name;
            desc.config_count = count;
            CHECK(launch(archive, "add", &desc) == AOTC_ERROR_NOT_FOUND);
        }
    }
}

static void check_choices(aotc_archive *archive) {
    const aotc_arg args[15] = {
        aotc_i1(1),   aotc_i8(1),  aotc_i16(1), aotc_i32(1),       aotc_i64(1),
        aotc_u8(1),   aotc_u16(1), aotc_u32(1), aotc_u64(1),       aotc_fp16_bits(1),
        aotc_bf16_bits(1), aotc_fp32(1), aotc_fp64(1), aotc_integer(1, AOTC_FP8E4NV),
        aotc_integer(1, AOTC_FP8E5)};
    char mode[] = "exact";
    aotc_value choices[2] = {aotc_bool_value("CAUSAL", 1), aotc_string_value("MODE", mode)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    desc.args = args;
    desc.arg_count = 15;
    desc.choices = choices;
    desc.choice_count = 2;
    desc.grid_rank = 1;
    desc.grid[0] = 1;
    CHECK(launch(archive, "choose", &desc) == AOTC_OK);
    EXPECT_KEPT("choose");
    memcpy(mode, "fast", sizeof "fast");
    EXPECT_NEW("choose");
    CHECK(launch(archive, "choose", &desc) == AOTC_OK);
    EXPECT_KEPT("choose");
    memcpy(mode, "exact", sizeof "exact");
    EXPECT_KEPT("choose");
    choices[0].as.integer = 0;
    EXPECT_NEW("choose");
    choices[0] = aotc_int_value("CAUSAL", 1);
    EXPECT_NEW("choose");
    choices[0] = aotc_bool_value("CAUSAL", 1);
    choices[1].as.string = NULL;
    EXPECT_NEW("choose");
    /* Entries of the config are no choices. */
    choices[1].as.string = mode;
    desc.config = choices;
    desc.config_count = 2;
    desc.choice_count = 0;
    desc.choices = NULL;
    EXPECT_NEW("choose");
}

static void check_tensor(aotc_archive *archive) {
    int64_t sizes[2][2] = {{300, 128}, {136, 1}};
    aotc_tensor tensor = {ADDRESS(0x10000), 2, 0, sizes[0], sizes[1]};
    const aotc_arg args[2] = {aotc_tensor_arg(&tensor, AOTC_BF16),
                              aotc_pointer(ADDRESS(0x20000), AOTC_BF16)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    struct fake_launch before, after;
    desc.args = args;
    desc.arg_count = 2;
    CHECK(launch(archive, "tma", &desc) == AOTC_OK);
    fake_cuda_last_launch(&before);
    EXPECT_KEPT("tma");
    fake_cuda_last_launch(&after);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    for (unsigned i = 0; i < 4; ++i) {
        int64_t *size = &sizes[i / 2][i % 2];
        *size += 8;
        EXPECT_NEW("tma");
        *size -= 8;
    }
    tensor.address = ADDRESS(0x10010);
    EXPECT_NEW("tma");
    tensor.address = ADDRESS(0x10000);
    tensor.rank = 1;
    EXPECT_NEW("tma");
    tensor.rank = 2;
    tensor.shape = NULL;
    EXPECT_NEW("tma");
    const int64_t shape[2] = {300, 128};
    tensor.shape = shape; /* the same sizes elsewhere */
    EXPECT_KEPT("tma");
}

/* Scratch memory is checked and passed anew. */
static void check_scratch(aotc_archive *archive) {
    const aotc_arg args[2] = {aotc_pointer(ADDRESS(0x1000), AOTC_FP32), aotc_i64(10)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    struct fake_launch made;
    uint64_t address = 0;
    desc.args = args;
    desc.arg_count = 2;
    desc.scratch = ADDRESS(0x8000);
    desc.scratch_bytes = 800;
    CHECK(launch(archive, "scratch", &desc) == AOTC_OK);
    desc.scratch = ADDRESS(0x9000);
    EXPECT_KEPT("scratch");
    fake_cuda_last_launch(&made);
    memcpy(&address, made.params + 8, sizeof address);
    CHECK(address == 0x9000);
    memcpy(&address, made.params + 16, sizeof address);
    CHECK(address == 99);
    desc.scratch_bytes = 799;
    CHECK(launch_kept(archive, "scratch", &desc) == AOTC_ERROR_ARG);
    desc.scratch = NULL;
    CHECK(launch_kept(archive, "scratch", &desc) == AOTC_ERROR_ARG);
}

static void test_what_counts(void) {
    fake_cuda_reset();
    struct blob_table *blobs = read_blobs("golden.aotc");
    fake_cuda_set_current(fake_cuda_create_context(0));
    aotc_archive *archive = load("golden.aotc", blobs);
    check_add(archive);
    check_texts(archive);
    check_choices(archive);
    check_tensor(archive);
    check_scratch(archive);

    /* Another context has plans of its own. */
    const aotc_arg args[2] = {aotc_pointer(ADDRESS(0x1000), AOTC_FP32), aotc_i64(10)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    desc.args = args;
    desc.arg_count = 2;
    desc.scratch = ADDRESS(0x8000);
    desc.scratch_bytes = 800;
    EXPECT_KEPT("scratch");
    fake_cuda_set_current(fake_cuda_create_context(0));
    CHECK(aotc_load(archive, NULL, NULL) == AOTC_OK);
    CHECK(launch_kept(archive, "scratch", &desc) == AOTC_ERROR_ARG); /* loaded for the other one */
    CHECK(launch(archive, "scratch", &desc) == AOTC_OK);
    EXPECT_KEPT("scratch");
    aotc_release(archive);
    free_blobs(blobs);
    NO_VIOLATION();
}

/* Two kernels that differ only in their names. */
static void test_twins(void) {
    fake_cuda_reset();
    struct blob_table *blobs = read_blobs("twins.aotc");
    fake_cuda_set_current(fake_cuda_create_context(0));
    aotc_archive *archive = load("twins.aotc", blobs);
    const aotc_arg args[4] = {aotc_pointer(ADDRESS(0x1000), AOTC_FP32),
                              aotc_pointer(ADDRESS(0x2000), AOTC_FP32),
                              aotc_pointer(ADDRESS(0x3000), AOTC_FP32), aotc_i32(4096)};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    desc.args = args;
    desc.arg_count = 4;
    CHECK(launch(archive, "add", &desc) == AOTC_OK);
    EXPECT_KEPT("add");
    EXPECT_NEW("twin");
    aotc_release(archive);
    free_blobs(blobs);
    NO_VIOLATION();
}

/* ---- random launches
 * --------------------------------------------------------------------------- */

static uint64_t state = 1;

static uint32_t random_below(uint32_t limit) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(state >> 33) % limit;
}

/* Whatever was launched before, a launch has the same effect as without a cache. */
static void test_random_launches(void) {
    enum { ROUNDS = 20000 };
    fake_cuda_reset();
    struct blob_table *blobs = read_blobs("golden.aotc");
    fake_cuda_set_current(fake_cuda_create_context(0));
    aotc_archive *keeping = load("golden.aotc", blobs);
    aotc_archive *bare = load("golden.aotc", blobs);
    struct aotci_memo *plans = &context_of(bare)->plans;
    aotci_memo_free(plans, &bare->allocator);
    plans->slots = NULL;
    unsigned failed = 0;
    for (int round = 0; round < ROUNDS; ++round) {
        static const char *const names[] = {"add", "tma", "scratch"};
        const uint32_t which = random_below(3);
        const uint64_t address = UINT64_C(0x10000) + 8 * random_below(4);
        const int64_t shape[2] = {128 + random_below(3), 64 * random_below(3)};
        const int64_t strides[2] = {128 + 4 * random_below(3), 1};
        const aotc_tensor tensor = {ADDRESS(address), 1 + (random_below(8) != 0), 0, shape,
                                    strides};
        const aotc_dtype dtype = random_below(2) == 0 ? AOTC_FP32 : AOTC_FP16;
        const aotc_arg add_args[] = {aotc_pointer(ADDRESS(address), dtype),
                                     aotc_pointer(ADDRESS(0x20000), dtype),
                                     aotc_pointer(ADDRESS(0x30000), AOTC_DTYPE_NONE),
                                     aotc_i32((int32_t)random_below(4) * 8)};
        const aotc_arg tma_args[] = {aotc_tensor_arg(&tensor, AOTC_BF16),
                                     aotc_pointer(ADDRESS(0x20000), AOTC_BF16)};
        const aotc_arg scratch_args[] = {aotc_pointer(ADDRESS(address), AOTC_FP32),
                                         aotc_i64(random_below(8))};
        const aotc_value config[] = {
            which == 0 ? aotc_int_value("num_warps", random_below(2) == 0 ? 4 : 8)
                       : aotc_bool_value("WAITS", (int)random_below(2))};
        aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
        desc.args = which == 0 ? add_args : which == 1 ? tma_args : scratch_args;
        desc.arg_count = which == 0 ? 4 : 2;
        desc.flags = random_below(4) == 0 ? AOTC_LAUNCH_PDL : 0;
        desc.config = config;
        desc.config_count = random_below(2);
        desc.grid_rank = random_below(4);
        desc.grid[0] = random_below(4);
        desc.grid[1] = 1 + random_below(2);
        desc.grid[2] = 1;
        desc.scratch = ADDRESS(0x80000 + 64 * random_below(3));
        desc.scratch_bytes = 32 * random_below(4);

        struct fake_launch found = {.symbol = ""};
        struct fake_launch made = {.symbol = ""};
        const unsigned long before = fake_cuda_launches();
        const aotc_status kept_status = launch(keeping, names[which], &desc);
        if (fake_cuda_launches() != before) {
            fake_cuda_last_launch(&found);
        }
        const unsigned long between = fake_cuda_launches();
        const aotc_status status = launch(bare, names[which], &desc);
        if (fake_cuda_launches() != between) {
            fake_cuda_last_launch(&made);
        }
        failed += status != AOTC_OK;
        CHECK(kept_status == status && memcmp(&found, &made, sizeof found) == 0);
    }
    CHECK(failed > ROUNDS / 20 && failed < ROUNDS - ROUNDS / 20);
    aotc_release(keeping);
    aotc_release(bare);
    free_blobs(blobs);
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {test_what_counts, test_twins, test_random_launches};
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
