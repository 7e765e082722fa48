// test_wrapper.cpp: the C++ wrapper over the fake driver.
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "aotc/aotc.hpp"
#include "fake_cuda.h"

extern "C" {
#include "harness.h"
}

namespace {

struct half_bits {
    std::uint16_t bits;
};

} // namespace

template <>
struct aotc::dtype_of<half_bits> {
    static constexpr aotc_dtype value = AOTC_FP16;
};

namespace {

static_assert(!std::is_copy_constructible_v<aotc::archive> &&
              std::is_nothrow_move_constructible_v<aotc::archive>);

template <class Call>
void expect_error(aotc_status status, const char *text, Call &&call) {
    try {
        call();
        CHECK(!"an exception");
    } catch (const aotc::error &error) {
        CHECK(error.status() == status);
        CHECK(std::strstr(error.what(), text) != nullptr);
    }
}

template <class T>
T *address(std::uintptr_t number) {
    return reinterpret_cast<T *>(number);
}

void test_launches() {
    blob_table *blobs = read_blobs("golden.aotc");
    const aotc_open_options options = fake_options(blobs);
    fake_cuda_reset();
    CUctx_st *context = fake_cuda_create_context(0);
    fake_cuda_set_current(context);
    CUstream_st *const stream = fake_cuda_create_stream(context);
    {
        aotc::archive first =
            aotc::archive::open(std::string(golden_path("golden.aotc")), &options);
        aotc::archive archive = std::move(first);
        const aotc::archive shared = archive.share();
        CHECK(std::string(archive.info().name) == "golden" && first.get() == nullptr);
        const aotc::kernel add = archive.kernel("add");
        CHECK(add.info().param_count == 4);
        expect_error(AOTC_ERROR_STATE, "aotc_load", [&] { add.launch(stream, 1, 2, 3, 4); });
        archive.load("add");
        archive.unload();
        expect_error(AOTC_ERROR_STATE, "aotc_load", [&] { add.launch(stream, 1, 2, 3, 4); });
        archive.load();

        fake_launch launch;
        const float *x = address<const float>(0x1000);
        add.launch(stream, x, static_cast<void *>(nullptr), nullptr, std::int32_t{4096});
        fake_cuda_last_launch(&launch);
        CHECK(std::string(launch.symbol) == "add_fp32_01" && launch.grid[0] == 4);
        const half_bits *h = address<const half_bits>(0x1000);
        add.on(stream).config("num_warps", 8).grid(7, 2).launch(h, h, h, 4097);
        fake_cuda_last_launch(&launch);
        CHECK(std::string(launch.symbol) == "add_fp16_0" && launch.grid[0] == 7 &&
              launch.grid[1] == 2);
        CHECK(launch.block[0] == 256);
        CHECK(add.on(stream).select(x, x, x, 1024 * 5).grid[0] == 5);
        expect_error(AOTC_ERROR_ARG, "expected i32, got i64",
                     [&] { add.launch(stream, x, x, x, 4096L); });
        expect_error(AOTC_ERROR_ARG, "expected i32, got fp64",
                     [&] { add.launch(stream, x, x, x, 1.0); });
        expect_error(AOTC_ERROR_NOT_FOUND, "'add'", [&] { (void)archive.kernel("ad"); });
        expect_error(AOTC_ERROR_IO, "missing",
                     [] { (void)aotc::archive::open(golden_path("missing")); });
        expect_error(AOTC_ERROR_FORMAT, "archive",
                     [] { (void)aotc::archive::open("text", std::size_t{4}); });
        expect_error(AOTC_ERROR_LIMIT, "LIMIT", [&] {
            aotc::launcher launcher = add.on(stream);
            for (int i = 0; i < 40; ++i) {
                launcher.choice("CAUSAL", true);
            }
        });

        const aotc_tensor_map map = archive.tensor_map(x, {100, 64}, {68, 1}, {32, 32});
        CHECK(map.words[0] == 0x1000 && map.words[2] == 64 && map.words[7] == 272);
        CHECK(map.words[11] == 32 && map.words[12] == 32);
        expect_error(AOTC_ERROR_ARG, "block[1]",
                     [&] { (void)archive.tensor_map(x, {100, 64}, {68, 1}, {32, 2}); });

        const aotc::kernel choose = archive.kernel(std::string("choose"));
        choose.on(stream)
            .choice("CAUSAL", false)
            .choice("MODE", "exact")
            .choice("ONLY", 7)
            .grid(3)
            .launch(true, std::int8_t{-1}, std::int16_t{-2}, std::int32_t{-3}, std::int64_t{-4},
                    std::uint8_t{5}, std::uint16_t{6}, std::uint32_t{7}, std::uint64_t{8},
                    aotc_fp16_bits(1), aotc_bf16_bits(1), 1.5F, -2.5, aotc_integer(1, AOTC_FP8E4NV),
                    aotc_integer(1, AOTC_FP8E5));
        fake_cuda_last_launch(&launch);
        CHECK(std::string(launch.symbol) == "choose_False_exact");
        CHECK(launch.params[0] == 1 && launch.params[1] == 0xFF && launch.params[16] == 5);
    }
    CHECK(fake_cuda_live_libraries() == 0);
    NO_VIOLATION();
    free_blobs(blobs);
}

// Which config it is follows from the values of the arguments, by one launcher again and again.
void test_selected_configs() {
    blob_table *blobs = read_blobs("steered.aotc");
    const aotc_open_options options = fake_options(blobs);
    fake_cuda_reset();
    CUctx_st *context = fake_cuda_create_context(0);
    fake_cuda_set_current(context);
    {
        aotc::archive archive =
            aotc::archive::open(std::string(golden_path("steered.aotc")), &options);
        archive.load();
        auto launcher = archive.kernel("steered").on(fake_cuda_create_stream(context));
        const std::pair<std::int32_t, const char *> cases[] = {
            {16, "steered_fp16_2_aligned"},
            {1 << 17, "steered_fp16_3_aligned"},
            {17, "steered_fp16_2"},
        };
        for (int turn = 0; turn < 2; ++turn) {
            for (const auto &[n, symbol] : cases) {
                fake_launch launch;
                launcher.launch(address<half_bits>(0x1000), 16, n, 1);
                fake_cuda_last_launch(&launch);
                CHECK(std::strcmp(launch.symbol, symbol) == 0);
            }
        }
    }
    free_blobs(blobs);
    NO_VIOLATION();
}

} // namespace

int main(int argc, char **argv) {
    static void (*const tests[])() = {test_launches, test_selected_configs};
    return run_tests(argc, argv, tests, 2);
}
