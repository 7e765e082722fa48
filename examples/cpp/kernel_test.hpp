// kernel_test.hpp: one kernel with its data: to be launched, again and again, and checked.
#ifndef EXAMPLE_KERNEL_TEST_HPP
#define EXAMPLE_KERNEL_TEST_HPP

#include "device.hpp"
#include "kernels.h"

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

/// Call a function of kernels.h or aotc.h with an aotc_error, and throw what it reports.
template <class Call>
void check(Call &&call) {
    aotc_error error = AOTC_ERROR_INIT;
    const aotc_status status = std::forward<Call>(call)(&error);
    if (status != AOTC_OK) {
        throw aotc::error(status, error);
    }
}

class kernel_test {
public:
    kernel_test(std::string kernel, aotc_dtype dtype) : kernel_(std::move(kernel)), dtype_(dtype) {}
    virtual ~kernel_test() = default;

    const std::string &kernel() const noexcept { return kernel_; }
    aotc_dtype dtype() const noexcept { return dtype_; }

    /// Upload new random inputs and poison the outputs.
    virtual void refill(const stream &stream, std::mt19937_64 &random) = 0;

    /// Launch the kernel. Nothing but the launch goes into the stream, so it can be captured.
    virtual void launch(const kernels_kernels &kernels, const stream &stream) = 0;

    /// Compare the outputs with the reference; see worst_error in reference.hpp.
    virtual double worst_error(const stream &stream) const = 0;

private:
    std::string kernel_;
    aotc_dtype dtype_;
};

/// Every kernel of kernels.toml in fp32 and bf16, as far as it is built for them, at several
/// shapes; those of one kernel follow each other.
std::vector<std::unique_ptr<kernel_test>> all_kernel_tests();

#endif
