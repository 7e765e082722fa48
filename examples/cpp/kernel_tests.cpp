// kernel_tests.cpp: which kernels are tried, in which types, at which shapes.
//
// The shapes are such that all promises of kernels.toml hold, that none does, and that a row is
// longer than the largest block, so that different variants of a kernel are launched.
#include "elementwise_tests.hpp"
#include "row_tests.hpp"

namespace {

using kernel_tests = std::vector<std::unique_ptr<kernel_test>>;

template <template <class> class Test, class T>
void add_rows(kernel_tests &tests) {
    tests.push_back(std::make_unique<Test<T>>(32, 4096, 4096));
    tests.push_back(std::make_unique<Test<T>>(7, 1003, 1008));
    tests.push_back(std::make_unique<Test<T>>(3, 20001, 20003));
}

template <class T>
void add_vectors(kernel_tests &tests) {
    tests.push_back(std::make_unique<vector_add_test<T>>(1 << 20));
    tests.push_back(std::make_unique<vector_add_test<T>>(100003));
}

template <class T>
void add_silu_mul(kernel_tests &tests) {
    tests.push_back(std::make_unique<silu_mul_test<T>>(32, 4096, 8192));
    tests.push_back(std::make_unique<silu_mul_test<T>>(7, 1003, 2011));
}

template <class T>
void add_rotary(kernel_tests &tests) {
    tests.push_back(std::make_unique<rotary_test<T>>(64, reference::heads{32, 128, 64}));
    tests.push_back(std::make_unique<rotary_test<T>>(5, reference::heads{17, 96, 41}));
}

template <class T>
void add_transpose2d(kernel_tests &tests) {
    tests.push_back(std::make_unique<transpose2d_test<T>>(512, 256, 256, 512));
    tests.push_back(std::make_unique<transpose2d_test<T>>(67, 131, 135, 71));
}

} // namespace

std::vector<std::unique_ptr<kernel_test>> all_kernel_tests() {
    kernel_tests tests;
    add_vectors<float>(tests);
    add_vectors<bfloat16>(tests);
    add_silu_mul<bfloat16>(tests);
    add_rotary<bfloat16>(tests);
    add_rows<softmax_test, float>(tests);
    add_rows<softmax_test, bfloat16>(tests);
    add_rows<cross_entropy_test, float>(tests);
    add_rows<cross_entropy_test, bfloat16>(tests);
    add_rows<rmsnorm_test, bfloat16>(tests);
    add_rows<layernorm_test, bfloat16>(tests);
    add_transpose2d<float>(tests);
    add_transpose2d<bfloat16>(tests);
    add_rows<argmax_rows_test, float>(tests);
    add_rows<argmax_rows_test, bfloat16>(tests);
    add_rows<cumsum_rows_test, float>(tests);
    add_rows<cumsum_rows_test, bfloat16>(tests);
    add_rows<quantize_int8_rows_test, bfloat16>(tests);
    return tests;
}
