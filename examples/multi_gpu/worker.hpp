// worker.hpp: what a server keeps on one GPU: a stream, weights, buffers, a captured graph.
#ifndef MULTI_GPU_WORKER_HPP
#define MULTI_GPU_WORKER_HPP

#include <cuda_runtime_api.h>

#include <aotc/aotc.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

inline void check(cudaError_t status) {
    if (status != cudaSuccess) {
        throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status));
    }
}

/// fp32 memory on the current device.
class buffer {
public:
    explicit buffer(std::size_t count) : count_(count) {
        check(cudaMalloc(&memory_, count * sizeof(float)));
    }
    ~buffer() { cudaFree(memory_); }
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;

    float *get() const noexcept { return static_cast<float *>(memory_); }

    void upload(const std::vector<float> &host, cudaStream_t stream) const {
        check(cudaMemcpyAsync(memory_, host.data(), count_ * sizeof(float), cudaMemcpyHostToDevice,
                              stream));
    }
    std::vector<float> download(cudaStream_t stream) const {
        std::vector<float> host(count_);
        check(cudaMemcpyAsync(host.data(), memory_, count_ * sizeof(float), cudaMemcpyDeviceToHost,
                              stream));
        check(cudaStreamSynchronize(stream));
        return host;
    }
    void poison(cudaStream_t stream) const { // NaN
        check(cudaMemsetAsync(memory_, 0xFF, count_ * sizeof(float), stream));
    }

private:
    std::size_t count_;
    void *memory_ = nullptr;
};

/// One GPU's share of the work: sum = x + weights by pointers, turned = x transposed by tensor maps.
/// Weights differ from GPU to GPU, and all numbers are integers, so results are exact.
///
/// A launch needs no current device: it goes where its stream is. The CUDA runtime API does, so
/// whoever calls anything else here makes the device current.
class worker {
public:
    static constexpr std::int32_t rows = 96;
    static constexpr std::int32_t cols = 160;
    static constexpr std::int32_t count = rows * cols;

    explicit worker(int device) : device_(device), weights_(count) {
        make_current();
        check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        for (std::size_t i = 0; i < weights_.size(); ++i) {
            weights_[i] = static_cast<float>(1000 * (device + 1) + static_cast<int>(i % 13));
        }
        buffers_ = new buffers;
        buffers_->weights.upload(weights_, stream_);
        synchronize();
    }
    ~worker() {
        cudaSetDevice(device_);
        forget_graph();
        delete buffers_;
        cudaStreamDestroy(stream_);
    }
    worker(const worker &) = delete;
    worker &operator=(const worker &) = delete;

    int device() const noexcept { return device_; }
    void make_current() const { check(cudaSetDevice(device_)); }
    void synchronize() const { check(cudaStreamSynchronize(stream_)); }

    /// Upload new inputs and poison the outputs.
    void refill(unsigned seed) {
        make_current();
        x_.resize(count);
        for (std::size_t i = 0; i < x_.size(); ++i) {
            x_[i] = static_cast<float>((i * 7 + seed * 31 + static_cast<unsigned>(device_)) % 997);
        }
        buffers_->x.upload(x_, stream_);
        buffers_->sum.poison(stream_);
        buffers_->turned.poison(stream_);
        synchronize();
    }

    void add(const aotc::kernel &vector_add, std::int32_t n = count) const {
        vector_add.launch(stream_, buffers_->x.get(), buffers_->weights.get(), buffers_->sum.get(),
                          n);
    }

    /// Both kernels, from whatever thread, whatever its current device.
    void launch(const aotc::archive &archive) const {
        const std::int64_t shape[2] = {rows, cols};
        const std::int64_t turned_shape[2] = {cols, rows};
        const std::int64_t strides[2] = {cols, 1};
        const std::int64_t turned_strides[2] = {rows, 1};
        const aotc_tensor x{buffers_->x.get(), 2, 0, shape, strides};
        const aotc_tensor turned{buffers_->turned.get(), 2, 0, turned_shape, turned_strides};
        add(archive.kernel("vector_add"));
        archive.kernel("transpose")
            .launch(stream_, aotc_tensor_arg(&x, AOTC_FP32), aotc_tensor_arg(&turned, AOTC_FP32));
    }

    void capture(const aotc::archive &archive) {
        make_current();
        forget_graph();
        cudaGraph_t captured = nullptr;
        check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
        try {
            launch(archive);
        } catch (...) {
            cudaStreamEndCapture(stream_, &captured);
            cudaGraphDestroy(captured);
            throw;
        }
        check(cudaStreamEndCapture(stream_, &captured));
        const cudaError_t status = cudaGraphInstantiate(&graph_, captured, 0);
        cudaGraphDestroy(captured);
        check(status);
        has_graph_ = true;
    }
    void replay() const {
        make_current();
        check(cudaGraphLaunch(graph_, stream_));
    }
    void forget_graph() {
        if (has_graph_) {
            cudaGraphExecDestroy(graph_);
        }
        has_graph_ = false;
    }

    /// Whether the outputs are exactly what this GPU's inputs and weights give.
    bool is_right() const {
        make_current();
        const std::vector<float> sum = buffers_->sum.download(stream_);
        const std::vector<float> turned = buffers_->turned.download(stream_);
        bool right = true;
        for (std::size_t row = 0; row < rows; ++row) {
            for (std::size_t col = 0; col < cols; ++col) {
                const std::size_t i = row * cols + col;
                right = right && sum[i] == x_[i] + weights_[i] && turned[col * rows + row] == x_[i];
            }
        }
        return right;
    }

private:
    struct buffers {
        buffer x{count}, weights{count}, sum{count}, turned{count};
    };

    int device_;
    cudaStream_t stream_ = nullptr;
    cudaGraphExec_t graph_ = nullptr;
    bool has_graph_ = false;
    std::vector<float> weights_, x_;
    buffers *buffers_ = nullptr;
};

#endif
