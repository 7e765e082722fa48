/* fake_cuda.c: a libcuda.so.1 without a GPU, for tests.
 *
 * One lock around everything but unrecorded launches; fixed tables, no cleverness. What it checks
 * is what a real driver would either refuse or, worse, quietly do slowly: a launch whose code is
 * not loaded yet, a dynamic shared size above the attribute, a stream of another context, a module
 * load in a capture.
 */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "fake_cubin.h"

enum {
    MAX_DEVICES = 16,
    MAX_CONTEXTS = 64,
    MAX_STREAMS = 64,
    MAX_KERNELS = 256,
    MAX_LIBRARIES = 256,
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

struct CUlib_st {
    bool is_alive;
    struct fake_cubin cubin;
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

static struct {
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
} fake;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_ulong launch_count;
static atomic_bool is_recording;
static _Thread_local CUcontext stack[MAX_STACK];
static _Thread_local int stack_size;
static _Thread_local int capture_mode;

__attribute__((format(printf, 1, 2))) static void violate(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (fake.violation[0] == '\0') {
        (void)vsnprintf(fake.violation, sizeof fake.violation, format, arguments);
    }
    va_end(arguments);
}

/* Begin a call: count it, and return what it is scripted to return. The lock is held from here on.
 */
static CUresult enter(const char *symbol) {
    (void)pthread_mutex_lock(&lock);
    int i = 0;
    while (i < fake.called_count && strcmp(fake.called[i], symbol) != 0) {
        ++i;
    }
    if (i == fake.called_count && i < MAX_SYMBOLS) {
        fake.called[fake.called_count++] = symbol;
    }
    fake.calls[i] += 1;
    for (i = 0; i < fake.failure_count; ++i) {
        struct failure *failure = &fake.failures[i];
        if (strcmp(failure->name, symbol) == 0 && failure->skip-- == 0) {
            return failure->result;
        }
    }
    if (strcmp(symbol, "cuInit") != 0 && (!fake.is_initialised || fake.process != getpid())) {
        violate("%s before cuInit, or in a forked process", symbol);
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return CUDA_SUCCESS;
}

static CUresult leave(CUresult result) {
    (void)pthread_mutex_unlock(&lock);
    return result;
}

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

static CUcontext current(void) { return stack_size == 0 ? NULL : stack[stack_size - 1]; }

/* A number for each context, below MAX_CONTEXTS. */
static int context_index(CUcontext context) {
    if (context >= fake.primaries && context < fake.primaries + MAX_DEVICES) {
        return (int)(context - fake.primaries);
    }
    return MAX_DEVICES + (int)(context - fake.contexts);
}

/* ---- entry points ------------------------------------------------------------------------------
 */

static CUresult fake_cuInit(unsigned flags) {
    ENTER("cuInit");
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE, "cuInit: flags");
    if (fake.device_count == 0) {
        return leave(CUDA_ERROR_NO_DEVICE);
    }
    fake.is_initialised = true;
    fake.process = getpid();
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuGetErrorName(CUresult result, const char **text) {
    static _Thread_local char name[32];
    (void)snprintf(name, sizeof name, "CUDA_ERROR_%d", result);
    *text = name;
    return CUDA_SUCCESS;
}

static CUresult fake_cuGetErrorString(CUresult result, const char **text) {
    (void)result;
    *text = "as scripted";
    return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceGetCount(int *count) {
    ENTER("cuDeviceGetCount");
    *count = fake.device_count;
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER("cuDeviceGet");
    REQUIRE(ordinal >= 0 && ordinal < fake.device_count, 101, "cuDeviceGet(%d)", ordinal);
    *device = ordinal;
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    ENTER("cuDeviceGetAttribute");
    REQUIRE(device >= 0 && device < fake.device_count, 101, "cuDeviceGetAttribute: device %d",
            device);
    const struct fake_device *properties = &fake.devices[device];
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = properties->major;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = properties->minor;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = properties->shared_bytes;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = FAKE_CUDA_MULTIPROCESSORS;
        break;
    default:
        REQUIRE(false, CUDA_ERROR_INVALID_VALUE, "cuDeviceGetAttribute: attribute %d", attribute);
    }
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER("cuDevicePrimaryCtxRetain");
    REQUIRE(device >= 0 && device < fake.device_count, 101, "cuDevicePrimaryCtxRetain: device %d",
            device);
    if (!fake.primaries[device].is_alive) {
        fake.primaries[device] = (struct CUctx_st){true, device, ++fake.last_id};
    }
    fake.primary_references[device] += 1;
    *context = &fake.primaries[device];
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuDevicePrimaryCtxRelease(CUdevice device) {
    ENTER("cuDevicePrimaryCtxRelease");
    REQUIRE(device >= 0 && device < fake.device_count && fake.primary_references[device] > 0,
            CUDA_ERROR_INVALID_CONTEXT, "cuDevicePrimaryCtxRelease(%d) without a retain", device);
    fake.primary_references[device] -= 1;
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuCtxGetCurrent(CUcontext *context) {
    if (!atomic_load_explicit(&is_recording, memory_order_relaxed)) {
        *context = current();
        return CUDA_SUCCESS;
    }
    ENTER("cuCtxGetCurrent");
    *context = current();
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuCtxPushCurrent(CUcontext context) {
    ENTER("cuCtxPushCurrent");
    if (context != NULL && !context->is_alive) {
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    REQUIRE(context != NULL && stack_size < MAX_STACK, CUDA_ERROR_INVALID_CONTEXT,
            "cuCtxPushCurrent");
    stack[stack_size++] = context;
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuCtxPopCurrent(CUcontext *context) {
    ENTER("cuCtxPopCurrent");
    REQUIRE(stack_size > 0, CUDA_ERROR_INVALID_CONTEXT, "cuCtxPopCurrent of an empty stack");
    *context = stack[--stack_size];
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuCtxGetDevice(CUdevice *device) {
    ENTER("cuCtxGetDevice");
    REQUIRE(current() != NULL, CUDA_ERROR_INVALID_CONTEXT, "cuCtxGetDevice without a context");
    *device = current()->device;
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuCtxGetId(CUcontext context, unsigned long long *id) {
    ENTER("cuCtxGetId");
    REQUIRE(context != NULL && context->is_alive, CUDA_ERROR_INVALID_CONTEXT, "cuCtxGetId");
    *id = context->id;
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuStreamGetCtx(CUstream stream, CUcontext *context) {
    if (!atomic_load_explicit(&is_recording, memory_order_relaxed)) {
        *context = stream->context;
        return CUDA_SUCCESS;
    }
    ENTER("cuStreamGetCtx");
    if (stream < fake.streams || stream >= fake.streams + fake.stream_count) {
        return leave(CUDA_ERROR_INVALID_HANDLE);
    }
    *context = stream->context;
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER("cuThreadExchangeStreamCaptureMode");
    REQUIRE(*mode >= 0 && *mode <= 2, CUDA_ERROR_INVALID_VALUE, "capture mode %d", *mode);
    const int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return leave(CUDA_SUCCESS);
}

/* What a capture in the global mode forbids. */
static bool is_forbidden(const char *symbol) {
    if (fake.is_capturing && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        fake.is_spoiled = true;
        violate("%s during a capture", symbol);
        return true;
    }
    return false;
}

static CUresult fake_cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options,
                                       void **jit_values, unsigned jit_count, int *options,
                                       void **values, unsigned count) {
    ENTER("cuLibraryLoadData");
    (void)jit_options, (void)jit_values, (void)options, (void)values;
    if (is_forbidden("cuLibraryLoadData")) {
        return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    REQUIRE(jit_count == 0 && count == 0, CUDA_ERROR_INVALID_VALUE, "cuLibraryLoadData: options");
    REQUIRE(fake.library_count < MAX_LIBRARIES, CUDA_ERROR_OUT_OF_MEMORY,
            "more libraries than the fake has");
    struct CUlib_st *loaded = &fake.libraries[fake.library_count];
    REQUIRE(fake_cubin_read(code, &loaded->cubin), CUDA_ERROR_INVALID_IMAGE,
            "cuLibraryLoadData: not a cubin");
    bool runs = false;
    for (int i = 0; i < fake.device_count; ++i) {
        runs = runs || fake.devices[i].major == loaded->cubin.arch / 10;
    }
    REQUIRE(runs, CUDA_ERROR_NO_BINARY_FOR_GPU, "cuLibraryLoadData: a cubin for sm_%d",
            loaded->cubin.arch);
    loaded->is_alive = true;
    fake.library_count += 1;
    *library = loaded;
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuLibraryUnload(CUlibrary library) {
    ENTER("cuLibraryUnload");
    REQUIRE(library->is_alive, CUDA_ERROR_INVALID_HANDLE, "cuLibraryUnload twice");
    library->is_alive = false;
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    ENTER("cuLibraryGetKernel");
    REQUIRE(library->is_alive, CUDA_ERROR_INVALID_HANDLE,
            "cuLibraryGetKernel of an unloaded library");
    const struct fake_function *function = fake_cubin_find(&library->cubin, name);
    if (function == NULL) {
        return leave(CUDA_ERROR_NOT_FOUND);
    }
    for (int i = 0; i < fake.kernel_count; ++i) {
        if (fake.kernels[i].library == library && fake.kernels[i].function == function) {
            *kernel = &fake.kernels[i];
            return leave(CUDA_SUCCESS);
        }
    }
    REQUIRE(fake.kernel_count < MAX_KERNELS, CUDA_ERROR_OUT_OF_MEMORY,
            "more kernels than the fake has");
    fake.kernels[fake.kernel_count] = (struct CUkern_st){.library = library, .function = function};
    *kernel = &fake.kernels[fake.kernel_count++];
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    ENTER("cuKernelGetFunction");
    REQUIRE(current() != NULL, CUDA_ERROR_INVALID_CONTEXT, "cuKernelGetFunction without a context");
    REQUIRE(fake.devices[current()->device].major == kernel->library->cubin.arch / 10,
            CUDA_ERROR_NO_BINARY_FOR_GPU, "cuKernelGetFunction: wrong GPU");
    *function = (CUfunction)kernel;
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuKernelSetAttribute(int attribute, int value, CUkernel kernel,
                                          CUdevice device) {
    ENTER("cuKernelSetAttribute");
    REQUIRE(device >= 0 && device < fake.device_count, 101, "cuKernelSetAttribute: device %d",
            device);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        REQUIRE(value >= 0 && value + kernel->function->static_shared_bytes <=
                                  fake.devices[device].shared_bytes,
                CUDA_ERROR_INVALID_VALUE, "cuKernelSetAttribute: %d bytes of shared memory", value);
        kernel->max_dynamic_shared[device] = value;
        break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        kernel->non_portable_cluster[device] = value != 0;
        break;
    default:
        REQUIRE(false, CUDA_ERROR_INVALID_VALUE, "cuKernelSetAttribute: attribute %d", attribute);
    }
    return leave(CUDA_SUCCESS);
}

static CUresult load_function(CUfunction function, const char *symbol) {
    if (is_forbidden(symbol)) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    ((CUkernel)function)->is_loaded[context_index(current())] = true;
    return CUDA_SUCCESS;
}

static CUresult fake_cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    ENTER("cuFuncGetAttribute");
    *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return leave(load_function(function, "cuFuncGetAttribute"));
}

static CUresult fake_cuFuncLoad(CUfunction function) {
    ENTER("cuFuncLoad");
    return leave(load_function(function, "cuFuncLoad"));
}

static CUresult fake_cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset,
                                          size_t *size_bytes) {
    ENTER("cuKernelGetParamInfo");
    if (index >= kernel->function->param_count) {
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    *offset = kernel->function->params[index].offset;
    *size_bytes = kernel->function->params[index].size_bytes;
    return leave(CUDA_SUCCESS);
}

static CUresult fake_cuTensorMapEncodeTiled(CUtensorMap *map, int data_type, unsigned rank,
                                            void *address, const uint64_t *dims,
                                            const uint64_t *strides, const uint32_t *box,
                                            const uint32_t *element_strides, int interleave,
                                            int swizzle, int l2_promotion, int oob_fill) {
    ENTER("cuTensorMapEncodeTiled");
    (void)element_strides, (void)interleave, (void)l2_promotion, (void)oob_fill;
    REQUIRE((uintptr_t)map % 64 == 0, CUDA_ERROR_INVALID_VALUE,
            "cuTensorMapEncodeTiled: map not aligned");
    REQUIRE((uintptr_t)address % 16 == 0, CUDA_ERROR_INVALID_VALUE,
            "cuTensorMapEncodeTiled: address");
    memset(map, 0, sizeof *map);
    map->opaque[0] = (uint64_t)(uintptr_t)address;
    map->opaque[1] = rank | (uint64_t)data_type << 8 | (uint64_t)swizzle << 16;
    for (unsigned i = 0; i < rank; ++i) {
        REQUIRE(dims[i] >= 1 && box[i] >= 1 && box[i] <= 256, CUDA_ERROR_INVALID_VALUE,
                "cuTensorMapEncodeTiled: dimension %u", i);
        map->opaque[2 + i] = dims[i];
        map->opaque[11 + i] = box[i];
        if (i + 1 < rank) {
            REQUIRE(strides[i] % 16 == 0 && strides[i] < UINT64_C(1) << 40,
                    CUDA_ERROR_INVALID_VALUE, "cuTensorMapEncodeTiled: stride %u", i);
            map->opaque[7 + i] = strides[i];
        }
    }
    return leave(CUDA_SUCCESS);
}

/* ---- launching
 * ------------------------------------------------------------------------------------ */

static CUresult read_attributes(const CUlaunchConfig *config, struct fake_launch *launch) {
    launch->cluster[0] = launch->cluster[1] = launch->cluster[2] = 1;
    for (unsigned i = 0; i < config->attribute_count; ++i) {
        const CUlaunchAttribute *attribute = &config->attributes[i];
        switch (attribute->id) {
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            launch->cluster[0] = attribute->value.cluster.x;
            launch->cluster[1] = attribute->value.cluster.y;
            launch->cluster[2] = attribute->value.cluster.z;
            break;
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            launch->is_pdl = attribute->value.programmatic_stream_serialization;
            break;
        default:
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

/* Dynamic shared memory that a launch may ask for. */
static int64_t allowed_shared(const struct CUkern_st *kernel, int device) {
    return kernel->max_dynamic_shared[device] != 0
               ? kernel->max_dynamic_shared[device]
               : DEFAULT_SHARED_BYTES - kernel->function->static_shared_bytes;
}

/* How many blocks the multiprocessors hold; shared memory bounds it, and the fake's own limit. */
static CUresult count_blocks(const char *symbol, CUfunction function, size_t dynamic_shared_bytes,
                             int *count) {
    const struct CUkern_st *kernel = (CUkernel)function;
    if (current() == NULL || !kernel->is_loaded[context_index(current())]) {
        violate("%s of %s: not loaded in the context before", symbol, kernel->function->name);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const int device = current()->device;
    const int bytes = (int)dynamic_shared_bytes + kernel->function->static_shared_bytes;
    int held = FAKE_CUDA_MAX_BLOCKS;
    if ((int64_t)dynamic_shared_bytes > allowed_shared(kernel, device)) {
        held = 0;
    } else if (bytes != 0 && fake.devices[device].shared_bytes / bytes < held) {
        held = fake.devices[device].shared_bytes / bytes;
    }
    *count = held * FAKE_CUDA_MULTIPROCESSORS;
    return CUDA_SUCCESS;
}

static CUresult fake_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction function,
                                                                 int block_threads,
                                                                 size_t dynamic_shared_bytes) {
    static const char symbol[] = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
    ENTER(symbol);
    REQUIRE(block_threads >= 1 && block_threads <= 1024, CUDA_ERROR_INVALID_VALUE, "%s: %d threads",
            symbol, block_threads);
    const CUresult result = count_blocks(symbol, function, dynamic_shared_bytes, count);
    *count /= FAKE_CUDA_MULTIPROCESSORS;
    return leave(result);
}

static CUresult fake_cuOccupancyMaxActiveClusters(int *count, CUfunction function,
                                                  const CUlaunchConfig *config) {
    static const char symbol[] = "cuOccupancyMaxActiveClusters";
    ENTER(symbol);
    struct fake_launch asked = {.is_pdl = 0};
    REQUIRE(read_attributes(config, &asked) == CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE,
            "%s: attribute", symbol);
    const unsigned size = asked.cluster[0] * asked.cluster[1] * asked.cluster[2];
    REQUIRE(size > 1 && config->grid_x % asked.cluster[0] == 0 &&
                config->grid_y % asked.cluster[1] == 0 && config->grid_z % asked.cluster[2] == 0,
            CUDA_ERROR_INVALID_CLUSTER_SIZE, "%s: a cluster of %u", symbol, size);
    const CUresult result = count_blocks(symbol, function, config->shared_bytes, count);
    if (size > 8 && !((CUkernel)function)->non_portable_cluster[current()->device]) {
        *count = 0;
    }
    *count /= (int)size;
    return leave(result);
}

static CUresult fake_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                                      void **params, void **extra) {
    const CUkernel kernel = (CUkernel)function;
    if (!atomic_load_explicit(&is_recording, memory_order_relaxed)) {
        (void)atomic_fetch_add_explicit(&launch_count, 1, memory_order_relaxed);
        return CUDA_SUCCESS;
    }
    ENTER("cuLaunchKernelEx");
    struct fake_launch launch = {.stream = config->stream, .shared_bytes = config->shared_bytes};
    const unsigned grid[3] = {config->grid_x, config->grid_y, config->grid_z};
    const unsigned block[3] = {config->block_x, config->block_y, config->block_z};
    memcpy(launch.grid, grid, sizeof grid);
    memcpy(launch.block, block, sizeof block);
    launch.context = config->stream == NULL ? current() : config->stream->context;
    REQUIRE(launch.context != NULL && launch.context->is_alive, CUDA_ERROR_INVALID_CONTEXT,
            "launch: context");
    launch.device = launch.context->device;
    REQUIRE(kernel->library->is_alive, CUDA_ERROR_INVALID_HANDLE, "launch: unloaded library");
    REQUIRE(kernel->is_loaded[context_index(launch.context)], CUDA_ERROR_INVALID_HANDLE,
            "launch of %s: not loaded in the context before", kernel->function->name);
    REQUIRE(extra == NULL, CUDA_ERROR_INVALID_VALUE, "launch: extra");
    REQUIRE(read_attributes(config, &launch) == CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE,
            "launch: attribute");
    unsigned cluster = 1;
    for (unsigned i = 0; i < 3; ++i) {
        REQUIRE(grid[i] >= 1 && grid[i] <= (i == 0 ? 0x7FFFFFFFu : 65535u),
                CUDA_ERROR_INVALID_VALUE, "launch: grid[%u] = %u", i, grid[i]);
        REQUIRE(launch.cluster[i] >= 1 && grid[i] % launch.cluster[i] == 0,
                CUDA_ERROR_INVALID_VALUE, "launch: cluster[%u] = %u", i, launch.cluster[i]);
        cluster *= launch.cluster[i];
    }
    REQUIRE(block[0] * block[1] * block[2] >= 1 && block[0] * block[1] * block[2] <= 1024,
            CUDA_ERROR_INVALID_VALUE, "launch: block");
    REQUIRE(cluster <= 8 || kernel->non_portable_cluster[launch.device], CUDA_ERROR_INVALID_VALUE,
            "launch: a cluster of %u without the attribute", cluster);
    const int64_t allowed = allowed_shared(kernel, launch.device);
    REQUIRE((int64_t)config->shared_bytes <= allowed, CUDA_ERROR_INVALID_VALUE,
            "launch: %u bytes of shared memory, %d allowed", config->shared_bytes, (int)allowed);
    for (size_t i = 0; i < kernel->function->param_count; ++i) {
        const struct fake_param *param = &kernel->function->params[i];
        memcpy(launch.params + param->offset, params[i], param->size_bytes);
        launch.param_bytes = param->offset + param->size_bytes;
    }
    (void)snprintf(launch.symbol, sizeof launch.symbol, "%s", kernel->function->name);
    fake.last = launch;
    (void)atomic_fetch_add_explicit(&launch_count, 1, memory_order_relaxed);
    return leave(CUDA_SUCCESS);
}

/* ---- what programs around the runtime use: the benchmark, examples
 * ----------------------------------- */

static CUresult fake_cuCtxSetCurrent(CUcontext context) {
    fake_cuda_set_current(context);
    return CUDA_SUCCESS;
}

static CUresult fake_cuStreamCreate(CUstream *stream, unsigned flags) {
    (void)flags;
    *stream = fake_cuda_create_stream(current());
    return *stream == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult fake_cuStreamSynchronize(CUstream stream) {
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult fake_cuMemAlloc(uint64_t *address, size_t size_bytes) {
    void *memory = aligned_alloc(256, (size_bytes + 255) / 256 * 256);
    *address = (uint64_t)(uintptr_t)memory;
    return memory == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult fake_cuMemFree(uint64_t address) {
    free((void *)(uintptr_t)address);
    return CUDA_SUCCESS;
}

/* ---- finding entry points
 * ------------------------------------------------------------------------------ */

/* Built from the runtime's own table, so the signatures are checked by the compiler. */
static const struct aotci_driver entry_points = {
#define ENTRY_POINT(member, symbol, min_version, required, parameters) .member = fake_##symbol,
    AOTCI_DRIVER_FUNCTIONS(ENTRY_POINT)
#undef ENTRY_POINT
};

__attribute__((visibility("default"))) CUresult cuDriverGetVersion(int *version) {
    (void)pthread_mutex_lock(&lock);
    *version = fake.version;
    return leave(CUDA_SUCCESS);
}

__attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char *symbol,
                                                                    void **function, int version,
                                                                    uint64_t flags,
                                                                    int *query_result) {
    *function = NULL;
    (void)flags;
    (void)pthread_mutex_lock(&lock);
    if (version > fake.version) {
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (int i = 0; i < fake.hidden_count; ++i) {
        if (strcmp(fake.hidden[i], symbol) == 0) {
            *query_result = 1;
            return leave(CUDA_SUCCESS);
        }
    }
#define FIND(member, name, min_version, required, parameters)                                      \
    if (strcmp(symbol, #name) == 0 && fake.version >= (min_version)) {                             \
        memcpy(function, &entry_points.member, sizeof *function);                                  \
    }
    AOTCI_DRIVER_FUNCTIONS(FIND)
#undef FIND
#define FIND_EXTRA(name)                                                                           \
    if (strcmp(symbol, #name) == 0) {                                                              \
        CUresult (*found)() = (CUresult (*)())fake_##name;                                         \
        memcpy(function, &found, sizeof *function);                                                \
    }
    FIND_EXTRA(cuCtxSetCurrent)
    FIND_EXTRA(cuStreamCreate)
    FIND_EXTRA(cuStreamSynchronize)
    FIND_EXTRA(cuMemAlloc)
    FIND_EXTRA(cuMemFree)
#undef FIND_EXTRA
    *query_result = *function == NULL;
    return leave(CUDA_SUCCESS);
}

/* ---- control
 * ------------------------------------------------------------------------------------------- */

static void read_devices(const char *text) {
    fake.device_count = 0;
    while (*text != '\0' && fake.device_count < MAX_DEVICES) {
        struct fake_device *device = &fake.devices[fake.device_count];
        int used = 0;
        if (sscanf(text, "%d.%d:%d%n", &device->major, &device->minor, &device->shared_bytes,
                   &used) != 3) {
            return;
        }
        fake.device_count += 1;
        text += used;
        text += *text == ',';
    }
}

static void read_failures(const char *text) {
    char symbol[64];
    int skip = 0;
    int result = 0;
    int used = 0;
    while (sscanf(text, "%63[^:]:%d:%d%n", symbol, &skip, &result, &used) == 3) {
        fake_cuda_fail(symbol, skip, result);
        text += used;
        text += *text == ',';
    }
}

#define CONTROL __attribute__((visibility("default")))

CONTROL void fake_cuda_reset(void) {
    const char *devices = getenv("FAKE_CUDA_DEVICES");
    const char *version = getenv("FAKE_CUDA_DRIVER_VERSION");
    const char *failures = getenv("FAKE_CUDA_FAIL");
    const char *recording = getenv("FAKE_CUDA_RECORD");
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < fake.library_count; ++i) {
        fake_cubin_free(&fake.libraries[i].cubin);
    }
    memset(&fake, 0, sizeof fake);
    fake.version = version == NULL ? 13000 : atoi(version);
    read_devices(devices == NULL ? "9.0:232448" : devices);
    atomic_store(&launch_count, 0);
    atomic_store(&is_recording, recording == NULL || strcmp(recording, "0") != 0);
    stack_size = 0;
    capture_mode = 0;
    (void)pthread_mutex_unlock(&lock);
    read_failures(failures == NULL ? "" : failures);
}

__attribute__((constructor)) static void begin(void) { fake_cuda_reset(); }
__attribute__((destructor)) static void end(void) {
    for (int i = 0; i < fake.library_count; ++i) {
        fake_cubin_free(&fake.libraries[i].cubin);
    }
}

CONTROL void fake_cuda_set_driver_version(int version) { fake.version = version; }

CONTROL void fake_cuda_set_devices(const struct fake_device *devices, int count) {
    fake.device_count = count;
    for (int i = 0; i < count; ++i) {
        fake.devices[i] = devices[i];
    }
}

CONTROL void fake_cuda_fail(const char *symbol, int skip, int result) {
    (void)pthread_mutex_lock(&lock);
    if (fake.failure_count < MAX_FAILURES) {
        struct failure *failure = &fake.failures[fake.failure_count++];
        (void)snprintf(failure->name, sizeof failure->name, "%s", symbol);
        failure->skip = skip;
        failure->result = result;
    }
    (void)pthread_mutex_unlock(&lock);
}

CONTROL void fake_cuda_hide(const char *symbol) {
    (void)snprintf(fake.hidden[fake.hidden_count++], sizeof *fake.hidden, "%s", symbol);
}

CONTROL void fake_cuda_begin_capture(void) {
    fake.is_capturing = true;
    fake.is_spoiled = false;
}

CONTROL int fake_cuda_end_capture(void) {
    fake.is_capturing = false;
    return !fake.is_spoiled;
}

CONTROL void fake_cuda_set_recording(int on) { atomic_store(&is_recording, on != 0); }

CONTROL struct CUctx_st *fake_cuda_create_context(int device) {
    if (device >= fake.device_count || fake.context_count >= MAX_CONTEXTS - MAX_DEVICES) {
        return NULL;
    }
    struct CUctx_st *context = &fake.contexts[fake.context_count++];
    *context = (struct CUctx_st){true, device, ++fake.last_id};
    return context;
}

CONTROL struct CUctx_st *fake_cuda_primary_context(int device) { return &fake.primaries[device]; }

CONTROL void fake_cuda_destroy_context(struct CUctx_st *context) { context->is_alive = false; }

CONTROL void fake_cuda_replace_context(struct CUctx_st *context) {
    *context = (struct CUctx_st){true, context->device, ++fake.last_id};
    for (int i = 0; i < fake.kernel_count; ++i) {
        fake.kernels[i].is_loaded[context_index(context)] = false;
    }
}

CONTROL void fake_cuda_set_current(struct CUctx_st *context) {
    stack_size = context != NULL;
    stack[0] = context;
}

CONTROL struct CUstream_st *fake_cuda_create_stream(struct CUctx_st *context) {
    if (context == NULL || fake.stream_count == MAX_STREAMS) {
        return NULL;
    }
    fake.streams[fake.stream_count].context = context;
    return &fake.streams[fake.stream_count++];
}

CONTROL const char *fake_cuda_violation(void) {
    return fake.violation[0] == '\0' ? NULL : fake.violation;
}

CONTROL unsigned long fake_cuda_calls(const char *symbol) {
    for (int i = 0; i < fake.called_count; ++i) {
        if (strcmp(fake.called[i], symbol) == 0) {
            return fake.calls[i];
        }
    }
    return 0;
}

CONTROL unsigned long fake_cuda_launches(void) { return atomic_load(&launch_count); }

CONTROL void fake_cuda_last_launch(struct fake_launch *launch) { *launch = fake.last; }

CONTROL int fake_cuda_live_libraries(void) {
    int count = 0;
    for (int i = 0; i < fake.library_count; ++i) {
        count += fake.libraries[i].is_alive;
    }
    return count;
}

CONTROL int fake_cuda_retained_contexts(void) {
    int count = 0;
    for (int i = 0; i < MAX_DEVICES; ++i) {
        count += fake.primary_references[i];
    }
    return count;
}
