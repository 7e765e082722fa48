// main.cpp: one archive on every GPU of the host, as a server has it, and what that costs.
//
//     multi_gpu ARCHIVE [--launches N] [--gpus N]
//
// Launches from one thread a GPU and from one thread on all, in streams and in graphs, while another
// thread opens, loads and releases a second archive; takes each GPU out of the set and back; then
// measures launches, and memory before and after N of them. Exits with 0 if every result was right
// and no memory was lost.
#include "measure.hpp"
#include "worker.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace {

using workers = std::vector<std::unique_ptr<worker>>;

constexpr unsigned rounds = 50;

workers make_workers(int gpus) {
    workers made;
    for (int device = 0; device < gpus; ++device) {
        made.push_back(std::make_unique<worker>(device));
    }
    return made;
}

/// How many results of a phase were right; threads add to it.
class tally {
public:
    void add(bool right) {
        const std::lock_guard<std::mutex> guard(lock_);
        (right ? right_ : wrong_) += 1;
    }
    void fail(const char *what) {
        const std::lock_guard<std::mutex> guard(lock_);
        std::fprintf(stderr, "%s\n", what);
        wrong_ += 1;
    }
    bool report(const char *phase) const {
        std::printf("%-44s %-5s (%u of %u)\n", phase, wrong_ == 0 ? "right" : "WRONG", right_,
                    right_ + wrong_);
        return wrong_ == 0;
    }

private:
    std::mutex lock_;
    unsigned right_ = 0, wrong_ = 0;
};

std::thread start(tally &results, std::function<void()> work) {
    return std::thread([&results, work = std::move(work)] {
        try {
            work();
        } catch (const std::exception &error) {
            results.fail(error.what());
        }
    });
}

/// In a stream, then captured and replayed on new inputs.
void serve(worker &gpu, const aotc::archive &archive, tally &results) {
    for (unsigned round = 0; round < rounds; ++round) {
        gpu.refill(round);
        gpu.launch(archive);
        results.add(gpu.is_right());
        if (round % 10 == 0) {
            gpu.capture(archive);
        }
        gpu.refill(round + 1000);
        gpu.replay();
        results.add(gpu.is_right());
    }
}

/// Open, load, launch and release a second archive, over and over, until the others are done.
void load_another(const std::string &path, const workers &gpus, const std::atomic<bool> &is_over,
                  tally &results) {
    unsigned round = 0;
    do {
        aotc::archive archive = aotc::archive::open(path);
        for (const auto &gpu : gpus) {
            archive.load(nullptr, gpu->device());
            gpu->refill(round);
            gpu->launch(archive);
            results.add(gpu->is_right());
            archive.unload(gpu->device());
        }
        ++round;
    } while (!is_over);
}

