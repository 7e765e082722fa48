// main.cpp: launch every kernel of the archive that is linked in, and check every result.
//
// What a server does: open the archive, load it once (all code is on the GPU then), find the
// kernels, and launch them through the typed functions of kernels.h, in a stream and in a captured
// graph. Exits with 0 if everything was right.
#include "kernel_test.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>

namespace {

using kernel_tests = std::vector<std::unique_ptr<kernel_test>>;
using errors = std::vector<double>; // one a test

aotc::archive open_archive() {
    aotc_archive *handle = nullptr;
    check([&](aotc_error *error) { return kernels_open(nullptr, &handle, error); });
    return aotc::archive(handle);
}

void refill_all(const kernel_tests &tests, const stream &stream, std::mt19937_64 &random) {
    for (const auto &test : tests) {
        test->refill(stream, random);
    }
}

void launch_all(const kernel_tests &tests, const kernels_kernels &kernels, const stream &stream) {
    for (const auto &test : tests) {
        test->launch(kernels, stream);
    }
}

errors worst_errors(const kernel_tests &tests, const stream &stream) {
    errors worst;
    for (const auto &test : tests) {
        worst.push_back(test->worst_error(stream));
    }
    return worst;
}

/// Print a line for each kernel; return whether all are right.
bool report(const kernel_tests &tests, const errors &launched, const errors &replayed) {
    bool all_right = true;
    for (std::size_t i = 0; i < tests.size();) {
        const std::string &kernel = tests[i]->kernel();
        std::string dtypes;
        double in_stream = 0.0;
        double in_graph = 0.0;
        for (; i < tests.size() && tests[i]->kernel() == kernel; ++i) {
            const std::string dtype = aotc_dtype_name(tests[i]->dtype());
            if (dtypes.find(dtype) == std::string::npos) {
                dtypes += ' ' + dtype;
            }
            in_stream = std::max(in_stream, launched[i]);
            in_graph = std::max(in_graph, replayed[i]);
        }
        const bool is_right = in_stream <= 1.0 && in_graph <= 1.0;
        std::printf("%-18s %-5s%-10s  error / bound: stream %.3f, graph %.3f\n", kernel.c_str(),
                    is_right ? "right" : "WRONG", dtypes.c_str(), in_stream, in_graph);
        all_right = all_right && is_right;
    }
    return all_right;
}

/// The same without kernels.h: aotc.hpp takes any kernel by name, and the dtypes from the pointers.
bool launch_by_name(const aotc::archive &archive, const stream &stream, std::mt19937_64 &random) {
    matrix<float> x(5, 1000);
    matrix<float> out(5, 1000);
    x.upload_normal(stream, random);
    out.poison(stream);
    const aotc::kernel softmax = archive.kernel("softmax");
    softmax.launch(stream.get(), x.device(), out.device(), x.stride(), x.rows(), x.cols());
    const expected right = reference::softmax(x.values(), x.shape(), unit_roundoff<float>);
    const double best_config = out.worst_error(stream, right);

    out.poison(stream);
    softmax.on(stream.get())
        .config("BLOCK", 4096)
        .config("LOOP", true)
        .launch(x.device(), out.device(), x.stride(), x.rows(), x.cols());
    const double looping = out.worst_error(stream, right);
    const bool is_right = best_config <= 1.0 && looping <= 1.0;
    std::printf("%-18s %-5s %-9s  error / bound: best config %.3f, looping %.3f\n", "by name",
                is_right ? "right" : "WRONG", "fp32", best_config, looping);
    return is_right;
}

bool run() {
    check(cudaSetDevice(0));
    const stream stream;
    std::mt19937_64 random(20260101);

    aotc::archive archive = open_archive();
    archive.load(); // everything, for the current device; launches load nothing
    kernels_kernels kernels;
    check([&](aotc_error *error) { return kernels_kernels_get(archive.get(), &kernels, error); });
    const kernel_tests tests = all_kernel_tests();

    refill_all(tests, stream, random);
    launch_all(tests, kernels, stream);
    const errors launched = worst_errors(tests, stream);

    // Capturing launches nothing. A replay reads what is in the same buffers by then.
    const graph graph(stream, [&] { launch_all(tests, kernels, stream); });
    refill_all(tests, stream, random);
    graph.launch(stream);
    const errors replayed = worst_errors(tests, stream);

    const bool all_right = report(tests, launched, replayed);
    return launch_by_name(archive, stream, random) && all_right;
}

} // namespace

int main() {
    try {
        return run() ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
