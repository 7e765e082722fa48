// measure.hpp: what a launch costs the host, and what memory is in use.
#ifndef MULTI_GPU_MEASURE_HPP
#define MULTI_GPU_MEASURE_HPP

#include "worker.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <unistd.h>
#include <vector>

/// Median time of a launch, of batches that fit the driver's queue.
class batches {
public:
    static constexpr int launches = 256;

    template <class Launch>
    void run(Launch &&launch) {
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < launches; ++i) {
            launch(i);
        }
        const std::chrono::duration<double, std::nano> took =
            std::chrono::steady_clock::now() - begin;
        times_.push_back(took.count() / launches);
    }
    double median() {
        const auto middle = times_.begin() + static_cast<std::ptrdiff_t>(times_.size() / 2);
        std::nth_element(times_.begin(), middle, times_.end());
        return *middle;
    }

private:
    std::vector<double> times_;
};

struct cost {
    double first_ns, second_ns;
};

/// Two kernels' launches on one GPU, batch by batch in turn, so that both see the same clock.
inline cost compare_launches(const worker &gpu, const aotc::kernel &first,
                             const aotc::kernel &second) {
    batches times[2];
    gpu.make_current();
    for (int round = 0; round < 200; ++round) {
        for (int which = 0; which < 2; ++which) {
            const int chosen = (round + which) % 2; // neither is always first
            const aotc::kernel &kernel = chosen == 0 ? first : second;
            times[chosen].run([&](int) { gpu.add(kernel); });
            gpu.synchronize();
        }
    }
    return {times[0].median(), times[1].median()};
}

inline double launches_in_turn(const std::vector<const worker *> &gpus,
                               const aotc::kernel &kernel) {
    batches times;
    for (int round = 0; round < 200; ++round) {
        times.run([&](int i) { gpus[static_cast<std::size_t>(i) % gpus.size()]->add(kernel); });
        for (const worker *gpu : gpus) {
            gpu->synchronize();
        }
    }
    return times.median();
}

struct memory {
    long long host_bytes; // resident
    std::vector<long long> device_bytes;
};

inline memory memory_in_use(int gpus) {
    memory used{};
    long pages = 0;
    if (std::FILE *file = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(file, "%*d %ld", &pages) != 1) {
            pages = 0;
        }
        std::fclose(file);
    }
    used.host_bytes = static_cast<long long>(pages) * sysconf(_SC_PAGESIZE);
    for (int device = 0; device < gpus; ++device) {
        std::size_t free_bytes = 0;
        std::size_t total_bytes = 0;
        check(cudaSetDevice(device));
        check(cudaMemGetInfo(&free_bytes, &total_bytes));
        used.device_bytes.push_back(static_cast<long long>(total_bytes - free_bytes));
    }
    return used;
}

inline double mebibytes(long long bytes) { return static_cast<double>(bytes) / (1 << 20); }

#endif
