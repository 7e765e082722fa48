// RMSNorm of an aotc archive as an XLA FFI call: buffers and a stream in, a launch out.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include <aotc/aotc.hpp>

#include "norms.h"
#include "xla/ffi/api/ffi.h"

namespace norms {

namespace ffi = xla::ffi;

/// The archive, which is linked in: opened once, and loaded on each GPU before XLA captures or runs there.
class kernels {
public:
    static kernels &of_process() {
        static kernels opened; // throws aotc::error the first time, if the archive cannot be opened
        return opened;
    }

    /// In the primary context of a GPU, which is XLA's too; a second time, it does nothing.
    void load(std::int32_t device) { archive_.load(nullptr, device); }

    aotc_status rms_norm(void *stream, aotc_dtype dtype, const void *x, const void *weight, void *out,
                         std::int32_t rows, std::int32_t columns, float eps, aotc_error *error) const {
        auto *cuda_stream = static_cast<CUstream_st *>(stream);
        return norms_rms_norm(&kernels_, cuda_stream, dtype, x, weight, out, rows, columns, eps, error);
    }

private:
    kernels() : archive_(aotc::archive::open(norms_archive, norms_archive_size)) {
        aotc_error error = AOTC_ERROR_INIT;
        const aotc_status status = norms_kernels_get(archive_.get(), &kernels_, &error);
        if (status != AOTC_OK) {
            throw aotc::error(status, error);
        }
    }

    aotc::archive archive_;
    norms_kernels kernels_{};
};

inline aotc_dtype dtype_of(ffi::DataType type) {
    switch (type) {
    case ffi::F32:
        return AOTC_FP32;
    case ffi::F16:
        return AOTC_FP16;
    case ffi::BF16:
        return AOTC_BF16;
    default:
        return AOTC_DTYPE_NONE;
    }
}

/// Load the archive on the GPU that XLA is about to use. It is a stage of its own, since a launch may be
/// captured into a CUDA graph, and nothing can be loaded then.
inline ffi::Error load(std::int32_t device) {
    try {
        kernels::of_process().load(device);
        return ffi::Error::Success();
    } catch (const aotc::error &error) {
        return ffi::Error::Internal(error.what());
    }
}

/// Normalise the last axis of `x`; `out` has its shape and dtype.
inline ffi::Error rms_norm(void *stream, ffi::AnyBuffer x, ffi::AnyBuffer weight,
                           ffi::Result<ffi::AnyBuffer> out, float eps) {
    const aotc_dtype dtype = dtype_of(x.element_type());
    if (dtype == AOTC_DTYPE_NONE || weight.element_type() != x.element_type() ||
        out->element_type() != x.element_type()) {
        return ffi::Error::InvalidArgument(
            "rms_norm takes float32, float16 or bfloat16, one of them for x, weight and the result");
    }
    const auto shape = x.dimensions();
    if (shape.size() == 0 || weight.element_count() != static_cast<std::size_t>(shape.back()) ||
        out->element_count() != x.element_count()) {
        return ffi::Error::InvalidArgument("rms_norm takes x of one or more axes, a weight for each "
                                           "element of the last, and returns the shape of x");
    }
    const auto count = static_cast<std::int64_t>(x.element_count());
    const std::int64_t columns = shape.back();
    const std::int64_t rows = columns == 0 ? 0 : count / columns;
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (rows > most || columns > most) {
        return ffi::Error::InvalidArgument("rms_norm takes up to 2^31 - 1 rows and columns");
    }
    aotc_error error = AOTC_ERROR_INIT;
    const aotc_status status = kernels::of_process().rms_norm(
        stream, dtype, x.untyped_data(), weight.untyped_data(), out->untyped_data(),
        static_cast<std::int32_t>(rows), static_cast<std::int32_t>(columns), eps, &error);
    if (status != AOTC_OK) { // says which argument, what was expected, what it got, and what would help
        return ffi::Error::InvalidArgument(std::string(error.message));
    }
    return ffi::Error::Success();
}

} // namespace norms
