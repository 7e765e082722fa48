/* fake_state.h: the state of the fake driver, and the frame of its entry points.
 *
 * One lock around everything but unrecorded launches; fixed tables, no cleverness. An entry point
 * is a function `fake_SYMBOL`; all are declared from the runtime's own table, so the compiler
 * checks their signatures.
 *
 * Invariant: between ENTER and leave the lock is held, and every return in between goes through
 * leave.
 */
#ifndef FAKE_STATE_H
#define FAKE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "driver.h"
#include "fake_cubin.h"
#include "fake_cuda.h"

enum {
    MAX_DEVICES = 16,
    MAX_CONTEXTS = 64,
    MAX_STREAMS = 64,
    MAX_KERNELS = 256,
    MAX_LIBRARIES = 256,
    MAX_POOLS = 64,
    MAX_PIECES = 64,
    MAX_FAILURES = 16,
    MAX_SYMBOLS = 64,
    MAX_STACK = 16,
    DEFAULT_SHARED_BYTES = 48 << 10,
};

struct CUctx_st {
    bool is_alive;
    int device;
    unsigned long long id;
};

struct CUstream_st {
    CUcontext context;
};

/* A library, or a module, which belongs to one context. */
struct CUlib_st {
    bool is_alive;
    CUcontext context; /* NULL: a library */
    struct fake_cubin cubin;
};

struct CUmemPoolHandle_st {
    bool is_alive;
    int device;
};

/* An allocation of a pool, in use until it is freed. */
struct fake_piece {
    CUdeviceptr address;
    size_t size_bytes;
    CUstream stream;
};

struct CUkern_st {
    CUlibrary library;
    const struct fake_function *function;
    int max_dynamic_shared[MAX_DEVICES];
    bool non_portable_cluster[MAX_DEVICES];
    bool is_loaded[MAX_CONTEXTS];
};

struct failure {
    char name[64];
    int skip;
    CUresult result;
};

struct fake_state {
    int version;
    int device_count;
    struct fake_device devices[MAX_DEVICES];
    struct CUctx_st primaries[MAX_DEVICES];
    int primary_references[MAX_DEVICES];
    struct CUctx_st contexts[MAX_CONTEXTS];
    int context_count;
    unsigned long long last_id;
    struct CUstream_st streams[MAX_STREAMS];
    int stream_count;
    struct CUlib_st libraries[MAX_LIBRARIES];
    int library_count;
    struct CUkern_st kernels[MAX_KERNELS];
    int kernel_count;
    struct CUmemPoolHandle_st pools[MAX_POOLS];
    struct fake_piece pieces[MAX_PIECES];
    unsigned long piece_count; /* ever made */
    struct failure failures[MAX_FAILURES];
    int failure_count;
    char hidden[MAX_SYMBOLS][64];
    int hidden_count;
    const char *called[MAX_SYMBOLS];
    unsigned long calls[MAX_SYMBOLS];
    int called_count;
    bool is_capturing, is_spoiled;
    bool is_initialised;
    pid_t process;
    char violation[512];
    struct fake_launch last;
    fake_kernel *run; /* in place of kernels, or NULL */
};

extern struct fake_state fake;
extern pthread_mutex_t lock;
extern atomic_ulong launch_count;
extern atomic_bool is_recording;
extern _Thread_local CUcontext stack[MAX_STACK];
extern _Thread_local int stack_size;
extern _Thread_local int capture_mode;
extern _Thread_local bool is_thread_capturing, is_thread_spoiled;

/* Record a violation, unless there is one. */
__attribute__((format(printf, 1, 2))) void violate(const char *format, ...);

/* Begin a call: count it, and return its scripted result. The lock is held from here on.
 */
CUresult enter(const char *symbol);
/* End a call: release the lock, and return `result`. */
CUresult leave(CUresult result);

#define ENTER(symbol)                                                                              \
    do {                                                                                           \
        const CUresult scripted = enter(symbol);                                                   \
        if (scripted != CUDA_SUCCESS) {                                                            \
            return leave(scripted);                                                                \
        }                                                                                          \
    } while (0)

#define REQUIRE(condition, code, ...)                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            violate(__VA_ARGS__);                                                                  \
            return leave(code);                                                                    \
        }                                                                                          \
    } while (0)

/* The context on top of this thread's stack, or NULL. */
CUcontext current(void);

/* A number for each context, below MAX_CONTEXTS. */
int context_index(CUcontext context);

/* Free the code in a context, which is destroyed. */
void forget_code(CUcontext context);

#define DECLARE(member, group, symbol, min_version, required, parameters)                                 \
    CUresult fake_##symbol parameters;
AOTCI_DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE

/* For programs around the runtime: the benchmark, examples, `aotc doctor`. */
CUresult fake_cuCtxSetCurrent(CUcontext context);
CUresult fake_cuStreamCreate(CUstream *stream, unsigned flags);
CUresult fake_cuStreamSynchronize(CUstream stream);
CUresult fake_cuMemAlloc(uint64_t *address, size_t size_bytes);
CUresult fake_cuMemFree(uint64_t address);
CUresult fake_cuDeviceGetName(char *name, int size_bytes, CUdevice device);
CUresult fake_cuDeviceTotalMem(size_t *size_bytes, CUdevice device);
CUresult fake_cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer);

/* For measurements: see fake_timing.c. */
CUresult fake_cuCtxSynchronize(void);
CUresult fake_cuMemcpyHtoD(uint64_t target, const void *source, size_t size_bytes);
CUresult fake_cuMemcpyDtoH(void *target, uint64_t source, size_t size_bytes);
CUresult fake_cuMemcpyDtoD(uint64_t target, uint64_t source, size_t size_bytes);
CUresult fake_cuMemsetD8Async(uint64_t target, unsigned char value, size_t count, CUstream stream);
CUresult fake_cuEventCreate(void **event, unsigned flags);
CUresult fake_cuEventDestroy(void *event);
CUresult fake_cuEventRecord(void *event, CUstream stream);
CUresult fake_cuEventElapsedTime(float *milliseconds, void *start, void *end);

/* Advance the clock by a launch, and run its kernel's script. */
void fake_pretend(const struct fake_launch *launch);

#endif
