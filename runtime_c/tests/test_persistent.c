/* test_persistent.c: grids of persistent kernels: as many CTAs as are resident at a time. */

#include "fixture.h"

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

/* 5 multiprocessors hold 2 CTAs each, or one if it takes more than half of the shared memory. */
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
    CHECK(aotc_kernel_get_variant(kernel, 0, &info) == AOTC_OK && info.is_persistent == 1 &&
          info.waits_pdl == 0);
    tear_down(&fixture);
}

static void test_wrong_looped_programs(void) {
    static const struct {
        int64_t config, x, y, z;
        const char *text; /* NULL: no error, and no launch */
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

/* Each GPU has its own number of resident CTAs. */
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

/* A launch of a kernel whose CTAs wait for each other has at most the resident number. */
static void test_cooperative(void) {
    static const struct {
        int64_t config, x, y;
        uint32_t grid[2];
        const char *text;
    } cases[] = {
        {0, 1, 1, {1, 1}, NULL},
        {0, 10, 1, {10, 1}, NULL},
        {0, 2, 5, {2, 5}, NULL},
        {0, 11, 1, {0, 0}, "grid: expected at most 10 programs, which wait for each other, got 11"},
        {0, 65535, 65535, {0, 0}, "which wait for each other, got 4294836225"},
        {1, 5, 1, {5, 1}, NULL},
        {1, 6, 1, {0, 0}, "at most 5 programs"},
        {2, 5, 1, {10, 1}, NULL},
        {2, 3, 2, {0, 0}, "at most 5 programs"},
    };
    struct fixture fixture = load("together.aotc");
    const aotc_kernel *kernel = kernel_of(&fixture, "together");
    unsigned long launches = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        aotc_selection selection = {.struct_size = sizeof selection};
        const aotc_status status = cases[i].text == NULL ? AOTC_OK : AOTC_ERROR_ARG;
        struct looped looped;
        looped_call(&looped, &fixture, cases[i].config, cases[i].x, cases[i].y, 1);
        EXPECT(aotc_select(kernel, &looped.desc, &selection, &fixture.error), status,
               &fixture.error, cases[i].text);
        EXPECT(aotc_launch(kernel, &looped.desc, &fixture.error), status, &fixture.error,
               cases[i].text);
        launches += status == AOTC_OK;
        CHECK(fake_cuda_launches() == launches);
        if (status == AOTC_OK) {
            struct fake_launch launch;
            fake_cuda_last_launch(&launch);
            CHECK(launch.is_cooperative == 1 && launch.grid[0] == cases[i].grid[0] &&
                  launch.grid[1] == cases[i].grid[1]);
            CHECK(launch.cluster[0] == (cases[i].config == 2 ? 2 : 1));
        }
    }
    struct looped looped;
    looped_call(&looped, &fixture, 0, 0, 7, 1);
    EXPECT(aotc_launch(kernel, &looped.desc, &fixture.error), AOTC_OK, &fixture.error, NULL);
    CHECK(fake_cuda_launches() == launches);
    aotc_variant_info info = {.struct_size = sizeof info};
    CHECK(aotc_kernel_get_variant(kernel, 0, &info) == AOTC_OK && info.cooperative == 1 &&
          info.is_persistent == 0);
    tear_down(&fixture);
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        test_looped_programs,
        test_wrong_looped_programs,
        test_looped_on_devices,
        test_cooperative,
    };
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
