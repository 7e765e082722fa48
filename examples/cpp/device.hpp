// device.hpp: streams, graphs and matrices of the CUDA runtime API, which release themselves.
#ifndef EXAMPLE_DEVICE_HPP
#define EXAMPLE_DEVICE_HPP

#include "element.hpp"
#include "reference.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

inline void check(cudaError_t status) {
    if (status != cudaSuccess) {
        throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status));
    }
}

class stream {
public:
    stream() { check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking)); }
    ~stream() { cudaStreamDestroy(handle_); }
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;

    cudaStream_t get() const noexcept { return handle_; }
    void synchronize() const { check(cudaStreamSynchronize(handle_)); }

private:
    cudaStream_t handle_ = nullptr;
};

/// What `work` puts into a stream, captured once, to be launched as often as needed. The archive
/// must have been loaded before: what loads code cannot be captured, and aotc's launches never do.
class graph {
public:
    template <class Work>
    graph(const stream &stream, Work &&work) {
        check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
        cudaGraph_t captured = nullptr;
        try {
            std::forward<Work>(work)();
        } catch (...) {
            cudaStreamEndCapture(stream.get(), &captured);
            cudaGraphDestroy(captured);
            throw;
        }
        check(cudaStreamEndCapture(stream.get(), &captured));
        const cudaError_t status = cudaGraphInstantiate(&handle_, captured, 0);
        cudaGraphDestroy(captured);
        check(status);
    }
    ~graph() { cudaGraphExecDestroy(handle_); }
    graph(const graph &) = delete;
    graph &operator=(const graph &) = delete;

    void launch(const stream &stream) const { check(cudaGraphLaunch(handle_, stream.get())); }

private:
    cudaGraphExec_t handle_ = nullptr;
};

/// A row-major matrix on the device, rows `stride` elements apart, and its values on the host.
///
/// Whatever is not a value is poison: outputs before a launch, and the gaps between rows for good.
template <class T>
class matrix {
public:
    matrix(std::size_t rows, std::size_t cols, std::size_t stride)
        : rows_(rows), cols_(cols), stride_(stride), values_(rows * cols) {
        check(cudaMalloc(&device_, size_bytes()));
    }
    matrix(std::size_t rows, std::size_t cols) : matrix(rows, cols, cols) {}
    ~matrix() { cudaFree(device_); }
    matrix(const matrix &) = delete;
    matrix &operator=(const matrix &) = delete;

    T *device() const noexcept { return static_cast<T *>(device_); }
    std::int32_t rows() const noexcept { return static_cast<std::int32_t>(rows_); }
    std::int32_t cols() const noexcept { return static_cast<std::int32_t>(cols_); }
    std::int32_t stride() const noexcept { return static_cast<std::int32_t>(stride_); }
    reference::shape shape() const noexcept { return {rows_, cols_}; }

    /// What was uploaded last, exactly, row after row without gaps.
    const doubles &values() const noexcept { return values_; }

    /// Upload what `next()` returns for each element, rounded to T.
    template <class Next>
    void upload(const stream &stream, Next &&next) {
        std::vector<T> host = poisoned();
        for (std::size_t row = 0; row < rows_; ++row) {
            for (std::size_t col = 0; col < cols_; ++col) {
                T &element = host[row * stride_ + col];
                element = narrow<T>(next());
                values_[row * cols_ + col] = widen(element);
            }
        }
        check(cudaMemcpyAsync(device_, host.data(), size_bytes(), cudaMemcpyHostToDevice,
                              stream.get()));
        stream.synchronize();
    }

    void upload_normal(const stream &stream, std::mt19937_64 &random) {
        std::normal_distribution<double> normal;
        upload(stream, [&] { return normal(random); });
    }

    void poison(const stream &stream) {
        check(cudaMemsetAsync(device_, poison_byte, size_bytes(), stream.get()));
    }

    /// Compare with what is on the device now; infinite if something is in the gaps.
    double worst_error(const stream &stream, const expected &expected) const {
        std::vector<T> host(rows_ * stride_);
        check(cudaMemcpyAsync(host.data(), device_, size_bytes(), cudaMemcpyDeviceToHost,
                              stream.get()));
        stream.synchronize();
        const T poison = poisoned().front();
        doubles actual(rows_ * cols_);
        for (std::size_t i = 0; i < host.size(); ++i) {
            const std::size_t col = i % stride_;
            if (col < cols_) {
                actual[i / stride_ * cols_ + col] = widen(host[i]);
            } else if (std::memcmp(&host[i], &poison, sizeof poison) != 0) {
                return std::numeric_limits<double>::infinity();
            }
        }
        return ::worst_error(expected, actual);
    }

private:
    // NaN or -1, and in int8 the value that the quantiser never gives.
    static constexpr int poison_byte = sizeof(T) == 1 ? 0x80 : 0xFF;

    std::size_t size_bytes() const noexcept { return rows_ * stride_ * sizeof(T); }

    std::vector<T> poisoned() const {
        std::vector<T> host(rows_ * stride_);
        std::memset(host.data(), poison_byte, size_bytes());
        return host;
    }

    std::size_t rows_, cols_, stride_;
    doubles values_;
    void *device_ = nullptr;
};

#endif
