/* fake_cuda.c: a libcuda.so.1 without a GPU, for tests.
 *
 * Its state, counting of calls and scripted failures, lookup of entry points, and the tests'
 * controls; the entry points are in fake_contexts.c and fake_launch.c. It checks for calls that a
 * real driver would either refuse or, worse, quietly do slowly: a launch before its code is loaded,
 * a dynamic shared size above the attribute, a stream of another context, a module load in a
 * capture.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_state.h"

struct fake_state fake;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
atomic_ulong launch_count;
atomic_bool is_recording;
_Thread_local CUcontext stack[MAX_STACK];
_Thread_local int stack_size;
_Thread_local int capture_mode;
_Thread_local bool is_thread_capturing, is_thread_spoiled;

void violate(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (fake.violation[0] == '\0') {
        (void)vsnprintf(fake.violation, sizeof fake.violation, format, arguments);
    }
    va_end(arguments);
}

CUresult enter(const char *symbol) {
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
        /* Before initialization, only the query for a context is allowed. */
        if (fake.is_initialised || strcmp(symbol, "cuCtxGetCurrent") != 0) {
            violate("%s before cuInit, or in a forked process", symbol);
        }
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return CUDA_SUCCESS;
}

CUresult leave(CUresult result) {
    (void)pthread_mutex_unlock(&lock);
    return result;
}

CUcontext current(void) { return stack_size == 0 ? NULL : stack[stack_size - 1]; }

int context_index(CUcontext context) {
    if (context >= fake.primaries && context < fake.primaries + MAX_DEVICES) {
        return (int)(context - fake.primaries);
    }
    return MAX_DEVICES + (int)(context - fake.contexts);
}

/* ---- finding entry points ---- */

/* Built from the runtime's own table, so the signatures are checked by the compiler. */
static const struct aotci_driver entry_points = {
#define ENTRY_POINT(member, group, symbol, min_version, required, parameters) .member = fake_##symbol,
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
#define FIND(member, group, name, min_version, required, parameters)                                      \
    if (strcmp(symbol, #name) == 0 && fake.version >= (min_version)) {                             \
        memcpy(function, &entry_points.member, sizeof *function);                                  \
    }
    AOTCI_DRIVER_FUNCTIONS(FIND)
#undef FIND
    if (strcmp(symbol, "cuDriverGetVersion") == 0) {
        CUresult (*found)(int *version) = cuDriverGetVersion;
        memcpy(function, &found, sizeof *function);
    }
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
    FIND_EXTRA(cuDeviceTotalMem)
    FIND_EXTRA(cuDeviceCanAccessPeer)
    FIND_EXTRA(cuCtxSynchronize)
    FIND_EXTRA(cuMemcpyHtoD)
    FIND_EXTRA(cuMemcpyDtoH)
    FIND_EXTRA(cuMemcpyDtoD)
    FIND_EXTRA(cuMemsetD8Async)
    FIND_EXTRA(cuEventCreate)
    FIND_EXTRA(cuEventDestroy)
    FIND_EXTRA(cuEventRecord)
    FIND_EXTRA(cuEventElapsedTime)
#undef FIND_EXTRA
    *query_result = *function == NULL;
    return leave(CUDA_SUCCESS);
}

/* ---- control ---- */

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

CONTROL void fake_cuda_begin_thread_capture(void) {
    is_thread_capturing = true;
    is_thread_spoiled = false;
}

CONTROL int fake_cuda_end_capture(void) {
    if (is_thread_capturing) {
        is_thread_capturing = false;
        return !is_thread_spoiled;
    }
    fake.is_capturing = false;
    return !fake.is_spoiled;
}

CONTROL void fake_cuda_set_recording(int on) { atomic_store(&is_recording, on != 0); }

CONTROL void fake_cuda_set_kernel(fake_kernel *kernel) {
    (void)pthread_mutex_lock(&lock);
    fake.run = kernel;
    (void)pthread_mutex_unlock(&lock);
}

CONTROL struct CUctx_st *fake_cuda_create_context(int device) {
    if (device >= fake.device_count || fake.context_count >= MAX_CONTEXTS - MAX_DEVICES) {
        return NULL;
    }
    struct CUctx_st *context = &fake.contexts[fake.context_count++];
    *context = (struct CUctx_st){true, device, ++fake.last_id};
    return context;
}

CONTROL struct CUctx_st *fake_cuda_primary_context(int device) { return &fake.primaries[device]; }

CONTROL struct CUctx_st *fake_cuda_retain_primary(int device) {
    struct CUctx_st *context = NULL;
    (void)pthread_mutex_lock(&lock);
    if (device >= 0 && device < fake.device_count) {
        context = &fake.primaries[device];
        if (!context->is_alive) {
            *context = (struct CUctx_st){true, device, ++fake.last_id};
        }
        fake.primary_references[device] += 1;
    }
    (void)pthread_mutex_unlock(&lock);
    return context;
}

CONTROL int fake_cuda_device_count(void) { return fake.device_count; }

CONTROL void fake_cuda_destroy_context(struct CUctx_st *context) {
    context->is_alive = false;
    forget_code(context);
}

CONTROL void fake_cuda_replace_context(struct CUctx_st *context) {
    *context = (struct CUctx_st){true, context->device, ++fake.last_id};
    forget_code(context);
}

CONTROL void fake_cuda_move_context(struct CUctx_st *context, int device) {
    context->device = device;
    fake_cuda_replace_context(context);
}

CONTROL void fake_cuda_set_current(struct CUctx_st *context) {
    stack_size = context != NULL;
    stack[0] = context;
}

CONTROL struct CUstream_st *fake_cuda_create_stream(struct CUctx_st *context) {
    struct CUstream_st *stream = NULL;
    (void)pthread_mutex_lock(&lock);
    if (context != NULL && fake.stream_count < MAX_STREAMS) {
        stream = &fake.streams[fake.stream_count++];
        stream->context = context;
    }
    (void)pthread_mutex_unlock(&lock);
    return stream;
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