bool thread_a_gpu(const aotc::archive &archive, const std::string &path, const workers &gpus) {
    tally served;
    tally other;
    std::atomic<bool> is_over{false};
    const workers others = make_workers(static_cast<int>(gpus.size()));
    std::thread loader = start(other, [&] { load_another(path, others, is_over, other); });
    std::vector<std::thread> threads;
    for (const auto &gpu : gpus) {
        threads.push_back(start(served, [&] { serve(*gpu, archive, served); }));
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    is_over = true;
    loader.join();
    const bool is_right = served.report("a thread for each GPU, streams and graphs");
    return other.report("a second archive meanwhile") && is_right;
}

bool one_thread(const aotc::archive &archive, const workers &gpus) {
    tally results;
    for (const auto &gpu : gpus) {
        gpu->capture(archive);
    }
    for (unsigned round = 0; round < rounds; ++round) {
        const bool in_graph = round % 2 != 0;
        for (const auto &gpu : gpus) {
            gpu->refill(round);
        }
        for (const auto &gpu : gpus) { // launches need no change of the current device
            in_graph ? gpu->replay() : gpu->launch(archive);
        }
        for (const auto &gpu : gpus) {
            results.add(gpu->is_right());
        }
    }
    return results.report("one thread on all GPUs in turn");
}

/// Whether a launch is refused, as it must be where nothing is loaded.
bool is_refused(const worker &gpu, const aotc::archive &archive) {
    try {
        gpu.launch(archive);
        return false;
    } catch (const aotc::error &error) {
        return error.status() == AOTC_ERROR_ARG || error.status() == AOTC_ERROR_STATE;
    }
}

bool leave_and_return(aotc::archive &archive, const workers &gpus) {
    tally results;
    for (unsigned round = 0; round < 10; ++round) {
        for (const auto &leaving : gpus) {
            leaving->make_current();
            leaving->synchronize();
            leaving->forget_graph(); // it holds launches of code that goes
            archive.unload(leaving->device());
            results.add(is_refused(*leaving, archive));
            for (const auto &gpu : gpus) {
                if (gpu != leaving) {
                    gpu->refill(round);
                    gpu->launch(archive);
                    results.add(gpu->is_right());
                }
            }
            archive.load(nullptr, leaving->device());
            leaving->refill(round);
            leaving->launch(archive);
            results.add(leaving->is_right());
        }
    }
    return results.report("each GPU leaves the set and comes back");
}

/// Launch cost with the archive on all GPUs, compared with an archive on one alone.
void report_cost(const aotc::archive &archive, const std::string &path, const workers &gpus) {
    for (const auto &gpu : gpus) {
        aotc::archive alone = aotc::archive::open(path);
        alone.load(nullptr, gpu->device());
        const cost cost = compare_launches(*gpu, alone.kernel("vector_add"),
                                           archive.kernel("vector_add"));
        const double ratio = cost.second_ns / cost.first_ns;
        std::printf("GPU %d: %.0f ns a launch alone, %.0f ns with all loaded: %+.1f %%%s\n",
                    gpu->device(), cost.first_ns, cost.second_ns, 100.0 * (ratio - 1.0),
                    ratio > 1.05 || ratio < 0.95 ? " (more than 5 %)" : "");
    }
    std::vector<const worker *> all;
    for (const auto &gpu : gpus) {
        all.push_back(gpu.get());
    }
    std::printf("all GPUs in turn: %.0f ns a launch\n",
                launches_in_turn(all, archive.kernel("vector_add")));
}

/// Launch `launches` times over all GPUs, with sizes that fill the table of kept launches.
bool keep_memory(const aotc::archive &archive, const workers &gpus, unsigned long launches) {
    const aotc::kernel kernel = archive.kernel("vector_add");
    const auto launch = [&](unsigned long count) {
        for (unsigned long i = 0; i < count; ++i) {
            gpus[i % gpus.size()]->add(kernel, 1 + static_cast<std::int32_t>(i % 4999));
            if (i % 512 == 511) {
                for (const auto &gpu : gpus) {
                    gpu->synchronize();
                }
            }
        }
        for (const auto &gpu : gpus) {
            gpu->synchronize();
        }
    };
    launch(20000); // tables that are touched as they fill
    const memory before = memory_in_use(static_cast<int>(gpus.size()));
    launch(launches);
    const memory after = memory_in_use(static_cast<int>(gpus.size()));
    std::printf("memory after %lu launches: host %+.1f MiB (%.1f)", launches,
                mebibytes(after.host_bytes - before.host_bytes), mebibytes(after.host_bytes));
    bool is_kept = after.host_bytes - before.host_bytes < 2 << 20;
    for (std::size_t i = 0; i < gpus.size(); ++i) {
        const long long grown = after.device_bytes[i] - before.device_bytes[i];
        std::printf(", GPU %zu %+.1f MiB (%.1f)", i, mebibytes(grown),
                    mebibytes(after.device_bytes[i]));
        is_kept = is_kept && grown <= 0;
    }
    std::printf("%s\n", is_kept ? "" : ": GROWN");
    return is_kept;
}

bool run(const std::string &path, unsigned long launches, int gpu_count) {
    aotc::archive archive = aotc::archive::open(path);
    for (int device = 0; device < gpu_count; ++device) {
        archive.load(nullptr, device);
    }
    std::printf("%s on %d GPU%s\n", path.c_str(), gpu_count, gpu_count == 1 ? "" : "s");
    const workers gpus = make_workers(gpu_count);
    bool is_right = thread_a_gpu(archive, path, gpus);
    is_right = one_thread(archive, gpus) && is_right;
    is_right = leave_and_return(archive, gpus) && is_right;
    report_cost(archive, path, gpus);
    return keep_memory(archive, gpus, launches) && is_right;
}

} // namespace

int main(int argc, char **argv) {
    const char *path = nullptr;
    unsigned long launches = 1000000;
    int gpus = 0;
    bool is_usage = false;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--launches") == 0 && i + 1 < argc) {
            launches = std::strtoul(argv[++i], nullptr, 10);
        } else if (std::strcmp(argv[i], "--gpus") == 0 && i + 1 < argc) {
            gpus = std::atoi(argv[++i]);
        } else if (path == nullptr && argv[i][0] != '-') {
            path = argv[i];
        } else {
            is_usage = true;
        }
    }
    if (path == nullptr || is_usage) {
        std::fprintf(stderr, "usage: %s ARCHIVE [--launches N] [--gpus N]\n", argv[0]);
        return 2;
    }
    try {
        if (gpus <= 0) {
            check(cudaGetDeviceCount(&gpus));
        }
        return run(path, launches, gpus) ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
